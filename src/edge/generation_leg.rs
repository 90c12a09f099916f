//! The generation leg: what is sent, and where. In an aggregated fleet it is the whole request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Method;

use super::{
    context_leg::ContextDone,
    destination::Destination,
    failure::{no_instance, unusable},
    live::Live,
    pool::Pool,
    request::Request,
    retry::{Attempts, Cause, Kind, Place},
    signing::{self, Headers},
};
use crate::{
    fleet::{Observation, instance::Instance},
    http::{body::Lease, reply::Failure, upstream::Call},
    routing::{Exclusion, Pick, Query},
    telemetry::{
        self,
        labels::{FleetLabel, LegResult},
        metrics::CountedLeg,
    },
    wire::{
        disagg::{self, GenerationParams, ScheduleStyle},
        prompt::Prompt,
    },
};

/// What is sent to a generation worker, whichever it is.
pub struct Message {
    pub body: Bytes,
    /// The signed header fields, and those of the request's id and trace.
    pub headers: Headers,
}

/// One request's generation leg.
pub struct GenerationLeg {
    pool: Arc<Pool>,
    message: Message,
    path: &'static str,
    key: Option<String>,
    /// Kept until the worker answers, for another choice.
    tokens: Option<Arc<[u32]>>,
    pick: Pick,
    kind: Kind,
    attempts: Attempts,
    /// What became of the current attempt is known to the instance's health.
    observed: bool,
    started: Instant,
    /// When the last part of a stream came.
    last_part: Option<Instant>,
    counted: CountedLeg,
    /// Holds the budget of the bodies; released with the leg.
    lease: Lease,
}

impl GenerationLeg {
    /// Builds and signs the request after a context answer and reserves an instance, unless one is
    /// reserved already. The id stays the context leg's over all attempts: it is what the KV cache is
    /// handed over by (specification section 4.8).
    ///
    /// # Errors
    /// 502 for a context answer that cannot be used, 503 without an instance.
    pub fn plan(
        live: &Live,
        request: &mut Request<'_>,
        context: &ContextDone,
        reserved: Option<Pick>,
        mut lease: Lease,
    ) -> Result<Self, Failure> {
        let message = Message::after(live, request, context)?;
        // The client's own bytes are let go with the request that was read.
        lease.settle(message.body.len());
        let kind = Kind::HandedOver;
        if let Some(pick) = reserved {
            return Ok(Self::new(live, request, (message, kind), pick, lease));
        }
        let destination = request.pool.answering();
        if request.tokens.is_none() && destination.kv_cache_aware().is_some() {
            // The context worker tells what it made of the prompt.
            request.tokens = context.parse()?.token_ids().map(Arc::from);
        }
        let fleet = destination.fleet();
        let exclude = fleet.at(&context.address);
        let exclude = exclude.map(|instance| Exclusion::rebinding(instance.id));
        Self::reserve(live, request, (message, kind), exclude, lease)
    }

    /// Builds the request for an instance that serves it whole, without a context leg: it carries no
    /// hand-over and nothing signed.
    ///
    /// # Errors
    /// 400 for a prompt that a context leg would not take either.
    pub fn whole(
        live: &Live,
        request: &Request<'_>,
        pick: Pick,
        mut lease: Lease,
    ) -> Result<Self, Failure> {
        let params = request.conversation_params.as_deref();
        let body = disagg::whole_request(&request.view, request.endpoint, params)?;
        let message = Message::new(request, body, Vec::new());
        lease.settle(message.body.len());
        Ok(Self::new(live, request, (message, Kind::Free), pick, lease))
    }

    /// Builds the request for an aggregated fleet and reserves an instance of it. It carries the
    /// session, so that the worker may keep it on a rank, and nothing of disaggregation.
    ///
    /// # Errors
    /// 503 without an instance.
    pub fn aggregated(
        live: &Live,
        request: &Request<'_>,
        mut lease: Lease,
    ) -> Result<Self, Failure> {
        let params = request.conversation_params.as_deref();
        let body = disagg::aggregated_request(&request.view, params);
        let message = Message::new(request, body, Vec::new());
        lease.settle(message.body.len());
        Self::reserve(live, request, (message, Kind::Free), None, lease)
    }

    /// Reserves an instance for a message that is ready.
    ///
    /// # Errors
    /// 503 without an instance.
    pub fn reserve(
        live: &Live,
        request: &Request<'_>,
        message: (Message, Kind),
        exclude: Option<Exclusion>,
        lease: Lease,
    ) -> Result<Self, Failure> {
        let pick = pick(live, request, exclude)?;
        Ok(Self::new(live, request, message, pick, lease))
    }

    fn new(
        live: &Live,
        request: &Request<'_>,
        (message, kind): (Message, Kind),
        pick: Pick,
        lease: Lease,
    ) -> Self {
        Self {
            counted: CountedLeg::begin(request.pool.answering().label()),
            last_part: None,
            pick,
            kind,
            pool: request.pool.clone(),
            message,
            path: request.endpoint.path(),
            key: request.answering_key(live).map(str::to_owned),
            tokens: request.tokens.clone(),
            attempts: Attempts::new(live),
            observed: false,
            started: Instant::now(),
            lease,
        }
    }

