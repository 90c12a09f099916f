//! Writing answers, and the ways in which a request can end.
//!
//! Every wait of a worker goes through [`attend`], which looks at the client meanwhile: a client
//! that leaves ends the request at once, also before anything was written.

use bytes::Bytes;
use http::StatusCode;
use pingora::{http::ResponseHeader, protocols::http::ServerSession};
use serde_json::{Value, json};

/// Why a request ended without a whole answer. The connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client is gone.
    ClientLeft,
    /// The worker was told to break off, or upstream would.
    BrokenOff,
}

/// An answer that says no.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub body: Value,
}

impl Refusal {
    /// Upstream's answer to a body that its request model does not accept.
    pub(super) fn invalid(text: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            body: json!({"error": text.into()}),
        }
    }

    /// Upstream's answer to everything else that goes wrong (specification section 4.10).
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::with_status(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    /// An error in the workers' shape.
    pub(super) fn with_status(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        let body = json!({
            "object": "error",
            "message": message.into(),
            "type": kind,
            "param": null,
            "code": status.as_u16(),
        });
        Self { status, body }
    }
}

/// Writes a whole answer.
pub(super) async fn send(
    session: &mut ServerSession,
    status: StatusCode,
    extra: &[(&'static str, String)],
    body: Bytes,
) -> Result<(), Ended> {
    begin(session, status, extra, body.len()).await?;
    write(session, body, true).await
}

/// Writes the head of an answer of `length` bytes.
pub(super) async fn begin(
    session: &mut ServerSession,
    status: StatusCode,
    extra: &[(&'static str, String)],
    length: usize,
) -> Result<(), Ended> {
    let mut head = head(status, extra)?;
    set(&mut head, "content-length", &length.to_string())?;
    if length > 0 {
        set(&mut head, "content-type", "application/json")?;
    }
    session
        .write_response_header(Box::new(head))
        .await
        .map_err(|_| Ended::ClientLeft)
}

/// Writes a JSON answer.
pub(super) async fn send_json(
    session: &mut ServerSession,
    status: StatusCode,
    body: &Value,
) -> Result<(), Ended> {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    send(session, status, &[], bytes.into()).await
}

/// Writes the head of a server-sent event stream.
pub(super) async fn begin_events(
    session: &mut ServerSession,
    extra: &[(&'static str, String)],
) -> Result<(), Ended> {
    let mut head = head(StatusCode::OK, extra)?;
    set(
        &mut head,
        "content-type",
        "text/event-stream; charset=utf-8",
    )?;
    if !session.is_http2() {
        set(&mut head, "transfer-encoding", "chunked")?;
    }
    session
        .write_response_header(Box::new(head))
        .await
        .map_err(|_| Ended::ClientLeft)
}

/// Writes a part of the body.
pub(super) async fn write(
    session: &mut ServerSession,
    data: Bytes,
    end: bool,
) -> Result<(), Ended> {
    session
        .write_response_body(data, end)
        .await
        .map_err(|_| Ended::ClientLeft)
}

/// Waits for `work` as long as the client is there.
pub(super) async fn attend<T>(
    session: &mut ServerSession,
    work: impl Future<Output = T>,
) -> Result<T, Ended> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = gone(session) => Err(Ended::ClientLeft),
    }
}

/// Returns when the client has left. The request's body has been read.
async fn gone(session: &mut ServerSession) {
    while session.read_body_or_idle(true).await.is_ok() {}
}

fn head(status: StatusCode, extra: &[(&'static str, String)]) -> Result<ResponseHeader, Ended> {
    let mut head = ResponseHeader::build(status, Some(6)).map_err(|_| Ended::BrokenOff)?;
    set(&mut head, "server", "simulated")?;
    for (name, value) in extra {
        set(&mut head, name, value)?;
    }
    Ok(head)
}

fn set(head: &mut ResponseHeader, name: &'static str, value: &str) -> Result<(), Ended> {
    head.insert_header(name, value)
        .map_err(|_| Ended::BrokenOff)
}
