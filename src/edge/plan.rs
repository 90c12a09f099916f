//! What is decided and seen of one request: Pingora's per-request context.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http::HeaderMap;
use pingora::{BError, Error, ErrorSource, ErrorType, Result, proxy::Session};

use super::{
    context_leg::ContextSeen,
    generation_leg::GenerationLeg,
    kv_cache::KvCaches,
    live::Live,
    observe,
    relay::{self, Relay},
    request::Request,
};
use crate::{
    fleet::queue::Place,
    gateway::{
        delegation,
        limits::{Charge, SubAgent},
    },
    http::{in_flight::InFlight, reply::Failure},
    telemetry::{
        self,
        access_log::{self, AccessLog, Entry},
        labels::{AnswerMode, ClaimOutcome, FleetLabel, LegResult, Outcome, Route},
        metrics::CountedLeg,
    },
    wire::{
        headers::{KINDRED_CONTEXT, KINDRED_GENERATION, KINDRED_RANK},
        trace::{self, Trace},
    },
};

/// What the access log tells of a request's session.
#[derive(Default)]
struct Said {
    session: Option<String>,
    parent: Option<String>,
    claim: Option<ClaimOutcome>,
}

impl Said {
    fn of(request: &Request<'_>) -> Self {
        let short = |id: &String| access_log::shortened(id).to_owned();
        Self {
            session: request.session.as_ref().map(short),
            parent: request.parent.as_ref().map(short),
            claim: Some(request.claim),
        }
    }
}

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
    /// The request's id and the trace it belongs to; empty before its head was looked at.
    pub trace: Arc<Trace>,
    /// Header fields that every answer to this request carries, whoever makes it.
    pub on_every_answer: Vec<(&'static str, String)>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// What the generation worker's good answer is, once there is one.
    pub relay: Option<Relay>,
    /// Who sent it, once that is known.
    pub client: Option<Arc<str>>,
    said: Said,
    /// Prompt tokens that were taken on an estimate.
    pub charge: Option<Charge>,
    /// How many the workers have counted.
    pub prompt_tokens: Option<u64>,
    /// The request as a sub-agent of its parent.
    pub sub_agent: Option<SubAgent>,
    /// Why the request ends, where it is told by [`Plan::failure`].
    failure: Option<Failure>,
    started: Instant,
    caches: Arc<KvCaches>,
    /// Places of the client's and of fleets, given back when the request has ended.
    pub places: Vec<Place>,
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
            trace: Arc::default(),
            on_every_answer: Vec::new(),
            stream: false,
            relay: None,
            client: None,
            said: Said::default(),
            charge: None,
            prompt_tokens: None,
            sub_agent: None,
            failure: None,
            started: Instant::now(),
            caches,
            places: Vec::new(),
            _in_flight: in_flight,
        }
    }

    /// The generation leg, which exists once the context leg is done.
    ///
    /// # Errors
    /// 500 without one.
    pub fn generation(&mut self) -> Result<&mut GenerationLeg, Failure> {
        let leg = self.generation.as_mut();
        leg.ok_or_else(|| Failure::internal("No generation leg is planned."))
    }

    /// The head of the request is in: gives it an id, which every answer then carries.
    pub fn begins(&mut self, headers: &HeaderMap) {
        let gateway = self.live.config.gateway.as_ref();
        let refused = gateway.map_or(&[][..], |gateway| &gateway.prune_headers);
        let trace = Trace::of(headers, refused);
        let id = trace.request_id().to_owned();
        self.on_every_answer.push((trace::REQUEST_ID, id));
        self.trace = Arc::new(trace);
    }

    /// Writes what is said of a failure, in the shape that the configuration wants.
    ///
    /// # Errors
    /// Pingora's, of a client that cannot be written to.
    pub async fn tell(&self, session: &mut Session, failure: &Failure) -> Result<()> {
        let whose = self.live.config.compatibility;
        let fields = self.answer_fields();
        failure.write(session, whose, &fields).await
    }

    /// What an answer carries beyond its own header fields: what every answer does, and who has
    /// worked on the request so far.
    pub fn answer_fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = self.debug_headers();
        fields.extend(self.on_every_answer.iter().cloned());
        fields
    }

    /// The request has passed its checks and its first leg is about to be chosen: counts it, and takes
    /// what its answer is to carry.
    pub fn understood(&mut self, request: &mut Request<'_>) {
        if access_log::current().is_some() {
            self.said = Said::of(request);
        }
        let token = request.delegation.take();
        let token = token.map(|token| (delegation::HEADER, token));
        self.on_every_answer.extend(token);
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

    /// The request ends with `failure`, which is told by whoever gets the error.
    pub fn fail(&mut self, failure: Failure) -> BError {
        let message = failure.message.clone();
        let error = if failure.client_is_gone() {
            Error::explain(ErrorType::ConnectionClosed, message).into_down()
        } else {
            Error::explain(ErrorType::Custom("BrokenOff"), message).into_up()
        };
        self.failure = Some(failure);
        error
    }

    /// What one of Pingora's errors means to the client.
    pub fn failure(&self, error: &Error) -> Failure {
        match (&self.failure, error.esource()) {
            (Some(failure), _) => failure.clone(),
            (None, ErrorSource::Downstream) => Failure::client_left(),
            _ => Failure::internal("Kindred could not answer the request."),
        }
    }

    /// What ends a stream that has begun and does not go on; `None` where nothing can be added to it,
    /// or nobody is left to read it.
    pub fn break_off(&mut self, failure: &Failure) -> Option<Bytes> {
        if failure.client_is_gone() {
            return None;
        }
        let Some(relay) = &self.relay else {
            // Only Kindred's own comments have gone out.
            return Some(failure.event().into());
        };
        let told = relay::broken_off(failure);
        self.outcome = Some(told.outcome);
        relay.break_off(&told)
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
        if let Some(charge) = self.charge.take() {
            // Without a good answer of any worker there was no prefill.
            let none = self.context.is_none() && self.relay.is_none();
            match self.prompt_tokens.or(none.then_some(0)) {
                Some(tokens) => charge.settle(tokens),
                None => drop(charge),
            }
        }
        let metrics = telemetry::metrics();
        metrics.requests.inc((self.route, self.fleet, outcome));
        metrics
            .request_duration
            .observe(self.route, self.started.elapsed());
        let decided = self.generation.as_mut();
        if let Some(leg) = decided.filter(|leg| leg.label() == self.fleet)
            && let Some(said) = observe::of_outcome(outcome)
        {
            leg.observe(said);
        }
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
            request_id = self.trace.request_id(),
            route = self.route.as_str(),
            fleet = self.fleet.as_str(),
            outcome = outcome.as_str(),
            status,
            "request ended"
        );
        if let Some(log) = access_log::current() {
            self.log(&log, status, outcome);
        }
    }

    fn log(&self, log: &AccessLog, status: Option<u16>, outcome: Outcome) {
        let elapsed = self.started.elapsed();
        let generation = self.generation.as_ref().map(GenerationLeg::instance);
        log.write(&Entry {
            client: self.client.as_deref(),
            route: self.route.as_str(),
            fleet: self.fleet.as_str(),
            status,
            stream: self.stream,
            session: self.said.session.as_deref(),
            parent: self.said.parent.as_deref(),
            parent_claim: self.said.claim.map(ClaimOutcome::as_str),
            context: self.context.as_ref().map(|context| &*context.alias),
            generation: generation.map(|instance| &*instance.alias),
            ..Entry::new(self.trace.request_id(), outcome.as_str(), elapsed)
        });
    }
}
