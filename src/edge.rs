//! The edge: one request in, a context leg and a generation leg out.
//!
//! It decides nothing by itself: the gateway admits, `routing` picks instances, `wire` writes and
//! signs bodies and headers; this room puts them in order on Pingora's proxy path and answers for
//! whatever goes wrong. What reaches a worker is built here from nothing, never copied from a
//! client's header fields.

mod conditional;
mod context_leg;
mod destination;
mod discovery;
mod failure;
mod generation_first;
mod generation_leg;
mod kv_cache;
mod live;
mod orchestrate;
mod plan;
mod pool;
mod relay;
mod request;
mod retry;
mod server_info;
mod signing;
mod stream;
mod surface;
mod tokenizer;
mod tokens;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use pingora::{
    BError, Error, ErrorSource, Result,
    connectors::ConnectorOptions,
    http::{RequestHeader, ResponseHeader},
    proxy::{FailToProxy, ProxyHttp, Session},
    upstreams::peer::HttpPeer,
};
use tokio::sync::watch;

use crate::{
    config::Config,
    http::{
        body::{Budget, bound_idleness, is_replayable},
        in_flight::Requests,
        reply, summary,
        upstream::{self, CallError, Upstreams},
    },
    telemetry::{self, labels::Outcome},
};
use context_leg::FinalAnswer;
use discovery::Discovery;
pub use discovery::following;
use generation_first::deliver;
use generation_leg::GenerationLeg;
use kv_cache::KvCaches;
pub use kv_cache::learning;
use live::Live;
pub use live::Unready;
use orchestrate::Next;
pub use plan::Plan;
use server_info::ServerInfos;
use surface::Models;
use tokenizer::Tokenizer;
pub use tokenizer::TokenizerError;
use tokens::Tokens;

/// The edge's state over all requests.
pub struct Edge {
    live: ArcSwap<Live>,
    /// Counts changes of configuration and of membership.
    changed: watch::Sender<u64>,
    discovery: Discovery,
    upstreams: Arc<Upstreams>,
    server_infos: ServerInfos,
    caches: Arc<KvCaches>,
    tokens: Tokens,
    models: Models,
    budget: Arc<Budget>,
    in_flight: Requests,
}

/// What of a configuration is read from further files, before anything is changed.
pub struct Prepared(Vec<Option<Arc<Tokenizer>>>);

/// Whether the files that `config` names for the edge can be used.
///
/// # Errors
/// The key and the file that cannot.
pub fn check(config: &Config) -> Result<(), TokenizerError> {
    tokenizer::read(config, &[]).map(drop)
}

impl Edge {
    /// The edge that a configuration describes; `None` if it describes none.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn new(
        config: &Arc<Config>,
        options: ConnectorOptions,
    ) -> Result<Option<Self>, TokenizerError> {
        let tokenizers = tokenizer::read(config, &[])?;
        let upstreams = Arc::new(Upstreams::new(options));
        Ok(Live::build(config, None, tokenizers).map(|live| Self {
            live: ArcSwap::from_pointee(live),
            changed: watch::Sender::default(),
            discovery: Discovery::default(),
            server_infos: ServerInfos::default(),
            caches: Arc::new(KvCaches::new(upstreams.clone())),
            tokens: Tokens::new(upstreams.clone()),
            models: Models::default(),
            upstreams,
            budget: Arc::default(),
            in_flight: Requests::default(),
        }))
    }

    /// Reads what a new configuration names; nothing changes yet.
    ///
    /// # Errors
    /// A tokenizer that cannot be used.
    pub fn prepare(&self, config: &Config) -> Result<Prepared, TokenizerError> {
        let running = self.live.load().tokenizers();
        tokenizer::read(config, &running).map(Prepared)
    }

    /// Swaps in a new configuration; bindings, counts and what clients were seen with survive.
    pub fn reload(&self, config: &Arc<Config>, prepared: Prepared) {
        if let Some(live) = Live::build(config, Some(&self.live.load()), prepared.0) {
            self.live.store(Arc::new(live));
            self.changed.send_modify(|version| *version += 1);
        }
    }

    /// Requests that have not ended.
    pub fn requests_in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// Why requests cannot be served as configured, if they cannot.
    pub fn unready(&self) -> Option<Unready> {
        self.live.load().unready()
    }

    /// Brings the gauges that follow from state up to date.
    pub fn export(&self) {
        telemetry::metrics()
            .body_budget
            .set(i64::try_from(self.budget.used()).unwrap_or(i64::MAX));
        self.live.load().export();
    }
}

/// The edge as Pingora runs it.
pub struct EdgeProxy(pub Arc<Edge>);

impl EdgeProxy {
    async fn answer(
        &self,
        session: &mut Session,
        plan: &mut Plan,
        answer: FinalAnswer,
    ) -> Result<()> {
        plan.outcome = Some(Outcome::Ok);
        let headers = plan.answer_fields();
        reply::write(session, 200, answer.content_type, &headers, answer.body).await
    }
}

