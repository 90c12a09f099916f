//! What a client is told when a worker's answer cannot be relayed.
//!
//! Every refusal and failure is a [`Failure`]: a status, an OpenAI-shaped body (another one where the
//! configuration wants it) and the outcome it is counted as. Messages are for the person who reads them
//! and never hold a worker's address, a secret or another client's data.

mod shape;

use bytes::Bytes;
use http::{Method, Version, header};
use pingora::{Result, http::ResponseHeader, protocols::http::ServerSession};
use serde_json::json;

use super::upstream::CallError;
use crate::{config::Compatibility, telemetry::labels::Outcome, wire::body::BodyError};

/// Why a request does not get a worker's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub status: u16,
    /// `error.type` of the OpenAI error object.
    pub kind: &'static str,
    /// `error.code` of the OpenAI error object.
    pub code: &'static str,
    pub message: String,
    /// `error.param`: the body field or header at fault.
    pub param: Option<String>,
    /// Further header fields of the answer, such as `Retry-After` or `Allow`.
    pub headers: Vec<(&'static str, String)>,
    pub outcome: Outcome,
}

impl Failure {
    /// A failure without a field at fault and without further header fields.
    pub fn new(
        status: u16,
        kind: &'static str,
        code: &'static str,
        outcome: Outcome,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            code,
            message: sentence(message.into()),
            param: None,
            headers: Vec::new(),
            outcome,
        }
    }

    /// 400: the request itself is at fault.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(
            400,
            "invalid_request_error",
            code,
            Outcome::ClientError,
            message,
        )
    }

    /// 404 for a path that Kindred does not serve.
    pub fn not_found() -> Self {
        Self::new(
            404,
            "invalid_request_error",
            "not_found",
            Outcome::ClientError,
            "There is nothing at this path; use POST /v1/chat/completions, POST /v1/completions or \
             GET /v1/models.",
        )
    }

    /// 414: a path of more bytes than are looked at.
    pub fn path_too_long(limit: usize) -> Self {
        Self::new(
            414,
            "invalid_request_error",
            "path_too_long",
            Outcome::TooLarge,
            format!("The path is longer than {limit} bytes."),
        )
    }

    /// 405 with the methods that would do.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Self::new(
            405,
            "invalid_request_error",
            "method_not_allowed",
            Outcome::ClientError,
            format!("This path takes only {allow}."),
        )
        .header("allow", allow)
    }

    /// 404 for a model that no fleet serves.
    pub fn no_model(model: &str) -> Self {
        let shown: String = model.chars().take(128).collect();
        Self::new(
            404,
            "invalid_request_error",
            "model_not_found",
            Outcome::ClientError,
            format!("The model {shown:?} is not served here; GET /v1/models lists those that are."),
        )
        .param(Some("model".to_owned()))
    }

    /// 408: the client did not send its body in time.
    pub fn body_too_slow(seconds: f64) -> Self {
        Self::new(
            408,
            "invalid_request_error",
            "request_timeout",
            Outcome::ClientError,
            format!("The request body did not arrive within {seconds} s."),
        )
    }

    /// 408: the client sends its body too slowly to be waited for.
    pub fn body_below_rate(rate: usize) -> Self {
        Self::new(
            408,
            "invalid_request_error",
            "request_timeout",
            Outcome::ClientError,
            format!("The request body came with less than {rate} bytes a second."),
        )
    }

    /// 411: a body whose framing Pingora cannot hold back (HTTP/2 without a length, above 64 KiB).
    pub fn length_required() -> Self {
        Self::new(
            411,
            "invalid_request_error",
            "length_required",
            Outcome::ClientError,
            "Send this body with a Content-Length; over HTTP/2, bodies above 64 KiB need one.",
        )
    }

    /// 413: above the configured limit; says the limit and, where known, the size.
    pub fn too_large(limit: usize, size: Option<usize>) -> Self {
        let size = size.map_or_else(String::new, |n| format!(" (this one has {n} bytes)"));
        Self::new(
            413,
            "invalid_request_error",
            "request_too_large",
            Outcome::TooLarge,
            format!(
                "The request body is larger than {limit} bytes{size}; do not retry it unchanged."
            ),
        )
    }

    /// 413: a coded body that unfolds to more than the configured limit.
    pub fn too_large_decoded(limit: usize) -> Self {
        Self::new(
            413,
            "invalid_request_error",
            "request_too_large",
            Outcome::TooLarge,
            format!(
                "The request body is larger than {limit} bytes once it is decoded; do not retry it \
                 unchanged."
            ),
        )
    }

    /// 415 for a content coding that is not decoded here, or several; says what is (RFC 9110 section
    /// 12.5.3).
    pub fn unsupported_encoding(what: &str) -> Self {
        Self::new(
            415,
            "invalid_request_error",
            "unsupported_content_encoding",
            Outcome::ClientError,
            format!(
                "A request body {what} is not taken; send one with at most one Content-Encoding of \
                 gzip, deflate, br or zstd."
            ),
        )
        .header("accept-encoding", "gzip, deflate, br, zstd")
    }

    /// 417: an `Expect` header that cannot be met.
    pub fn expectation_failed() -> Self {
        Self::new(
            417,
            "invalid_request_error",
            "expectation_failed",
            Outcome::ClientError,
            "The only Expect that is met is 100-continue; leave the header out or send that.",
        )
        .param(Some("expect".to_owned()))
    }

    /// 429: the client's own limit, not the fleet's.
    pub fn too_many_requests(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(429, "rate_limit_error", code, Outcome::Overloaded, message)
            .header("retry-after", "1")
    }

    /// As it is, with another time after which to come again.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.headers.retain(|(name, _)| *name != "retry-after");
        self.header("retry-after", seconds.to_string())
    }

    /// 431: too many header fields, or too long ones.
    pub fn headers_too_large(what: impl Into<String>) -> Self {
        Self::new(
            431,
            "invalid_request_error",
            "headers_too_large",
            Outcome::TooLarge,
            what,
        )
    }

    /// 502: a worker could not be reached or gave no usable answer.
    pub fn bad_gateway(code: &'static str, outcome: Outcome, message: impl Into<String>) -> Self {
        Self::new(502, "upstream_error", code, outcome, message)
    }

    /// 503: no instance, or no room.
    pub fn unavailable(code: &'static str, outcome: Outcome, message: impl Into<String>) -> Self {
        Self::new(503, "overloaded_error", code, outcome, message).header("retry-after", "1")
    }

    /// 504: a worker did not answer in time.
    pub fn gateway_timeout(message: impl Into<String>) -> Self {
        Self::new(
            504,
            "upstream_error",
            "upstream_timeout",
            Outcome::Timeout,
            message,
        )
    }

    /// 500: a fault of Kindred's own.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(
            500,
            "internal_error",
            "internal_error",
            Outcome::Internal,
            message,
        )
    }

    /// The client has gone: nothing is written, and only the outcome matters.
    pub fn client_left() -> Self {
        Self::new(
            0,
            "",
            "client_left",
            Outcome::ClientCancel,
            "the client left",
        )
    }

    /// A worker's own refusal, with its status and its message as it is (specification section 4.10).
    pub fn from_worker(status: u16, message: impl Into<String>) -> Self {
        let (kind, outcome) = if status < 500 {
            ("invalid_request_error", Outcome::UpstreamRefused)
        } else {
            ("upstream_error", Outcome::UpstreamError)
        };
        Self {
            message: message.into(),
            ..Self::new(status, kind, "worker_refused", outcome, "")
        }
    }

    /// Names the field or header at fault.
    pub fn param(mut self, param: impl Into<Option<String>>) -> Self {
        self.param = param.into();
        self
    }

    /// Adds a header field to the answer.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Whether there is nobody left to answer.
    pub fn client_is_gone(&self) -> bool {
        self.status == 0
    }

    /// The OpenAI error object, on one line.
    pub fn body(&self) -> String {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
        .to_string()
    }

    /// The error object as an SSE event, for a stream that has begun.
    pub fn event(&self) -> String {
        format!("data: {}\n\n", self.body())
    }

    /// Writes the answer, with further header fields. Errors are Pingora's, of a client that cannot
    /// be written to.
    pub async fn write(
        &self,
        session: &mut ServerSession,
        whose: Compatibility,
        further: &[(&'static str, String)],
    ) -> Result<()> {
        let headers = [&self.headers, further].concat();
        let (status, body) = self.shaped(whose);
        write_json(session, status, &headers, Bytes::from(body)).await
    }
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        Self::bad_request(error.code, format!("{}.", error.message)).param(error.param)
    }
}

