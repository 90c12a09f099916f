//! The worker filter: stands in front of one worker, verifies, places, tells the rank.
//!
//! It decides whether a request's internal headers are genuine (`verdict`), which attention-DP rank
//! a request runs on (`placement`, with the loads in `ranks`) and how the engine learns of it
//! (`delivery`). Everything else passes, without internal headers. It must never let an affinity
//! header count that is not signed, nor a body name a parent or a rank in its place, nor a request around the checks (`path`), nor change a byte of a
//! body.

mod delivery;
mod passing_body;
mod path;
pub mod placement;
mod ranks;
mod verdict;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use pingora::{
    BError, Error, ErrorSource, Result,
    connectors::ConnectorOptions,
    http::{RequestHeader, ResponseHeader},
    proxy::{FailToProxy, ProxyHttp, Session},
    upstreams::peer::HttpPeer,
};

use crate::{
    config::{CLIENT_KEEP_ALIVE, Config, WorkerFilterConfig},
    http::{
        body::{self, Budget, ReadLimits},
        guard,
        in_flight::{InFlight, Requests},
        reply::{self, Failure},
        summary,
        upstream::{self, CallError, Upstreams, WorkerTls},
    },
    wire::{disagg::Endpoint, headers, signature::SigningKeys, verify::Verifier},
};
use passing_body::PassingBody;
use ranks::{RankLease, Ranks};
use verdict::Verdict;

/// One worker filter over all requests.
pub struct Filter {
    name: String,
    live: ArcSwap<Live>,
    /// None while there is no placement; they outlive every configuration.
    ranks: Ranks,
    upstreams: Upstreams,
    budget: Arc<Budget>,
    in_flight: Requests,
}

/// One configuration at work.
struct Live {
    config: Arc<Config>,
    settings: WorkerFilterConfig,
    verifier: Verifier,
}

impl Filter {
    pub fn new(
        config: &Arc<Config>,
        settings: &WorkerFilterConfig,
        options: ConnectorOptions,
        tls: WorkerTls,
    ) -> Self {
        let ranks = Ranks::new(&settings.name);
        ranks.reconfigure(settings.placement.as_ref());
        Self {
            name: settings.name.clone(),
            live: ArcSwap::from_pointee(Live::build(config, settings)),
            ranks,
            upstreams: Upstreams::new(options, tls),
            budget: Arc::default(),
            in_flight: Requests::default(),
        }
    }

    /// The filter's name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests that have not ended.
    pub fn requests_in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// Swaps in a new configuration; bindings and loads of ranks that still exist survive.
    pub fn reload(&self, config: &Arc<Config>, settings: &WorkerFilterConfig) {
        self.live.store(Arc::new(Live::build(config, settings)));
        self.ranks.reconfigure(settings.placement.as_ref());
    }

    /// Brings the gauges that follow from state up to date.
    pub fn export(&self) {
        self.ranks.export();
    }
}

impl Live {
    fn build(config: &Arc<Config>, settings: &WorkerFilterConfig) -> Self {
        Self {
            config: config.clone(),
            verifier: Verifier {
                role: settings.server_role,
                profile: settings.signing_profile,
                keys: SigningKeys::of(&settings.internal_request_auth_keys),
            },
            settings: settings.clone(),
        }
    }
}

/// The filter as Pingora runs it.
pub struct FilterProxy(pub Arc<Filter>);

/// One request at the filter.
pub struct Passage {
    live: Arc<Live>,
    /// Set for the requests that are verified and placed.
    checked: Option<Checked>,
    replaced_connection: bool,
    client_left: bool,
    /// Why the rest of the body was not taken.
    refusal: Option<Failure>,
    _in_flight: InFlight,
}

impl Passage {
    /// The rank that the request was placed on.
    fn rank(&self) -> Option<u32> {
        let rank = self.checked.as_ref()?.rank.as_ref()?;
        Some(rank.rank())
    }
}

struct Checked {
    body: PassingBody,
    /// The internal headers that the worker gets.
    kept: Vec<&'static str>,
    rank: Option<RankLease>,
}

impl FilterProxy {
    /// Verifies and places a request that an engine is to run; `None` for all others.
    async fn check(
        &self,
        session: &mut Session,
        passage: &Passage,
    ) -> Result<Option<Checked>, Failure> {
        let live = &passage.live;
        guard::check(session, &live.config.limits)?;
        let Some(endpoint) = checked_endpoint(session.req_header()) else {
            refuse_other_spelling(session.req_header())?;
            return Ok(None);
        };
        let limits = ReadLimits {
            max_body: live.config.limits.max_body.of(endpoint),
            budget: live.config.limits.body_budget,
            deadline: live.config.timeouts.read_body,
            min_rate: live.config.limits.min_body_rate,
        };
        guard::refuse_nominations(&session.req_header().headers, headers::is_internal)?;
        let body = body::read(session, limits, &self.0.budget).await?;
        let bytes = body.bytes.clone();
        let headers = &session.req_header().headers;
        let places = live.settings.placement.is_some();
        let verdict = Verdict::of(&live.verifier, places, headers, &bytes)?;
        let rank = self.0.ranks.place(&verdict.ask(endpoint));
        let kept = verdict.kept();
        Ok(Some(Checked {
            body: PassingBody::new(body),
            kept,
            rank,
        }))
    }
}

