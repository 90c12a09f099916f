//! The context leg: the prefill, as a side call whose answer the generation leg is made of.

mod series;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http::Method;
use tokio::time::sleep;

use super::{
    destination::Destination,
    failure::{self, no_instance, unusable},
    kv_cache::KvCaches,
    live::Live,
    observe,
    request::Request,
    retry::{Cause, Failed},
    signing,
};
use crate::{
    fleet::Observation,
    http::{
        reply::{Failure, upstream_failure},
        upstream::{self, Call, CallError, Upstreams},
    },
    routing::{Exclusion, Pick, Query},
    telemetry::{self, labels::FleetLabel},
    wire::{
        Role,
        disagg::{self, AnswerError, ContextAnswer, ContextParams, ScheduleStyle},
        headers::KINDRED_RANK,
    },
};

pub use series::Series;

/// One request's context leg.
pub struct ContextLeg<'a> {
    pub upstreams: &'a Upstreams,
    pub live: &'a Arc<Live>,
    pub destination: &'a Destination,
    pub request: &'a Request<'a>,
    pub caches: &'a Arc<KvCaches>,
    /// The instance that is to serve the other leg, where that is chosen already.
    pub exclude: Option<Exclusion>,
}

/// A context worker's good answer.
pub struct ContextDone {
    pub body: Bytes,
    /// The id of the attempt that answered: the KV hand-off key of the generation leg.
    pub request_id: u64,
    /// `host:port` of the worker that answered.
    pub address: Arc<str>,
    pub seen: ContextSeen,
}

/// Who ran a context leg, in words that a client may see.
#[derive(Debug, Clone)]
pub struct ContextSeen {
    pub alias: Arc<str>,
    /// As the worker filter told it.
    pub rank: Option<String>,
}

/// A client's whole answer without a generation leg.
pub struct FinalAnswer {
    pub content_type: &'static str,
    pub body: Bytes,
}

impl ContextLeg<'_> {
    /// Picks, sends and repeats until a worker answers well. Cancel-safe: dropping it closes the
    /// connection and gives the load back.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn run(&self) -> Result<ContextDone, Failure> {
        let mut series = Series::new(self.live);
        loop {
            let pick = self.pick(&mut series).await?;
            let request_id = self.live.ids.next();
            let outcome = self.attempt(&pick, &series, request_id, ScheduleStyle::ContextFirst);
            match outcome.await {
                Ok(done) => return Ok(done),
                Err(failed) => series.go_on(&pick, failed)?,
            }
        }
    }

    /// Reserves an instance for the next attempt of a series; waits first where one was made there
    /// before.
    ///
    /// # Errors
    /// 503 without an instance, and the last attempt's failure where another one would have to be
    /// made at the same instance and cannot help there.
    pub async fn pick(&self, series: &mut Series) -> Result<Pick, Failure> {
        let query = Query {
            scope: self.request.scope,
            key: self.request.keys(self.live).context,
            prompt: &self.request.prompt,
            exclude: series.exclusion().or(self.exclude),
            tokens: self.request.tokens.as_deref(),
        };
        let pick = self.destination.pick(&query).map_err(no_instance)?;
        let pause = series.placed(pick.load.instance().id)?;
        sleep(pause).await;
        Ok(pick)
    }

    /// Sends one context request under `request_id` and reads its answer, unless the instance is lost
    /// and another one may serve the request. Cancel-safe as [`Self::run`].
    pub async fn attempt(
        &self,
        pick: &Pick,
        series: &Series,
        request_id: u64,
        schedule_style: ScheduleStyle,
    ) -> Result<ContextDone, Failed> {
        let started = Instant::now();
        let instance = pick.load.instance().id;
        let could_move = series.could_move(&self.destination.fleet(), instance);
        let fresh = series.wants_fresh();
        let outcome = tokio::select! {
            biased;
            outcome = self.call(pick, fresh, request_id, schedule_style) => outcome,
            () = pick.load.lost(), if could_move => Err(lost()),
        };
        telemetry::metrics()
            .leg_duration
            .observe(FleetLabel::Context, started.elapsed());
        if outcome.is_ok() {
            let router = self.destination.router();
            self.caches.leg_finished(self.live, router, pick, true);
        }
        outcome
    }

    async fn call(
        &self,
        pick: &Pick,
        fresh: bool,
        request_id: u64,
        schedule_style: ScheduleStyle,
    ) -> Result<ContextDone, Failed> {
        let instance = pick.load.instance();
        let params = ContextParams {
            endpoint: self.request.endpoint,
            disagg_request_id: request_id,
            schedule_style,
            return_prompt_token_ids_b64: self.live.edge.gen_tokids_ctxbytes,
            conversation_params: self.request.conversation_params.as_deref(),
        };
        let body = disagg::context_request(&self.request.view, &params)
            .map_err(|error| Failed::finally(error.into()))?;
        let role = (Role::Context, self.destination.profile);
        let mut headers = signing::affinity(self.live, self.request, role, request_id.into());
        headers.extend(self.request.trace.fields());
        let call = Call {
            method: Method::POST,
            address: &instance.address,
            path: self.request.endpoint.path(),
            headers: &headers,
            body: body.into(),
            max_answer: self.live.config.limits.max_answer,
            fresh,
        };
        let answer = self
            .upstreams
            .call(&call, &self.live.config.timeouts)
            .await
            .map_err(|error| {
                if let Some(said) = observe::of_call(error) {
                    instance.health().observe(said);
                }
                unanswered(error)
            })?;
        let said = Observation::of_status(answer.status);
        instance.health().observe(said);
        telemetry::metrics()
            .leg_first_byte
            .observe(FleetLabel::Context, answer.head_after);
        if answer.status != 200 {
            return Err(refused(self.live, &answer));
        }
        Ok(ContextDone {
            body: answer.body,
            request_id,
            address: instance.address.clone(),
            seen: ContextSeen {
                alias: instance.alias.clone(),
                rank: answer
                    .headers
                    .get(KINDRED_RANK)
                    .and_then(|rank| rank.to_str().ok())
                    .map(str::to_owned),
            },
        })
    }
}

