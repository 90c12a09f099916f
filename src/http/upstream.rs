//! Calls a worker outside Pingora's proxy path, and describes workers to it.
//!
//! Both legs are such side calls, on Pingora's own pooled connector, so that pooling, timeouts and
//! errors are the same on both: one request, and a bounded answer or one that is read part by part. Dropping a call closes
//! its connection, which is the only signal by which a worker learns that nobody waits any more.

mod streaming;
mod worker_tls;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header};
use parking_lot::Mutex;
use pingora::{
    Error, ErrorType,
    connectors::{ConnectorOptions, http::Connector},
    http::{RequestHeader, ResponseHeader},
    protocols::http::client::HttpSession,
    upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy},
};

use tokio::time::timeout;

use crate::config::Timeouts;
pub use streaming::Streaming;
pub use worker_tls::{Material, WorkerTls};

/// How long a looked-up host name is believed.
const NAME_LIFETIME: Duration = Duration::from_secs(5);

/// Why a worker gave no answer. Never names the worker: callers know which one it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("its host name could not be resolved")]
    Unresolved,
    #[error("no connection could be made")]
    Connect,
    /// Why is in the log: it is the operator's affair.
    #[error("no TLS connection could be made")]
    Tls,
    #[error("the connection ended before the answer did")]
    Reset,
    /// A pooled connection ended before the worker said anything: most likely it was dead already,
    /// and the worker has never seen the request.
    #[error("the connection ended before the answer began")]
    Unheard,
    /// The connection ended within the head of the answer.
    #[error("the connection ended as soon as the answer had begun")]
    Cut,
    #[error("it did not answer in time")]
    Timeout,
    #[error("its answer is larger than limits.max_answer")]
    TooLarge,
    #[error("its answer is not HTTP")]
    Protocol,
}

/// One request to a worker.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    pub method: Method,
    /// `host:port`.
    pub address: &'a str,
    pub path: &'a str,
    /// Header fields beside `Host`, `Content-Type` and `Content-Length`.
    pub headers: &'a [(&'static str, Vec<u8>)],
    pub body: Bytes,
    /// Bytes of the answer's body at most, where it is read whole.
    pub max_answer: usize,
    /// Whether it must not go out on a pooled connection, which may be dead already.
    pub fresh: bool,
}

impl<'a> Call<'a> {
    /// A GET without header fields of its own.
    pub fn get(address: &'a str, path: &'a str, max_answer: usize) -> Self {
        Self {
            method: Method::GET,
            address,
            path,
            headers: &[],
            body: Bytes::new(),
            max_answer,
            fresh: false,
        }
    }
}

/// A worker's whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// From the beginning of the call until the head was in.
    pub head_after: Duration,
}

/// The pooled connections to all workers, for side calls, and their resolved addresses.
pub struct Upstreams {
    connector: Connector,
    tls: WorkerTls,
    names: Mutex<HashMap<Arc<str>, (SocketAddr, Instant)>>,
}

impl Upstreams {
    /// A pool of its own; Pingora's proxy path keeps another.
    pub fn new(options: ConnectorOptions, tls: WorkerTls) -> Self {
        Self {
            connector: Connector::new(Some(options)),
            tls,
            names: Mutex::new(HashMap::new()),
        }
    }

    /// How these workers are connected to, for another pool.
    pub fn tls(&self) -> WorkerTls {
        self.tls.clone()
    }

    /// Describes a worker to Pingora: address, TLS, timeouts, no protocol upgrades.
    ///
    /// # Errors
    /// [`CallError::Unresolved`] when its host name is unknown, or not known within the time for
    /// connecting; [`CallError::Tls`] when there is no name to verify it by.
    pub async fn peer(&self, address: &str, timeouts: &Timeouts) -> Result<HttpPeer, CallError> {
        let socket = self.resolve(address, timeouts.connect).await?;
        let mut peer = self.tls.peer(address, socket)?;
        peer.options.connection_timeout = Some(timeouts.connect);
        peer.options.total_connection_timeout = Some(timeouts.connect);
        peer.options.read_timeout = Some(timeouts.silence);
        peer.options.write_timeout = Some(timeouts.write);
        peer.options.idle_timeout = Some(timeouts.idle_upstream);
        peer.options.http_upstream_request_policy = HttpUpstreamRequestPolicy::deny_upgrades();
        Ok(peer)
    }

    async fn resolve(&self, address: &str, patience: Duration) -> Result<SocketAddr, CallError> {
        if let Ok(parsed) = address.parse() {
            return Ok(parsed);
        }
        if let Some((known, at)) = self.names.lock().get(address)
            && at.elapsed() < NAME_LIFETIME
        {
            return Ok(*known);
        }
        let found = timeout(patience, tokio::net::lookup_host(address))
            .await
            .ok()
            .and_then(|found| found.ok()?.next())
            .ok_or(CallError::Unresolved)?;
        // Bounded: addresses come from the configuration, never from a request.
        self.names
            .lock()
            .insert(address.into(), (found, Instant::now()));
        Ok(found)
    }

    /// Sends one request and reads its whole answer. Cancel-safe: dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// Any [`CallError`]; a status of 400 or above is an answer, not an error.
    pub async fn call(&self, call: &Call<'_>, timeouts: &Timeouts) -> Result<Answer, CallError> {
        let started = Instant::now();
        let peer = self.peer(call.address, timeouts).await?;
        timeout(timeouts.context, self.attempt(&peer, call, started))
            .await
            .map_err(|_| CallError::Timeout)?
    }

