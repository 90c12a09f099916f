//! What is decided and seen of one request: Pingora's per-request context.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http::StatusCode;
use pingora::{Error, ErrorSource, ErrorType, Result, http::ResponseHeader};

use super::{
    context_leg::ContextSeen,
    failure,
    generation_leg::GenerationLeg,
    kv_cache::KvCaches,
    live::Live,
    relay::{self, Relay},
    request::Request,
};
use crate::{
    http::{
        body::Rest,
        in_flight::InFlight,
        reply::{Failure, upstream_failure},
        upstream,
    },
    telemetry::{
        self,
        labels::{AnswerMode, FleetLabel, LegResult, Outcome, Route},
        metrics::CountedLeg,
    },
    wire::headers::{KINDRED_CONTEXT, KINDRED_GENERATION, KINDRED_RANK},
};

/// One request, from its head to its last byte.
pub struct Plan {
    pub live: Arc<Live>,
    pub route: Route,
    /// The fleet whose leg decides the outcome, so far.
    pub fleet: FleetLabel,
    pub outcome: Option<Outcome>,
    pub context: Option<ContextSeen>,
    /// The context leg, from its first attempt on.
    context_leg: Option<CountedLeg>,
    pub generation: Option<GenerationLeg>,
    /// What may still come of the client's body.
    pub rest: Option<Rest>,
    /// Header fields that every answer to this request carries, whoever makes it.
    pub on_every_answer: Vec<(&'static str, String)>,
    /// Why the rest of it, or the generation worker's answer, was not taken.
    refusal: Option<Failure>,
    relay: Option<Relay>,
    started: Instant,
    caches: Arc<KvCaches>,
    _in_flight: InFlight,
}

impl Plan {
    pub fn new(live: Arc<Live>, caches: Arc<KvCaches>, in_flight: InFlight) -> Self {
        Self {
            live,
            route: Route::Other,
            fleet: FleetLabel::None,
            outcome: None,
            context: None,
            context_leg: None,
            generation: None,
            rest: None,
            on_every_answer: Vec::new(),
            refusal: None,
            relay: None,
            started: Instant::now(),
            caches,
            _in_flight: in_flight,
        }
    }

    /// The generation leg, which exists once Pingora asks for a peer.
    pub fn generation(&mut self) -> Result<&mut GenerationLeg> {
        self.generation
            .as_mut()
            .ok_or_else(|| Error::explain(ErrorType::InternalError, "no generation leg is planned"))
    }

    /// What a worker's answer carries beyond its own header fields.
    pub fn answer_fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = self.debug_headers();
        fields.extend(self.on_every_answer.iter().cloned());
        fields
    }

    /// The request has passed its checks and its first leg is about to be chosen: counts it.
    pub fn understood(&self, request: &Request<'_>) {
        let mode = match request.stream {
            true => AnswerMode::Stream,
            false => AnswerMode::Whole,
        };
        let legs = &telemetry::metrics().legs;
        legs.understood.inc(mode);
        legs.wait.observe(self.started.elapsed().as_secs_f64());
    }

    /// The first attempt of the context leg begins.
    pub fn context_leg_begins(&mut self) {
        self.context_leg = Some(CountedLeg::begin(FleetLabel::Context));
    }