#[async_trait]
impl ProxyHttp for EdgeProxy {
    type CTX = Plan;

    fn new_ctx(&self) -> Plan {
        let edge = &self.0;
        Plan::new(
            edge.live.load_full(),
            edge.caches.clone(),
            edge.in_flight.enter(),
        )
    }

    async fn early_request_filter(&self, session: &mut Session, plan: &mut Plan) -> Result<()> {
        session.set_pipelining_enabled(true);
        session.set_ignore_info_resp(true);
        bound_idleness(session);
        session.set_write_timeout(Some(plan.live.config.timeouts.write));
        if let Some(cors) = &plan.live.config.cors {
            let fields = surface::cors::on_every_answer(cors, &session.req_header().headers);
            plan.on_every_answer.extend(fields);
        }
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, plan: &mut Plan) -> Result<bool> {
        let failure = match self.0.orchestrate(session, plan).await {
            Ok(Next::Generate) => return Ok(false),
            Ok(Next::Answer(answer)) => {
                self.answer(session, plan, answer).await?;
                return Ok(true);
            }
            Ok(Next::Tell(told)) => {
                told.write(session, plan).await?;
                return Ok(true);
            }
            Ok(Next::Deliver(ready, watch)) => {
                deliver(session, plan, *ready, watch).await?;
                return Ok(true);
            }
            Err(failure) => failure,
        };
        plan.outcome = Some(failure.outcome);
        if failure.client_is_gone() {
            return Err(Error::new_down(pingora::ErrorType::ConnectionClosed));
        }
        failure.write(session, &plan.on_every_answer).await?;
        Ok(true)
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        plan: &mut Plan,
    ) -> Result<Box<HttpPeer>> {
        let live = plan.live.clone();
        plan.fleet = plan.generation()?.label();
        let leg = plan.generation()?;
        loop {
            leg.attempt_starts();
            let address = leg.instance().address.clone();
            match self.0.upstreams.peer(&address, &live.config.timeouts).await {
                Ok(peer) => return Ok(Box::new(peer)),
                Err(error) if !leg.move_on() => return Err(error.into_pingora()),
                Err(_) => {}
            }
        }
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        upstream: &mut RequestHeader,
        plan: &mut Plan,
    ) -> Result<()> {
        *upstream = plan.generation()?.request_head()?;
        Ok(())
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        plan: &mut Plan,
    ) -> Result<()> {
        plan.body_goes_on(body.as_deref().unwrap_or_default())?;
        // `None` would end the upstream body early, so what the client sent becomes nothing.
        *body = Some(if end_of_stream {
            plan.generation()?.body()
        } else {
            Bytes::new()
        });
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        head: &mut ResponseHeader,
        plan: &mut Plan,
    ) -> Result<()> {
        if !head.status.is_informational() {
            plan.generation_answers();
        }
        plan.relay_head(head)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        _plan: &mut Plan,
    ) -> Result<()> {
        reply::frame_for_old_clients(session, head);
        Ok(())
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        plan: &mut Plan,
    ) -> Result<Option<std::time::Duration>> {
        plan.relay(body, end_of_stream)?;
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        plan: &mut Plan,
        mut error: BError,
    ) -> BError {
        let leg = plan.generation.as_mut();
        let again = leg.is_some_and(GenerationLeg::move_on);
        error.set_retry(again);
        error
    }

    /// A pooled connection that dies before the worker said anything is replaced; nothing else is
    /// sent twice, because a generation worker may have begun.
    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: BError,
        plan: &mut Plan,
        client_reused: bool,
    ) -> BError {
        let stale = client_reused
            && *error.esource() == ErrorSource::Upstream
            && upstream::classify_ref(&error) == CallError::Reset
            && session.response_written().is_none()
            && is_replayable(session)
            && plan
                .generation
                .as_mut()
                .is_some_and(|leg| leg.may_replace_connection());
        error.retry = pingora::RetryType::Decided(stale);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        plan: &mut Plan,
    ) -> FailToProxy {
        let failure = plan.failure(error);
        plan.outcome = Some(failure.outcome);
        // Pingora closes the connection after this, so what is written now has to say so.
        session.set_keepalive(None);
        let status = if session.response_written().is_some() {
            if let Some(event) = plan.break_off(&failure) {
                // The client may be gone as well; then there is nobody to tell.
                let _ = session.write_response_body(Some(event), true).await;
            }
            0
        } else {
            if !failure.client_is_gone() {
                let _ = failure.write(session, &plan.on_every_answer).await;
            }
            failure.status
        };
        FailToProxy {
            error_code: status,
            can_reuse_downstream: false,
        }
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, plan: &mut Plan) {
        let status = session.response_written().map(|head| head.status.as_u16());
        plan.finish(status, error);
    }

    fn suppress_error_log(&self, _session: &Session, plan: &Plan, _error: &Error) -> bool {
        plan.outcome == Some(Outcome::ClientCancel)
    }

    fn request_summary(&self, session: &Session, _plan: &Plan) -> String {
        summary(session)
    }
}
