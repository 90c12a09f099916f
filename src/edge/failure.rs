//! What a client is told when a leg fails, in words that fit both legs.

mod mask;

use std::fmt::Display;

use http::{HeaderMap, header};

use mask::mask;

use super::{destination::Destination, live::Live};
use crate::{
    gateway::Refusal,
    http::reply::Failure,
    telemetry::labels::Outcome,
    wire::disagg::{self, AnswerError, InfoError},
};

/// An answer that is not 200: a worker's own refusal with its status and its message, where that is
/// one for the client.
pub fn refused(live: &Live, leg: &str, status: u16, body: &[u8]) -> Failure {
    let told = told_status(status);
    let said = disagg::error_message(body);
    let said = said.map(|said| for_client(live, &said));
    if told == status {
        let unsaid = || format!("The {leg} worker answered with status {status}.");
        return Failure::from_worker(status, said.unwrap_or_else(unsaid));
    }
    let said = said
        .filter(|_| status >= 400)
        .map_or_else(String::new, |said| format!(": {said}"));
    let message = format!("The {leg} worker answered with status {status}{said}.");
    Failure::bad_gateway("unusable_answer", Outcome::UpstreamError, message)
}

/// A worker's words as a client may read them.
pub fn for_client(live: &Live, said: &str) -> String {
    let fleets: Vec<_> = live.destinations().map(Destination::fleet).collect();
    mask(&fleets, said)
}

/// The status that the client is told for a worker's. Credentials that a worker does not take are
/// not the client's, and a worker that neither answers nor refuses is at fault itself.
pub fn told_status(status: u16) -> u16 {
    match status {
        401 | 403 | 407 => 502,
        200 | 400.. => status,
        _ => 502,
    }
}

/// Tells the client when to come again, where the worker said so.
pub fn with_retry_after(failure: Failure, headers: &HeaderMap) -> Failure {
    let again = headers.get(header::RETRY_AFTER);
    match again.and_then(|value| value.to_str().ok()) {
        Some(value) => failure.header("retry-after", value),
        None => failure,
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let failure = Self::new(
            refusal.status.as_u16(),
            refusal.kind,
            refusal.code,
            refusal.outcome,
            refusal.message,
        );
        let mut failure = failure.param(refusal.param);
        for (name, value) in refusal.headers {
            failure = failure.header(name, value);
        }
        match refusal.www_authenticate {
            Some(challenge) => failure.header("www-authenticate", challenge),
            None => failure,
        }
    }
}

/// No instance can be picked.
pub fn no_instance(error: impl Display) -> Failure {
    let message = format!("No instance can serve this: {error}.");
    Failure::unavailable("no_instance", Outcome::NoInstance, message)
}

/// A context answer that cannot be handed over.
pub fn unusable(reason: AnswerError) -> Failure {
    let message = format!("The context leg failed: {reason}.");
    Failure::bad_gateway("unusable_context_answer", Outcome::UpstreamError, message)
}

/// A context instance whose `/server_info` could not be read.
pub fn no_server_info(reason: impl Display) -> Failure {
    let message = format!("The context worker's /server_info could not be read: {reason}.");
    Failure::bad_gateway("no_server_info", Outcome::Unreachable, message)
}

/// A context instance that no generation worker could wait for.
pub fn unusable_server_info(reason: InfoError) -> Failure {
    let message = format!("The context worker cannot be waited for: {reason}.");
    Failure::bad_gateway("unusable_server_info", Outcome::UpstreamError, message)
}

/// A good answer of another kind than the client asked for: `stream` is what it asked for.
pub fn other_kind(stream: bool) -> Failure {
    let message = if stream {
        "The generation worker answered a streaming request without a stream."
    } else {
        "The generation worker answered with a stream that nobody asked for."
    };
    Failure::bad_gateway("unusable_answer", Outcome::UpstreamError, message)
}

/// A good answer in a content coding that cannot be relayed.
pub fn unusable_coding() -> Failure {
    Failure::bad_gateway(
        "unusable_answer",
        Outcome::UpstreamError,
        "The generation worker answered in a content coding that nobody asked for.",
    )
}

/// A generation answer of status 200 that is no JSON object with choices as they should be.
pub fn no_answer() -> Failure {
    let message = "The generation worker's answer is no JSON object with one list of choices.";
    Failure::bad_gateway("unusable_answer", Outcome::UpstreamError, message)
}

/// A stream that ended early.
pub fn broken_stream() -> Failure {
    Failure::bad_gateway(
        "stream_broken",
        Outcome::StreamBroken,
        "The generation worker's stream ended before it was complete; the answer so far is not whole.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_that_concerns_the_client_keeps_its_status() {
        for status in [400, 404, 408, 413, 422, 429, 500, 503] {
            assert_eq!(told_status(status), status);
        }
        for status in [201, 204, 302, 304, 401, 403, 407] {
            assert_eq!(told_status(status), 502, "{status}");
        }
    }
}