impl ContextDone {
    /// The client's whole answer, if the context worker's answer is final (specification section 4.2
    /// step 6). A streaming client gets it as chunks. `keep` as for [`disagg::client_answer`].
    ///
    /// # Errors
    /// 502 when the answer cannot be used.
    pub fn finished(
        &self,
        request: &Request<'_>,
        keep: bool,
    ) -> Result<Option<FinalAnswer>, Failure> {
        let answer = self.parse()?;
        if answer.needs_generation() {
            return Ok(None);
        }
        Ok(Some(if request.stream {
            FinalAnswer {
                content_type: "text/event-stream; charset=utf-8",
                body: disagg::final_events(&answer, request.endpoint, request.include_usage).into(),
            }
        } else {
            FinalAnswer {
                content_type: "application/json",
                body: disagg::final_answer(&answer, keep)
                    .ok_or_else(|| unusable(AnswerError::NoChoices))?
                    .into(),
            }
        }))
    }

    /// Reads and checks the answer.
    ///
    /// # Errors
    /// 502 when the answer cannot be used.
    pub fn parse(&self) -> Result<ContextAnswer<'_>, Failure> {
        let answer = ContextAnswer::parse(&self.body).map_err(unusable)?;
        answer.check().map_err(unusable)?;
        Ok(answer)
    }
}

fn unanswered(error: CallError) -> Failed {
    Failed {
        failure: upstream_failure("context worker", error),
        cause: Cause::of_error(error),
    }
}

fn refused(live: &Live, answer: &upstream::Answer) -> Failed {
    let failure = failure::refused(live, "context", answer.status, &answer.body);
    Failed {
        failure: failure::with_retry_after(failure, &answer.headers),
        cause: Cause::of_answer(answer.status, &answer.headers),
    }
}

fn lost() -> Failed {
    Failed {
        failure: upstream_failure("context worker", CallError::Reset),
        cause: Some(Cause::Lost),
    }
}
