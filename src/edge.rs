//! The edge: one request in, a context leg and a generation leg out.
//!
//! It decides nothing by itself: the gateway admits, `routing` picks instances, `wire` writes and
//! signs bodies and headers; this room puts them in order inside Pingora's `request_filter` and
//! answers for whatever goes wrong. Both legs are side calls. What reaches a worker is built here from
//! nothing, never copied from a client's header fields.

mod client;
mod client_limits;
mod conditional;
mod context_leg;
mod deliver;
mod destination;
mod discovery;
mod failure;
mod generation_first;
mod generation_leg;
mod identity;
mod incoming;
mod instances;
mod kv_cache;
mod live;
mod observe;
mod orchestrate;
mod places;
mod plan;
mod pool;
mod probes;
mod relay;
mod request;
mod retry;
mod server_info;
mod signing;
mod stream;
mod surface;
mod tokenizer;
mod tokens;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::{
    Error, ErrorType, Result,
    connectors::ConnectorOptions,
    proxy::{FailToProxy, ProxyHttp, Session},
    upstreams::peer::HttpPeer,
};
use tokio::sync::watch;

use crate::{
    config::Config,
    http::{
        body::{Budget, bound_idleness},
        in_flight::Requests,
        reply::{self, Failure},
        summary,
        upstream::{Upstreams, WorkerTls},
    },
    telemetry::{self, access_log, labels::Outcome},
};
use client::Client;
use context_leg::FinalAnswer;
use deliver::deliver;
use discovery::Discovery;
pub use discovery::following;
pub use identity::identity;
use incoming::Incoming;
pub use instances::InstanceView;
use kv_cache::KvCaches;
pub use kv_cache::learning;
use live::Live;
pub use live::Unready;
use orchestrate::Next;
pub use plan::Plan;
pub use probes::probes;
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
        tls: WorkerTls,
    ) -> Result<Option<Self>, TokenizerError> {
        let tokenizers = tokenizer::read(config, &[])?;
        let upstreams = Arc::new(Upstreams::new(options, tls));
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
        let previous = self.live.load_full();
        if let Some(live) = Live::build(config, Some(&previous), prepared.0) {
            live.succeeds(&previous);
            self.live.store(Arc::new(live));
            self.changed.send_modify(|version| *version += 1);
        }
    }

    /// How long a client's connection may be idle.
    pub fn client_keep_alive(&self) -> Duration {
        self.live.load().edge.client_keep_alive
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
        let log = access_log::current();
        let dropped = log.map_or(0, |log| log.dropped());
        telemetry::metrics()
            .access_log_dropped
            .set(i64::try_from(dropped).unwrap_or(i64::MAX));
        self.live.load().export();
    }
}

/// The edge as Pingora runs it.
pub struct EdgeProxy(pub Arc<Edge>);

impl EdgeProxy {
    /// A request's whole way.
    async fn serve(&self, session: &mut Session, plan: &mut Plan) -> Result<(), Failure> {
        let (incoming, mut client) = match self.0.orchestrate(session, plan).await? {
            Next::Tell(told) => {
                let written = told.write(session, plan).await;
                return written.map_err(|_| Failure::client_left());
            }
            Next::Answer(answer, mut client) => {
                return finish(session, plan, &mut client, answer).await;
            }
            Next::Deliver(incoming, client) => (*incoming, client),
            Next::Generate(rest, mut client) => {
                client.finish_body(session, rest).await?;
                let incoming = Incoming::of(&self.0.upstreams, plan);
                (client.attend(session, incoming).await??, client)
            }
        };
        deliver(session, plan, incoming, &mut client).await
    }
}

/// Writes an answer that needs no generation leg.
async fn finish(
    session: &mut Session,
    plan: &mut Plan,
    client: &mut Client,
    answer: FinalAnswer,
) -> Result<(), Failure> {
    if reply::has_begun(session) {
        return client.write(session, Some(answer.body), true).await;
    }
    let headers = plan.answer_fields();
    reply::write(session, 200, answer.content_type, &headers, answer.body)
        .await
        .map_err(|_| Failure::client_left())
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
        crate::http::connection::head_is_read();
        session.set_pipelining_enabled(true);
        bound_idleness(session, plan.live.edge.client_keep_alive);
        session.set_write_timeout(Some(plan.live.config.timeouts.write));
        plan.begins(&session.req_header().headers);
        if let Some(cors) = &plan.live.config.cors {
            let fields = surface::cors::on_every_answer(cors, &session.req_header().headers);
            plan.on_every_answer.extend(fields);
        }
        Ok(())
    }

    /// Everything is answered here; nothing goes on to Pingora's own forwarding.
    async fn request_filter(&self, session: &mut Session, plan: &mut Plan) -> Result<bool> {
        let Err(failure) = self.serve(session, plan).await else {
            return Ok(true);
        };
        if failure.client_is_gone() || reply::has_begun(session) {
            return Err(plan.fail(failure));
        }
        plan.outcome = Some(failure.outcome);
        let written = plan.tell(session, &failure).await;
        written.map_err(|error| error.into_down())?;
        Ok(true)
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _plan: &mut Plan,
    ) -> Result<Box<HttpPeer>> {
        Error::e_explain(ErrorType::InternalError, "nothing is forwarded")
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
        let status = if reply::has_begun(session) {
            if let Some(event) = plan.break_off(&failure) {
                // The client may be gone as well; then there is nobody to tell.
                let _ = session.write_response_body(Some(event), true).await;
            }
            0
        } else {
            if !failure.client_is_gone() {
                let _ = plan.tell(session, &failure).await;
            }
            failure.status
        };
        FailToProxy {
            error_code: status,
            can_reuse_downstream: false,
        }
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, plan: &mut Plan) {
        let head = session.response_written();
        let head = head.filter(|head| !head.status.is_informational());
        plan.finish(head.map(|head| head.status.as_u16()), error);
    }

    fn suppress_error_log(&self, _session: &Session, plan: &Plan, _error: &Error) -> bool {
        plan.outcome == Some(Outcome::ClientCancel)
    }

    fn request_summary(&self, session: &Session, _plan: &Plan) -> String {
        summary(session)
    }
}
