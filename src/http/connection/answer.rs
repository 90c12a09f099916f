//! Answers where there is no request: HTTP/1.1, whole, and the end of the connection.
//!
//! Decides what a client reads whose head never became a request, in the shape of every other error and
//! with an id. It must never repeat anything the client sent.

use http::HeaderMap;
use pingora::protocols::Stream;
use tokio::io::AsyncWriteExt;

use crate::{
    config::Compatibility,
    http::reply::Failure,
    telemetry::labels::Outcome,
    wire::trace::{REQUEST_ID, Trace},
};

/// How long a client that is turned away has to take its answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(200);

/// 408: the head was not whole in time.
pub fn too_slow(seconds: f64) -> Failure {
    Failure::new(
        408,
        "invalid_request_error",
        "request_timeout",
        Outcome::ClientError,
        format!("The request's head did not arrive within {seconds} s."),
    )
}

/// 400: what came is no head of HTTP/1 that Pingora takes.
pub fn not_http() -> Failure {
    let message = "What was sent is no head of a request: its first line, a field or \
                   its framing cannot be read in one way, or its target names another host than Host.";
    Failure::bad_request("invalid_request_head", message)
}

/// 431: more than Pingora reads of a head at all.
pub fn too_large() -> Failure {
    Failure::headers_too_large("The request's head is too large.")
}

/// The bytes of an answer.
pub fn bytes(failure: &Failure, whose: Compatibility) -> Vec<u8> {
    let (status, body) = failure.shaped(whose);
    let reason = http::StatusCode::from_u16(status).ok();
    let reason = reason.and_then(|status| status.canonical_reason());
    let id = Trace::of(&HeaderMap::new(), &[]);
    let mut head = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         {REQUEST_ID}: {}\r\nconnection: close\r\n",
        reason.unwrap_or_default(),
        body.len(),
        id.request_id(),
    );
    for (name, value) in &failure.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{head}\r\n{body}").into_bytes()
}

/// Tells a client for which there is no place to come again, if it takes that at once.
pub async fn turn_away(stream: &mut Stream, whose: Compatibility) {
    let is_http2 = stream.selected_alpn_proto() == Some(pingora::protocols::ALPN::H2);
    if !is_http2 {
        let message = "There are too many connections.";
        let failure = Failure::unavailable("too_many_connections", Outcome::Overloaded, message);
        let bytes = bytes(&failure.retry_after(1), whose);
        let told = async {
            stream.write_all(&bytes).await?;
            stream.flush().await
        };
        // A client that does not read is closed all the same.
        let _ = tokio::time::timeout(PATIENCE, told).await;
    }
}
