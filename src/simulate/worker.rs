//! A simulated TensorRT-LLM worker behind HTTP/1.1 and cleartext HTTP/2.
//!
//! It has upstream's routes, refuses what upstream's strict request models refuse, and answers with
//! a text that follows from the prompt alone, so both legs of a request and the same request sent
//! to an aggregated worker give the same words. Under `/simulate/` it shows what it saw and takes
//! orders to misbehave. It must never accept a request that a real worker would refuse.

mod answer;
pub mod disagg;
pub mod fault;
mod fields;
mod handover;
mod inference;
mod inspect;
mod prompt;
pub mod recorder;
mod reply;
pub mod request;
mod stream;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use http::HeaderMap;
use pingora::{
    apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream},
    protocols::http::ServerSession,
    server::ShutdownWatch,
    services::listening::Service,
};
use tokio::time::{Instant, timeout};

use super::{
    engine::{Engine, EngineConfig},
    transfer::Exchange,
};
use crate::wire::{Role, disagg::Endpoint};
use fault::Control;
use recorder::Recorder;
use reply::Ended;

/// A request as the worker's own check of the internal headers sees it.
#[derive(Debug)]
pub struct Presented<'a> {
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The body's bytes, a JSON object that upstream's request model accepts.
    pub body: &'a [u8],
    /// The route it came by.
    pub endpoint: Endpoint,
    /// The worker's role.
    pub role: Role,
}

/// Checks the internal headers as a worker with `internal_request_auth_key` does; the error is the
/// message of the 400 (specification section 5.8).
pub type Verifier = Arc<dyn Fn(&Presented<'_>) -> Result<(), String> + Send + Sync>;

/// What a simulated worker is.
#[derive(Clone)]
pub struct SimulatedWorkerConfig {
    /// Name in its own reports, such as `context-0`.
    pub name: String,
    /// Role; decides which `disaggregated_params.request_type` is served.
    pub role: Role,
    /// The model that `/v1/models` lists. As upstream, requests may name any.
    pub model: String,
    /// Size and speed of the engine.
    pub engine: EngineConfig,
    /// Tokens after which an answer ends by itself (`finish_reason` `stop`), unless the request
    /// says `ignore_eos` or a larger `min_tokens`.
    pub answer_tokens: u32,
    /// Most tokens of prompt and answer together.
    pub max_sequence: usize,
    /// How long a generation request waits for the cache of its prompt.
    pub transfer_timeout: Duration,
    /// Where the cache of computed prompts is handed over; one for all workers of a fleet. `None`
    /// (workers in several processes): the opaque state alone is trusted.
    pub exchange: Option<Arc<Exchange>>,
    /// The check of internal headers; `None`: a worker without a key, which reads none of them.
    pub verify: Option<Verifier>,
    /// Where the requests that came are noted.
    pub recorder: Arc<Recorder>,
    /// What it is told to do wrong.
    pub control: Arc<Control>,
    /// How long an idle connection is kept, whole seconds.
    pub keep_alive: Duration,
    /// Largest body, bytes.
    pub max_body: usize,
}

impl SimulatedWorkerConfig {
    /// A worker of that name and role with upstream's defaults, one rank and no delays.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
            model: "simulated".to_owned(),
            engine: EngineConfig::default(),
            answer_tokens: 16,
            max_sequence: 131_072,
            transfer_timeout: Duration::from_secs(2),
            exchange: None,
            verify: None,
            recorder: Arc::new(Recorder::default()),
            control: Arc::default(),
            keep_alive: Duration::from_secs(5),
            max_body: 64 << 20,
        }
    }
}

/// A simulated worker, to be served by a Pingora service.
pub struct SimulatedWorker {
    config: SimulatedWorkerConfig,
    engine: Arc<Engine>,
    options: HttpServerOptions,
    started: Instant,
}

/// A Pingora service of one simulated worker; the server adds the address to listen on.
pub fn service(config: SimulatedWorkerConfig) -> Service<SimulatedWorker> {
    let name = format!("simulated worker {}", config.name);
    Service::new(name, SimulatedWorker::new(config))
}

impl SimulatedWorker {
    /// A worker with an empty cache.
    pub fn new(config: SimulatedWorkerConfig) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        Self {
            engine: Engine::new(config.engine.clone()),
            options,
            started: Instant::now(),
            config,
        }
    }

    /// The worker's engine, to look at its load and caches.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    async fn answer(&self, session: &mut ServerSession) -> Result<(), Ended> {
        let path = session.req_header().uri.path().to_owned();
        match Endpoint::of_path(&path) {
            Some(endpoint) => self.infer(session, endpoint).await,
            None => self.inspect(session, &path).await,
        }
    }
}

#[async_trait]
impl HttpServerApp for SimulatedWorker {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let reading = session.read_request();
        let read = match self.config.control.manners().idle {
            Some(idle) => timeout(idle, reading).await.ok()?,
            None => reading.await,
        };
        if !read.is_ok_and(|read| read) {
            return None;
        }
        let keep = (!*shutdown.borrow()).then_some(self.config.keep_alive.as_secs());
        session.set_keepalive(keep);
        session.set_pipelining_enabled(true);
        if self.answer(&mut session).await.is_err() {
            session.shutdown().await;
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let reusable = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(reusable, settings))
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}

#[cfg(test)]
mod tests;