    /// The request as a side call.
    pub fn call(&self) -> Call<'_> {
        Call {
            method: Method::POST,
            address: &self.instance().address,
            path: self.path,
            headers: &self.message.headers,
            body: self.message.body.clone(),
            // Nothing is held of it here.
            max_answer: usize::MAX,
            fresh: self.attempts.wants_fresh(),
        }
    }

    /// Says something else from now on, at the same place.
    pub fn say(&mut self, message: Message) {
        self.message = message;
    }

    /// The fleet it goes to, and the router that chose there.
    pub fn destination(&self) -> &Destination {
        self.pool.answering()
    }

    /// What the leg is called in metrics.
    pub fn label(&self) -> FleetLabel {
        self.destination().label()
    }

    pub fn instance(&self) -> &Arc<Instance> {
        self.pick.load.instance()
    }

    pub fn pick(&self) -> &Pick {
        &self.pick
    }

    /// The worker answers well: no other instance will be chosen, and only the message is held from
    /// now on.
    pub fn answered(&mut self) {
        self.tokens = None;
        self.lease.settle(self.message.body.len());
    }

    /// How the leg will have ended.
    pub fn ends(&mut self, result: LegResult) {
        self.counted.ends(result);
    }

    /// A part of the worker's stream came: counts the time since the one before.
    pub fn part_came(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last_part.replace(now) {
            let intervals = &telemetry::metrics().legs.stream_interval;
            intervals.observe(self.label(), now - last);
        }
    }

    /// The time of the current attempt so far.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The current attempt has ended; said once for each.
    pub fn observe(&mut self, observation: Observation) {
        if !std::mem::replace(&mut self.observed, true) {
            self.instance().health().observe(observation);
        }
    }

    /// A new attempt begins.
    pub fn attempt_starts(&mut self) {
        self.observed = false;
        self.started = Instant::now();
    }

    /// After an attempt that failed: whether there is another one, and how long to wait before it. It
    /// is made at another instance from then on, where one can serve the request.
    pub fn again(&mut self, cause: Cause) -> Option<Duration> {
        if let Some(said) = cause.observation() {
            self.observe(said);
        }
        if cause == Cause::Unheard && self.attempts.replace_connection() {
            return Some(Duration::ZERO);
        }
        let place = cause.place(self.kind)?;
        if !self.attempts.is_left() {
            return None;
        }
        let failed = self.instance().id;
        if place != Place::Here {
            match self.pick_another(cause) {
                Some(pick) => self.pick = pick,
                None if place == Place::OnlyElsewhere => return None,
                None => {}
            }
        }
        let reason = (self.label(), cause.reason());
        telemetry::metrics().leg_retries.inc(reason);
        let way = (failed, self.instance().id);
        Some(self.attempts.take(way, cause, self.kind))
    }

    /// Reserves another instance than the one that just failed, if there is one.
    fn pick_another(&self, cause: Cause) -> Option<Pick> {
        let failed = self.instance().id;
        let query = Query {
            // Only the weight of its prompt is known any more, which matches nothing.
            scope: 0,
            key: self.key.as_deref(),
            prompt: &Prompt::of_weight(self.pick.load.weight()),
            exclude: Some(self.attempts.exclusion(cause, failed)),
            tokens: self.tokens.as_deref(),
        };
        let pick = self.destination().pick(&query).ok();
        pick.filter(|pick| pick.load.instance().id != failed)
    }

    /// Completes when another instance should serve the request, since this one is lost.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let fleet = self.destination().fleet();
        let could_move = Cause::Lost.place(self.kind).is_some()
            && self.attempts.could_move(&fleet, self.instance().id);
        let lost = self.pick.load.lost();
        async move {
            if !could_move {
                return std::future::pending().await;
            }
            lost.await;
        }
    }
}

impl Message {
    /// A body with its signed header fields, and what else the request's legs carry.
    pub fn new(request: &Request<'_>, body: impl Into<Bytes>, signed: Headers) -> Self {
        let mut headers = signed;
        headers.extend(request.trace.fields());
        Self {
            body: body.into(),
            headers,
        }
    }

    /// The request that a context answer leads to.
    fn after(live: &Live, request: &Request<'_>, context: &ContextDone) -> Result<Self, Failure> {
        let answer = context.parse()?;
        let params = GenerationParams {
            endpoint: request.endpoint,
            disagg_request_id: context.request_id,
            schedule_style: ScheduleStyle::ContextFirst,
            strip_message_history: live.edge.gen_strip_message_history,
            conversation_params: request.conversation_params.as_deref(),
        };
        let body = disagg::generation_request(&request.view, &answer, &params).map_err(unusable)?;
        let request_id = answer
            .disagg_request_id(context.request_id)
            .map_err(unusable)?;
        let transfer = answer.kv_transfer().map_err(unusable)?;
        let profile = request.pool.answering().profile;
        let signed = signing::generation(live, request, profile, request_id, &transfer);
        Ok(Self::new(request, body, signed))
    }
}

/// Reserves an instance for a request.
///
/// # Errors
/// 503 without an instance.
pub fn pick(
    live: &Live,
    request: &Request<'_>,
    exclude: Option<Exclusion>,
) -> Result<Pick, Failure> {
    let query = Query {
        scope: request.scope,
        key: request.answering_key(live),
        prompt: &request.prompt,
        exclude,
        tokens: request.tokens.as_deref(),
    };
    let destination = request.pool.answering();
    destination.pick(&query).map_err(no_instance)
}
