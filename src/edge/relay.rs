//! What a generation worker's good answer is, and how it goes to the client.
//!
//! Events pass as they come. A JSON answer is held back until it is whole, because the fleet's own
//! fields are taken out of it. An answer of the other kind than the client asked for is none: a
//! client that reads events would take a JSON answer for a short stream.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Version, header};
use pingora::{Result, http::ResponseHeader};

use super::{
    failure::{self, broken_stream, no_answer},
    live::Live,
    stream::{EventScan, errors::ErrorLines},
};
use crate::{http::reply::Failure, telemetry::labels::Outcome, wire::disagg};

/// Header fields of a worker's answer that concern the client; the rest tells of the fleet.
const FOR_CLIENTS: [HeaderName; 4] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
];

/// What the body is.
pub enum Relay {
    /// Events, which pass unchanged but for a worker's own errors.
    Events(EventScan, ErrorLines),
    /// Events in a content coding, which pass unchanged and unread.
    Coded,
    /// JSON, which is held until it is whole.
    Answer,
}

impl Relay {
    /// Decides by the head of a good answer and by what the client asked for and takes.
    ///
    /// # Errors
    /// 502 for an answer of another kind, or in a coding that cannot be relayed.
    pub fn of(head: &ResponseHeader, stream: bool, client: &HeaderMap) -> Result<Self, Failure> {
        if stream != is_event_stream(&head.headers) {
            return Err(failure::other_kind(stream));
        }
        match coding(&head.headers) {
            None if stream => Ok(Self::Events(EventScan::default(), ErrorLines::default())),
            None => Ok(Self::Answer),
            Some(coding) if stream && takes(client, coding) => Ok(Self::Coded),
            Some(_) => Err(failure::unusable_coding()),
        }
    }

    /// Part of the body on its way to the client, as it goes on.
    pub fn pass(&mut self, part: Bytes, live: &Live) -> Bytes {
        let Self::Events(scan, errors) = self else {
            return part;
        };
        let part = errors.pass(part, |said| failure::for_client(live, said));
        scan.pass(&part);
        part
    }

    /// Whether nothing is missing if the body ends here. Of a coded stream that is not known; its
    /// framing tells.
    pub fn may_end(&self) -> bool {
        match self {
            Self::Events(scan, _) => scan.is_complete(),
            Self::Coded | Self::Answer => true,
        }
    }

    /// Whether a worker that breaks off here has said all the same what it had to say.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Events(scan, _) if scan.is_complete())
    }

    /// Whether a comment may go in here.
    pub fn may_beat(&self) -> bool {
        matches!(self, Self::Events(scan, _) if scan.at_boundary() && !scan.is_complete())
    }

    /// How a request ended whose body came to its end.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Events(scan, _) if scan.has_failed() => Outcome::UpstreamError,
            _ => Outcome::Ok,
        }
    }

    /// What ends a stream that broke off after it had begun. `None` for a coded one: in the middle
    /// of it nothing can be added that a decoder would read, so its connection ends visibly.
    pub fn break_off(&self, failure: &Failure) -> Option<Bytes> {
        match self {
            Self::Events(scan, _) => Some(scan.append(&failure.event()).into()),
            Self::Coded | Self::Answer => None,
        }
    }
}

/// How a stream that has begun and does not go on is told and counted.
pub fn broken_off(failure: &Failure) -> Failure {
    match failure.outcome {
        Outcome::Timeout | Outcome::ClientCancel => failure.clone(),
        _ => broken_stream(),
    }
}

/// Leaves in the head of a stream what the client gets of it. Its length is not known, because one
/// that breaks off gets an event more; the framing is HTTP/1.1's, whatever the worker speaks.
///
/// # Errors
/// None in practice: what is set is valid.
pub fn stream_head(head: &mut ResponseHeader) -> Result<()> {
    keep_for_client(head);
    head.set_version(Version::HTTP_11);
    head.insert_header(header::TRANSFER_ENCODING, "chunked")
}

/// Leaves in the head of a JSON answer what the client gets of it.
///
/// # Errors
/// As [`stream_head`].
pub fn answer_head(head: &mut ResponseHeader, length: usize) -> Result<()> {
    keep_for_client(head);
    head.set_version(Version::HTTP_11);
    head.insert_header(header::CONTENT_TYPE, "application/json")?;
    head.insert_header(header::CONTENT_LENGTH, length)
}

/// A worker's JSON answer as the client gets it; `keep` says that it gets the fleet's own fields too.
///
/// # Errors
/// 502 for a body of which nobody can say what it holds.
pub fn for_client(held: Vec<u8>, keep: bool) -> std::result::Result<Bytes, Failure> {
    match disagg::client_answer(&held, keep) {
        Some(Cow::Owned(stripped)) => Ok(stripped.into()),
        Some(Cow::Borrowed(_)) => Ok(held.into()),
        None => Err(no_answer()),
    }
}

/// Takes out of a head what tells of the fleet.
fn keep_for_client(head: &mut ResponseHeader) {
    let names = head.headers.keys();
    let others: Vec<_> = names
        .filter(|name| !FOR_CLIENTS.contains(name))
        .cloned()
        .collect();
    for name in others {
        head.remove_header(&name);
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let kind = headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.as_bytes().get(..EVENTS.len()))
        .is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
}

/// The content coding, unless it is `identity`. Where there are several it is none that a client
/// could name.
fn coding(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
    let coding = match (values.next(), values.next()) {
        (None, _) => return None,
        (Some(one), None) => one.to_str().unwrap_or_default().trim(),
        (Some(_), Some(_)) => "",
    };
    (!coding.eq_ignore_ascii_case("identity")).then_some(coding)
}

/// Whether a client takes that content coding: it says so, or says nothing of codings at all (RFC
/// 9110 section 12.5.3).
fn takes(client: &HeaderMap, coding: &str) -> bool {
    let values = client.get_all(header::ACCEPT_ENCODING);
    if values.iter().next().is_none() {
        return true;
    }
    let weight = |wanted: &str| {
        let mut items = values
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        items.find_map(|item| {
            let (name, weight) = item.split_once(';').unwrap_or((item, ""));
            let weight = weight.trim().to_ascii_lowercase();
            let zero = weight
                .strip_prefix("q=")
                .is_some_and(|q| q.trim().parse() == Ok(0.0));
            name.trim().eq_ignore_ascii_case(wanted).then_some(!zero)
        })
    };
    weight(coding).or_else(|| weight("*")).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coding_is_relayed_to_a_client_that_takes_it() {
        for (accepts, taken) in [
            (&["gzip"][..], true),
            (&["br, GZIP;q=0.1"], true),
            (&["br", "gzip"], true),
            (&["*"], true),
            (&["*, gzip;q=0"], false),
            (&["gzip; q=0.0"], false),
            (&["br"], false),
            (&["identity"], false),
            (&[""], false),
            (&[], true),
        ] {
            let mut client = HeaderMap::new();
            for value in accepts {
                client.append(header::ACCEPT_ENCODING, value.parse().expect("a value"));
            }
            assert_eq!(takes(&client, "gzip"), taken, "{accepts:?}");
        }
    }
}
