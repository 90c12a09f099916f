//! How a generation worker's answer goes to the client.
//!
//! Events pass as they come. A JSON answer is held back until it is whole, because the fleet's own
//! fields are taken out of it; a refusal is held back to be told in Kindred's words.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderName, Version, header};
use pingora::{Error, ErrorType, Result, http::ResponseHeader};

use super::{
    failure::{self, broken_stream},
    live::Live,
    stream::StreamTail,
};
use crate::{telemetry::labels::Outcome, wire::disagg};

/// Bytes of a worker's error body that are looked at for its message.
pub const MAX_ERROR_BODY: usize = 64 * 1024;

/// Header fields of a worker's answer that concern the client; the rest tells of the fleet.
const FOR_CLIENTS: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::TRANSFER_ENCODING,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
];

/// What is done with the body, and what is held of it.
pub enum Relay {
    /// Unchanged, as events.
    Events(StreamTail),
    /// Held until it is whole.
    Answer(Vec<u8>),
    /// Held until it is whole, for its message.
    Refusal { status: u16, body: Vec<u8> },
}

impl Relay {
    /// Decides by the answer's head, and leaves in that what the client gets of it.
    ///
    /// # Errors
    /// None in practice: what is set is valid.
    pub fn of(head: &mut ResponseHeader) -> Result<Self> {
        keep_for_client(head);
        let status = head.status.as_u16();
        // What is held back changes its length, and a stream that breaks off gets an event more. The
        // framing is HTTP/1.1's, whatever the worker speaks.
        head.set_version(Version::HTTP_11);
        head.remove_header(&header::CONTENT_LENGTH);
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        if status == 200 && is_event_stream(head) {
            return Ok(Self::Events(StreamTail::default()));
        }
        head.insert_header(header::CONTENT_TYPE, "application/json")?;
        head.set_status(failure::told_status(status))?;
        Ok(if status == 200 {
            Self::Answer(Vec::new())
        } else {
            let body = Vec::new();
            Self::Refusal { status, body }
        })
    }

    /// Replaces part of the worker's body by what goes to the client now. The result is how the
    /// request ended, where this part decides it.
    ///
    /// # Errors
    /// When a held answer has more than `limits.max_answer` bytes.
    pub fn pass(
        &mut self,
        body: &mut Option<Bytes>,
        end: bool,
        live: &Live,
    ) -> Result<Option<Outcome>> {
        match self {
            Self::Events(tail) => Ok(pass_events(tail, body, end)),
            Self::Answer(held) => {
                held.extend_from_slice(&body.take().unwrap_or_default());
                if held.len() > live.config.limits.max_answer {
                    let reason = "the answer is larger than limits.max_answer";
                    return Error::e_explain(ErrorType::InternalError, reason);
                }
                *body = Some(if end { for_client(held) } else { Bytes::new() });
                Ok(None)
            }
            Self::Refusal { status, body: held } => {
                let part = body.take().unwrap_or_default();
                let room = MAX_ERROR_BODY.saturating_sub(held.len());
                held.extend_from_slice(part.get(..room).unwrap_or(&part));
                let failure = end.then(|| failure::refused(live, "generation", *status, held));
                *body = Some(
                    failure
                        .as_ref()
                        .map_or_else(Bytes::new, |f| f.body().into()),
                );
                Ok(failure.map(|failure| failure.outcome))
            }
        }
    }

    /// Whether the answer passes as events.
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Events(_))
    }

    /// What ends a stream that broke off after it had begun; `None` where the answer is no stream.
    pub fn break_off(&self) -> Option<Bytes> {
        match self {
            Self::Events(tail) if !tail.is_complete() => {
                Some(tail.append(&broken_stream().event()).into())
            }
            _ => None,
        }
    }
}

fn pass_events(tail: &mut StreamTail, body: &mut Option<Bytes>, end: bool) -> Option<Outcome> {
    if let Some(bytes) = body {
        tail.pass(bytes);
    }
    if !end || tail.is_complete() {
        return None;
    }
    let event = tail.append(&broken_stream().event());
    let mut last = body.take().unwrap_or_default().to_vec();
    last.extend_from_slice(event.as_bytes());
    *body = Some(last.into());
    Some(Outcome::StreamBroken)
}

/// A worker's JSON answer as the client gets it.
fn for_client(held: &mut Vec<u8>) -> Bytes {
    let held = std::mem::take(held);
    match disagg::strip_internal(&held) {
        Cow::Owned(stripped) => stripped.into(),
        Cow::Borrowed(_) => held.into(),
    }
}

/// Whether a worker's answer cannot be relayed: nothing comes of it but its head, or it is neither an
/// answer nor a refusal.
pub fn is_unfit(head: &ResponseHeader) -> bool {
    let status = head.status.as_u16();
    let empty = head.headers.get(header::CONTENT_LENGTH);
    let empty = empty.is_some_and(|length| length.as_bytes() == b"0");
    status != 200 && (status < 400 || empty)
}

/// Takes out of a head what tells of the fleet.
pub fn keep_for_client(head: &mut ResponseHeader) {
    let names = head.headers.keys();
    let others: Vec<_> = names
        .filter(|name| !FOR_CLIENTS.contains(name))
        .cloned()
        .collect();
    for name in others {
        head.remove_header(&name);
    }
}

fn is_event_stream(head: &ResponseHeader) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.as_bytes().get(..EVENTS.len()))
        .is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}