    async fn attempt(
        &self,
        peer: &HttpPeer,
        call: &Call<'_>,
        started: Instant,
    ) -> Result<Answer, CallError> {
        let (mut session, reused) = self.connect(peer, call.fresh).await?;
        let answer = exchange(&mut session, reused, peer, call, started).await?;
        self.connector
            .release_http_session(session, peer, peer.options.idle_timeout)
            .await;
        Ok(answer)
    }

    /// A connection, and whether it is a pooled one. Where it must be a new one it is pooled later
    /// all the same.
    async fn connect(
        &self,
        peer: &HttpPeer,
        fresh: bool,
    ) -> Result<(HttpSession, bool), CallError> {
        /// Connections are pooled by group among other things, and none is ever pooled in this one.
        const NOT_POOLED: u64 = 1;
        let session = if fresh {
            let mut peer = peer.clone();
            peer.group_key = NOT_POOLED;
            self.connector.get_http_session(&peer).await
        } else {
            self.connector.get_http_session(peer).await
        };
        session.map_err(|error| match classify_ref(&error) {
            CallError::Tls => {
                self.tls.tell(peer, &error);
                CallError::Tls
            }
            _ => CallError::Connect,
        })
    }
}

impl CallError {
    /// What an error is that came while the head of the answer was waited for.
    fn before_head(error: &Error, session: &HttpSession, reused: bool) -> Self {
        match classify_ref(error) {
            Self::Reset if session.response_header().is_some() || has_begun(error) => Self::Cut,
            Self::Reset if reused => Self::Unheard,
            other => other,
        }
    }
}

/// Whether some of a head had come when its connection ended. Pingora tells it only in words; where
/// they are others, something had, since that is repeated less.
fn has_begun(error: &Error) -> bool {
    const NOTHING: &str = "bytes already read: 0";
    let words = error.context.as_ref();
    !words.is_some_and(|words| words.as_str().ends_with(NOTHING))
}

async fn exchange(
    session: &mut HttpSession,
    reused: bool,
    peer: &HttpPeer,
    call: &Call<'_>,
    started: Instant,
) -> Result<Answer, CallError> {
    send(session, peer, call).await?;
    if let Err(error) = read_head(session).await {
        return Err(CallError::before_head(&error, session, reused));
    }
    let head_after = started.elapsed();
    let head = session.response_header().ok_or(CallError::Protocol)?;
    let (status, headers) = (head.status.as_u16(), head.headers.clone());
    let mut body = BytesMut::new();
    while let Some(part) = session.read_response_body().await.map_err(classify)? {
        if body.len() + part.len() > call.max_answer {
            return Err(CallError::TooLarge);
        }
        body.extend_from_slice(&part);
    }
    Ok(Answer {
        status,
        headers,
        body: body.freeze(),
        head_after,
    })
}

/// Writes the whole request. How long the answer may take is the caller's affair. A worker that stops
/// reading before the end may have answered already, so what became of the connection is for whoever
/// reads the answer to find out.
async fn send(
    session: &mut HttpSession,
    peer: &HttpPeer,
    call: &Call<'_>,
) -> Result<(), CallError> {
    session.set_read_timeout(None);
    session.set_write_timeout(peer.options.write_timeout);
    match write(session, call).await.map_err(classify) {
        Err(CallError::Reset) => Ok(()),
        other => other,
    }
}

async fn write(session: &mut HttpSession, call: &Call<'_>) -> pingora::Result<()> {
    let head = request_head(call)?;
    session.write_request_header(Box::new(head)).await?;
    session.write_request_body(call.body.clone(), true).await?;
    session.finish_request_body().await
}

fn request_head(call: &Call<'_>) -> pingora::Result<RequestHeader> {
    let mut head = RequestHeader::build(
        call.method.as_str(),
        call.path.as_bytes(),
        Some(call.headers.len() + 3),
    )?;
    head.insert_header(header::HOST, call.address)?;
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, call.body.len())?;
    for (name, value) in call.headers {
        head.insert_header(*name, value.as_slice())?;
    }
    Ok(head)
}

/// The head of the answer, informational ones passed over.
async fn read_head(session: &mut HttpSession) -> pingora::Result<&ResponseHeader> {
    loop {
        session.read_response_header().await?;
        match session.response_header() {
            // Nobody asked for another protocol, so no head follows.
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                let reason = "the protocol is changed unasked";
                return Error::e_explain(ErrorType::InvalidHTTPHeader, reason);
            }
            Some(head) if head.status.is_informational() => {}
            _ => break,
        }
    }
    let head = session.response_header();
    head.ok_or_else(|| Error::explain(ErrorType::InvalidHTTPHeader, "no head"))
}

/// What kind of failure one of Pingora's upstream errors is.
pub fn classify(error: pingora::BError) -> CallError {
    classify_ref(&error)
}

/// As [`classify`], for an error that is only borrowed.
pub fn classify_ref(error: &pingora::Error) -> CallError {
    use pingora::ErrorType::*;
    match error.etype() {
        ConnectTimedout | ConnectRefused | ConnectNoRoute | ConnectError | ConnectProxyFailure
        | SocketError | BindError => CallError::Connect,
        ReadTimedout | WriteTimedout => CallError::Timeout,
        InvalidHTTPHeader | H2Error | H1Error | H2Downgrade | InvalidH2 => CallError::Protocol,
        _ if worker_tls::is_of_tls(error) => CallError::Tls,
        _ => CallError::Reset,
    }
}
