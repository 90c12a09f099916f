//! Both legs in flight, the generation leg sent first (specification section 4.5).
//!
//! The generation worker waits for the KV cache of an id, and the context worker for a generation
//! worker that asks for it: so the generation request is written whole before the context request
//! begins, and either leg's failure closes the other. An attempt that may be repeated, of either leg,
//! is repeated as a pair, both legs anew under a new id, because a generation worker waits at one
//! instance for one id and a context worker must never see an id twice.

use std::{collections::VecDeque, future::Future, pin::pin, time::Duration};

use bytes::Bytes;
use pingora::{BError, http::ResponseHeader};
use tokio::time::{Instant, sleep, timeout};

use super::{
    client::passed,
    context_leg::{ContextDone, ContextLeg, Series},
    failure::unusable_server_info,
    generation_leg::{GenerationLeg, Message},
    incoming::{Incoming, Parts, failed, open, unanswered},
    plan::Plan,
    retry::{Failed, Kind},
    server_info::ServerInfos,
    signing,
};
use crate::{
    http::{
        body::Lease,
        reply::Failure,
        upstream::{CallError, Streaming, Upstreams, classify},
    },
    routing::Pick,
    telemetry::labels::FleetLabel,
    wire::disagg::{self, ContextEndpoint, GenerationFirstParams, ScheduleStyle},
};

/// Bytes of a generation answer that are taken in while the context leg runs.
const MAX_EARLY: usize = 64 * 1024;

/// One request's two legs.
pub struct GenerationFirst<'u, 'a> {
    /// Outlives the request's own data, since the generation answer does.
    pub upstreams: &'u Upstreams,
    pub context: ContextLeg<'a>,
    pub infos: &'a ServerInfos,
}

/// How a pair of legs failed.
enum Broken {
    Context(Failed),
    Generation(Failed),
}

impl<'u> GenerationFirst<'u, '_> {
    /// Sends both legs, and again as often as the leg that failed may be repeated, until the context
    /// leg is done well and the head of the generation answer is in. Cancel-safe: dropping it closes
    /// both connections and gives the context leg's load back; the generation leg's is the plan's.
    ///
    /// # Errors
    /// What the client is to be told; `plan.fleet` says whose failure it is.
    pub async fn run(&self, plan: &mut Plan, lease: Lease) -> Result<Incoming<'u>, Failure> {
        let mut lease = Some(lease);
        let mut series = Series::new(self.context.live);
        loop {
            plan.fleet = FleetLabel::Context;
            let pick = self.context.pick(&mut series).await?;
            let failed = match self.pair(&pick, &series, plan, &mut lease).await {
                Ok(incoming) => return Ok(incoming),
                Err(failed) => failed,
            };
            // Its endpoint may be what was wrong.
            self.infos.forget(pick.load.instance().id);
            match failed {
                Broken::Context(failed) => series.go_on(&pick, failed)?,
                Broken::Generation(failed) => {
                    drop(pick);
                    plan.fleet = FleetLabel::Generation;
                    sleep(go_on(plan, failed)?).await;
                }
            }
        }
    }

    /// One attempt with both legs, under one new id.
    async fn pair(
        &self,
        pick: &Pick,
        series: &Series,
        plan: &mut Plan,
        lease: &mut Option<Lease>,
    ) -> Result<Incoming<'u>, Broken> {
        let context = &self.context;
        let instance = pick.load.instance();
        let endpoint = self
            .infos
            .endpoint(self.upstreams, context.live, instance)
            .await
            .map_err(Broken::Context)?;
        let request_id = context.live.ids.next();
        let message = self
            .message(request_id, &endpoint)
            .map_err(|failure| Broken::Context(Failed::finally(failure)))?;
        self.prepare(plan, message, lease)
            .map_err(|failure| Broken::Generation(Failed::finally(failure)))?;
        let mut call = self.open(plan).await.map_err(Broken::Generation)?;
        let attempt = context.attempt(pick, series, request_id, ScheduleStyle::GenerationFirst);
        let (done, head, early) = both(&mut call, attempt, plan).await?;
        call.limit_silence();
        let parts = Parts { call, early };
        let mut incoming = Incoming { head, parts };
        let Some(done) = done else {
            return Err(Broken::Generation(Failed {
                cause: incoming.cause(),
                failure: incoming.refusal(context.live).await,
            }));
        };
        done.parse()
            .map_err(|failure| Broken::Context(Failed::finally(failure)))?;
        plan.context = Some(done.seen);
        Ok(incoming)
    }

    /// Writes the generation request.
    async fn open(&self, plan: &mut Plan) -> Result<Streaming<'u>, Failed> {
        let live = self.context.live;
        let leg = plan.generation().map_err(Failed::finally)?;
        let open = open(self.upstreams, leg, live);
        let opened = timeout(live.config.timeouts.first_byte, open).await;
        opened.unwrap_or(Err(CallError::Timeout)).map_err(failed)
    }

    /// The generation request, signed.
    fn message(&self, request_id: u64, endpoint: &ContextEndpoint) -> Result<Message, Failure> {
        let request = self.context.request;
        let params = GenerationFirstParams {
            endpoint: request.endpoint,
            disagg_request_id: request_id,
            context: endpoint,
            conversation_params: request.conversation_params.as_deref(),
        };
        let body = disagg::generation_first_request(&request.view, &params)?;
        let transfer = endpoint
            .kv_transfer()
            .map_err(|error| unusable_server_info(error.into()))?;
        let live = self.context.live;
        let profile = request.pool.answering().profile;
        let signed = signing::generation(live, request, profile, request_id.into(), &transfer);
        Ok(Message::new(request, body, signed))
    }

    /// Reserves an instance for the generation leg, the first time; none is excluded (specification
    /// section 4.5).
    fn prepare(
        &self,
        plan: &mut Plan,
        message: Message,
        lease: &mut Option<Lease>,
    ) -> Result<(), Failure> {
        let (live, request) = (self.context.live, self.context.request);
        match (&mut plan.generation, lease.take()) {
            (Some(leg), _) => leg.say(message),
            (none, Some(mut lease)) => {
                // The client's own bytes stay as well: both legs may have to be sent anew.
                lease.settle(request.view.bytes().len() + message.body.len());
                // A new pair has a new id, so the next one may be made anywhere.
                let message = (message, Kind::Free);
                *none = Some(GenerationLeg::reserve(live, request, message, None, lease)?);
            }
            (None, None) => return Err(Failure::internal("The generation leg has no room.")),
        }
        Ok(())
    }
}