/// What a client is told of a worker that gave no answer; `who` is "context worker" or the like.
pub fn upstream_failure(who: &str, error: CallError) -> Failure {
    let message = format!("The {who} gave no answer: {error}.");
    match error {
        CallError::Timeout => Failure::gateway_timeout(message),
        CallError::TooLarge | CallError::Protocol => {
            Failure::bad_gateway("unusable_answer", Outcome::UpstreamError, message)
        }
        CallError::Unresolved
        | CallError::Connect
        | CallError::Tls
        | CallError::Reset
        | CallError::Unheard
        | CallError::Cut => {
            Failure::bad_gateway("worker_unreachable", Outcome::Unreachable, message)
        }
    }
}

/// A message with one mark at its end, not one more for each part that it was put together from.
/// None is added: some messages are upstream's, word for word.
fn sentence(mut message: String) -> String {
    let said = message.trim_end_matches(['.', '?', '!']).len();
    let mark = message.get(said..).and_then(|end| end.chars().next());
    message.truncate(said);
    message.extend(mark);
    message
}

/// Adds header fields to a head.
///
/// # Errors
/// For a name or a value that cannot be sent.
pub fn insert(head: &mut ResponseHeader, headers: &[(&'static str, String)]) -> Result<()> {
    for (name, value) in headers {
        head.insert_header(*name, value)?;
    }
    Ok(())
}

/// Whether the head of the answer has gone to the client, so that its status cannot change any more.
pub fn has_begun(session: &ServerSession) -> bool {
    let head = session.response_written();
    head.is_some_and(|head| !head.status.is_informational())
}

/// A client of HTTP/1.0 knows no chunks: the end of the connection ends its answer.
pub fn frame_for_old_clients(session: &mut ServerSession, head: &mut ResponseHeader) {
    if session.req_header().version >= Version::HTTP_11 || head.status.is_informational() {
        return;
    }
    head.remove_header(&header::TRANSFER_ENCODING);
    if !head.headers.contains_key(header::CONTENT_LENGTH) {
        session.set_keepalive(None);
    }
}

/// Writes a whole JSON answer of Kindred's own.
pub async fn write_json(
    session: &mut ServerSession,
    status: u16,
    headers: &[(&'static str, String)],
    body: Bytes,
) -> Result<()> {
    write(session, status, "application/json", headers, body).await
}

/// Writes a whole answer of Kindred's own.
pub async fn write(
    session: &mut ServerSession,
    status: u16,
    content_type: &str,
    headers: &[(&'static str, String)],
    body: Bytes,
) -> Result<()> {
    let mut head = ResponseHeader::build(status, Some(headers.len() + 2))?;
    head.insert_header("content-type", content_type)?;
    head.insert_header("content-length", body.len())?;
    insert(&mut head, headers)?;
    finish(session, head, body).await
}

/// Writes an answer of Kindred's own without a body.
pub async fn write_empty(
    session: &mut ServerSession,
    status: u16,
    headers: &[(&'static str, String)],
) -> Result<()> {
    let mut head = ResponseHeader::build(status, Some(headers.len() + 1))?;
    // A 204 has no length (RFC 9110 section 8.6).
    if status != 204 {
        head.insert_header("content-length", 0)?;
    }
    insert(&mut head, headers)?;
    finish(session, head, Bytes::new()).await
}

/// Writes the head, and the body unless only the head was asked for.
async fn finish(session: &mut ServerSession, head: ResponseHeader, body: Bytes) -> Result<()> {
    session.write_response_header(Box::new(head)).await?;
    let body = match session.req_header().method {
        Method::HEAD => Bytes::new(),
        _ => body,
    };
    session.write_response_body(body, true).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_one_mark_at_most() {
        for (said, told) in [
            ("no", "no"),
            ("no.", "no."),
            ("no..", "no."),
            ("is it?.", "is it?"),
            ("\u{e9}?!.", "\u{e9}?"),
        ] {
            assert_eq!(Failure::internal(said).message, told);
        }
        assert_eq!(Failure::from_worker(400, "as it is").message, "as it is");
    }
}