    /// The names of the instances that served the request, if the client may see them.
    fn debug_headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if !self.live.config.telemetry.debug_headers {
            return headers;
        }
        if let Some(context) = &self.context {
            headers.push((KINDRED_CONTEXT, context.alias.to_string()));
            headers.extend(context.rank.clone().map(|rank| (KINDRED_RANK, rank)));
        }
        if let Some(generation) = &self.generation {
            headers.push((KINDRED_GENERATION, generation.instance().alias.to_string()));
        }
        headers
    }

    /// The generation worker's head is in: counts the time until then.
    pub fn generation_answers(&self) {
        if let Some(leg) = &self.generation {
            telemetry::metrics()
                .leg_first_byte
                .observe(leg.label(), leg.elapsed());
        }
    }

    /// The generation worker's head goes to the client: leaves in it what the client sees.
    ///
    /// # Errors
    /// When it is no head to relay; [`Plan::failure`] says why.
    pub fn relay_head(&mut self, head: &mut ResponseHeader) -> Result<()> {
        let leg = self.generation.as_ref();
        self.fleet = leg.map_or(self.fleet, GenerationLeg::label);
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let reason = "the generation worker changes the protocol unasked";
            return Error::e_explain(ErrorType::InvalidHTTPHeader, reason)
                .map_err(|error| error.into_up());
        }
        if head.status.is_informational() {
            relay::keep_for_client(head);
            return Ok(());
        }
        if relay::is_unfit(head) {
            let failure = failure::refused(&self.live, "generation", head.status.as_u16(), b"");
            self.refusal = Some(failure::with_retry_after(failure, &head.headers));
            let reason = "the generation worker's answer is not relayed";
            return Error::e_explain(ErrorType::InternalError, reason);
        }
        self.relay = Some(Relay::of(head)?);
        if let Some(leg) = &mut self.generation {
            leg.answered();
        }
        for (name, value) in self.answer_fields() {
            head.insert_header(name, value)?;
        }
        Ok(())
    }

    /// Part of the generation worker's body on its way to the client.
    ///
    /// # Errors
    /// When an answer that is held back outgrows `limits.max_answer`.
    pub fn relay(&mut self, body: &mut Option<Bytes>, end_of_stream: bool) -> Result<()> {
        if let Some(relay) = &mut self.relay {
            if let (true, Some(leg)) = (relay.is_stream(), &mut self.generation)
                && body.as_ref().is_some_and(|part| !part.is_empty())
            {
                leg.part_came();
            }
            let ended = relay.pass(body, end_of_stream, &self.live)?;
            self.outcome = ended.or(self.outcome);
        }
        Ok(())
    }

    /// What ends a stream that broke off after it had begun; `None` where the answer is no stream or
    /// nobody is left to read it.
    pub fn break_off(&mut self, failure: &Failure) -> Option<Bytes> {
        if failure.client_is_gone() {
            return None;
        }
        self.outcome = Some(Outcome::StreamBroken);
        self.relay.as_ref()?.break_off()
    }

    /// A part of the client's body that comes while the request is forwarded.
    ///
    /// # Errors
    /// When it is not to be taken; [`Plan::failure`] says why.
    pub fn body_goes_on(&mut self, part: &[u8]) -> Result<()> {
        let Some(Err(failure)) = self.rest.as_mut().map(|rest| rest.pass(part)) else {
            return Ok(());
        };
        self.refusal = Some(failure);
        Error::e_explain(
            ErrorType::InvalidHTTPHeader,
            "the end of the body is refused",
        )
        .map_err(|error| error.into_down())
    }

    /// What one of Pingora's errors means to the client.
    pub fn failure(&self, error: &Error) -> Failure {
        if let Some(refusal) = &self.refusal {
            return refusal.clone();
        }
        match (error.esource(), &self.rest) {
            (ErrorSource::Upstream, _) => {
                upstream_failure("generation worker", upstream::classify_ref(error))
            }
            (ErrorSource::Downstream, Some(rest)) => rest.failure(error),
            (ErrorSource::Downstream, None) => Failure::client_left(),
            _ => Failure::internal("Kindred could not forward the request."),
        }
    }

    fn legs_end(&mut self, outcome: Outcome) {
        let result = match outcome {
            Outcome::Ok => LegResult::Ok,
            Outcome::ClientCancel => LegResult::Abandoned,
            _ => LegResult::Failed,
        };
        if let Some(leg) = &mut self.context_leg {
            leg.ends(match self.context {
                Some(_) => LegResult::Ok,
                None if self.fleet != FleetLabel::Context => LegResult::Abandoned,
                None => result,
            });
        }
        if let Some(leg) = &mut self.generation {
            let other = self.fleet == FleetLabel::Context;
            leg.ends(if other { LegResult::Abandoned } else { result });
        }
    }

    /// The request has ended: counts it.
    pub fn finish(&mut self, status: Option<u16>, error: Option<&Error>) {
        let outcome = self.outcome.unwrap_or(match (error, status) {
            (Some(_), _) => Outcome::Internal,
            (None, Some(200..=399)) => Outcome::Ok,
            (None, _) => Outcome::ClientError,
        });
        self.legs_end(outcome);
        let metrics = telemetry::metrics();
        metrics.requests.inc((self.route, self.fleet, outcome));
        metrics
            .request_duration
            .observe(self.route, self.started.elapsed());
        if let Some(leg) = &self.generation {
            metrics.leg_duration.observe(leg.label(), leg.elapsed());
            if self.relay.is_some() {
                let well = outcome == Outcome::Ok;
                let router = leg.destination().router();
                self.caches
                    .leg_finished(&self.live, router, leg.pick(), well);
            }
        }
        tracing::debug!(
            route = self.route.as_str(),
            fleet = self.fleet.as_str(),
            outcome = outcome.as_str(),
            status,
            "request ended"
        );
    }
}