/// After a generation leg that failed: how long to wait before the next pair.
///
/// # Errors
/// What the client is to be told, when there is none.
fn go_on(plan: &mut Plan, failed: Failed) -> Result<Duration, Failure> {
    let leg = plan.generation.as_mut();
    let pause = leg
        .zip(failed.cause)
        .and_then(|(leg, cause)| leg.again(cause));
    pause.ok_or(failed.failure)
}

/// Waits until the context leg is done and the generation answer's head is in, for which there is
/// `timeouts.first_byte` from then on. What comes of the answer meanwhile is taken in up to a bound,
/// so that a generation leg that breaks off is noticed. Where the generation worker refuses, the
/// context leg is closed and there is nothing of it.
async fn both(
    call: &mut Streaming<'_>,
    context: impl Future<Output = Result<ContextDone, Failed>>,
    plan: &Plan,
) -> Result<(Option<ContextDone>, ResponseHeader, VecDeque<Bytes>), Broken> {
    let broken = |error| Broken::Generation(failed(error));
    let mut context = pin!(context);
    let mut done = None;
    let mut due = None;
    let head = {
        let mut head = pin!(call.head());
        loop {
            tokio::select! {
                biased;
                outcome = &mut context, if done.is_none() => {
                    done = Some(outcome.map_err(Broken::Context)?);
                    due = Some(Instant::now() + plan.live.config.timeouts.first_byte);
                }
                head = &mut head => break head,
                () = passed(due) => break Err(CallError::Timeout),
            }
        }
    };
    let head = head.map_err(broken)?;
    plan.generation_answers();
    let mut early = Early::default();
    if head.status.as_u16() != 200 {
        return Ok((None, head, early.parts));
    }
    while done.is_none() {
        tokio::select! {
            biased;
            outcome = &mut context => done = Some(outcome.map_err(Broken::Context)?),
            part = call.next(), if early.has_room() => early.take(part.map_err(broken_off)?),
        }
    }
    Ok((done, head, early.parts))
}

/// A generation answer that had begun is never asked for again.
fn broken_off(error: BError) -> Broken {
    Broken::Generation(Failed::finally(unanswered(classify(error))))
}

/// What came of the generation answer before it was wanted.
#[derive(Default)]
struct Early {
    parts: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
}

impl Early {
    fn has_room(&self) -> bool {
        !self.ended && self.bytes < MAX_EARLY
    }

    fn take(&mut self, part: Option<Bytes>) {
        self.ended = part.is_none();
        if let Some(part) = part {
            self.bytes += part.len().max(1);
            self.parts.push_back(part);
        }
    }
}