/// The endpoint whose requests are verified and placed; everything else passes.
fn checked_endpoint(head: &RequestHeader) -> Option<Endpoint> {
    Endpoint::of_path(head.uri.path()).filter(|_| head.method == Method::POST)
}

/// Refuses a request that the worker may run though it is not spelled as those that are checked.
fn refuse_other_spelling(head: &RequestHeader) -> Result<(), Failure> {
    if !head.method.as_str().eq_ignore_ascii_case("post") {
        return Ok(());
    }
    let Some(endpoint) = path::means(head.raw_path()) else {
        return Ok(());
    };
    let message = format!(
        "This request line is another spelling of POST {}; send it as exactly that.",
        endpoint.path()
    );
    Err(Failure::bad_request("path_spelling", message))
}

#[async_trait]
impl ProxyHttp for FilterProxy {
    type CTX = Passage;

    fn new_ctx(&self) -> Passage {
        Passage {
            live: self.0.live.load_full(),
            checked: None,
            replaced_connection: false,
            client_left: false,
            refusal: None,
            _in_flight: self.0.in_flight.enter(),
        }
    }

    async fn early_request_filter(
        &self,
        session: &mut Session,
        passage: &mut Passage,
    ) -> Result<()> {
        crate::http::connection::head_is_read();
        session.set_pipelining_enabled(true);
        body::bound_idleness(session, CLIENT_KEEP_ALIVE);
        session.set_write_timeout(Some(passage.live.config.timeouts.write));
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, passage: &mut Passage) -> Result<bool> {
        let failure = match self.check(session, passage).await {
            Ok(checked) => {
                passage.checked = checked;
                return Ok(false);
            }
            Err(failure) => failure,
        };
        passage.client_left = failure.client_is_gone();
        if passage.client_left {
            return Err(Error::new_down(pingora::ErrorType::ConnectionClosed));
        }
        verdict::refuse(session, &failure).await?;
        Ok(true)
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        passage: &mut Passage,
    ) -> Result<Box<HttpPeer>> {
        let live = &passage.live;
        match self
            .0
            .upstreams
            .peer(&live.settings.worker, &live.config.timeouts)
            .await
        {
            Ok(peer) => Ok(Box::new(peer)),
            Err(error) => Error::e_explain(pingora::ErrorType::ConnectError, error.to_string())
                .map_err(|error| error.into_up()),
        }
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        head: &mut RequestHeader,
        passage: &mut Passage,
    ) -> Result<()> {
        let rank = passage.rank();
        let checked = passage.checked.as_ref();
        delivery::keep(head, checked.map_or(&[], |checked| &checked.kept));
        delivery::by_header(head, rank)?;
        if let Some(checked) = checked {
            delivery::frame(head, checked.body.length())?;
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        passage: &mut Passage,
    ) -> Result<()> {
        if let Some(checked) = &mut passage.checked {
            if let Err(failure) = checked.body.append(body.as_deref().unwrap_or_default()) {
                passage.refusal = Some(failure);
                return Err(Error::new_down(pingora::ErrorType::InvalidHTTPHeader));
            }
            // `None` would end the upstream body early.
            *body = Some(if end_of_stream {
                checked.body.whole()
            } else {
                Bytes::new()
            });
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        head: &mut ResponseHeader,
        passage: &mut Passage,
    ) -> Result<()> {
        delivery::tell_edge(head, passage.rank())
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: BError,
        passage: &mut Passage,
        client_reused: bool,
    ) -> BError {
        let stale = client_reused
            && passage.checked.is_some()
            && *error.esource() == ErrorSource::Upstream
            && upstream::classify_ref(&error) == CallError::Reset
            && session.response_written().is_none()
            && body::is_replayable(session)
            && !std::mem::replace(&mut passage.replaced_connection, true);
        error.retry = pingora::RetryType::Decided(stale);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        passage: &mut Passage,
    ) -> FailToProxy {
        let failure = match (passage.refusal.take(), error.esource()) {
            (Some(refusal), _) => refusal,
            (None, ErrorSource::Upstream) => {
                reply::upstream_failure("worker", upstream::classify_ref(error))
            }
            (None, ErrorSource::Downstream) => match &passage.checked {
                Some(checked) => checked.body.failure(error),
                None => Failure::client_left(),
            },
            _ => Failure::internal("The worker filter could not forward the request."),
        };
        passage.client_left |= failure.client_is_gone();
        // Pingora closes the connection after this, so what is written now has to say so.
        session.set_keepalive(None);
        if session.response_written().is_none() && !failure.client_is_gone() {
            // The client may be gone as well; then there is nobody to tell.
            let _ = verdict::refuse(session, &failure).await;
        }
        FailToProxy {
            error_code: failure.status,
            can_reuse_downstream: false,
        }
    }

    async fn logging(&self, _session: &mut Session, _error: Option<&Error>, passage: &mut Passage) {
        passage.checked = None;
    }

    fn suppress_error_log(&self, _session: &Session, passage: &Passage, _error: &Error) -> bool {
        passage.client_left
    }

    fn request_summary(&self, session: &Session, _passage: &Passage) -> String {
        summary(session)
    }
}
