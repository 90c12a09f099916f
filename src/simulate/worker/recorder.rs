//! What a worker saw, for tests and for people who look at the demo.
//!
//! It keeps the last requests with their headers and bodies, bounded in number and size; of a large
//! body only the beginning, but always its length and digest. It must never be part of a worker
//! that serves real prompts.

use std::collections::VecDeque;

use parking_lot::Mutex;
use pingora::http::RequestHeader;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Requests kept.
const KEPT: usize = 1000;

/// Bytes kept of a body.
const KEPT_BODY: usize = 32 * 1024;

/// One request that came.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    /// Arrival number, from 1.
    pub arrival: u64,
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Names as they came, values as latin-1 text.
    pub headers: Vec<(String, String)>,
    /// The body's beginning as text.
    pub body: String,
    /// Whole length, bytes.
    pub body_length: usize,
    /// Lower-case hexadecimal digest of the whole body.
    pub body_sha256: String,
    /// Rank that it ran on, once it runs.
    pub rank: Option<u32>,
    /// Status that was answered, once it is.
    pub status: Option<u16>,
    /// Whether the answer is complete.
    pub finished: bool,
    /// Whether the client left before the end.
    pub client_left: bool,
}

#[derive(Debug, Default)]
struct State {
    arrivals: u64,
    kept: VecDeque<Recorded>,
}

/// The last requests of one worker.
#[derive(Debug, Default)]
pub struct Recorder {
    state: Mutex<State>,
}

impl Recorder {
    /// The kept requests that came after number `since`, in order of arrival.
    pub fn since(&self, since: u64) -> Vec<Recorded> {
        let state = self.state.lock();
        state
            .kept
            .iter()
            .filter(|recorded| recorded.arrival > since)
            .cloned()
            .collect()
    }

    /// Number of requests that ever came.
    pub fn arrivals(&self) -> u64 {
        self.state.lock().arrivals
    }

    /// Forgets the kept requests; arrival numbers go on.
    pub fn clear(&self) {
        self.state.lock().kept.clear();
    }

    /// Notes a request; the result is its arrival number.
    pub(super) fn note(&self, head: &RequestHeader) -> u64 {
        let headers = head
            .case_header_iter()
            .map(|(name, value)| {
                (
                    String::from_utf8_lossy(name.as_slice()).into_owned(),
                    value.as_bytes().iter().copied().map(char::from).collect(),
                )
            })
            .collect();
        let mut state = self.state.lock();
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.kept.push_back(Recorded {
            arrival,
            method: head.method.to_string(),
            path: head.uri.to_string(),
            headers,
            body: String::new(),
            body_length: 0,
            body_sha256: String::new(),
            rank: None,
            status: None,
            finished: false,
            client_left: false,
        });
        while state.kept.len() > KEPT {
            state.kept.pop_front();
        }
        arrival
    }

    pub(super) fn note_body(&self, arrival: u64, body: &[u8]) {
        let digest = Sha256::digest(body)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let kept = body.get(..KEPT_BODY).unwrap_or(body);
        let text = String::from_utf8_lossy(kept).into_owned();
        self.update(arrival, |recorded| {
            recorded.body = text;
            recorded.body_length = body.len();
            recorded.body_sha256 = digest;
        });
    }

    pub(super) fn update(&self, arrival: u64, change: impl FnOnce(&mut Recorded)) {
        let mut state = self.state.lock();
        let Some(first) = state.kept.front().map(|recorded| recorded.arrival) else {
            return;
        };
        let at = arrival
            .checked_sub(first)
            .and_then(|at| usize::try_from(at).ok());
        if let Some(recorded) = at.and_then(|at| state.kept.get_mut(at)) {
            change(recorded);
        }
    }
}
