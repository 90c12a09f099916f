//! Clients that leave an edge, and what must come of it.

use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use kindred::{simulate::worker::SimulatedWorkerConfig, wire::Role};

use super::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    raw,
};

pub const KIB: usize = 1024;
pub const CHAT: &str = "/v1/chat/completions";
/// "Within 1 s", with room for a loaded machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);
pub const SLOW: Duration = Duration::from_secs(600);
pub const FAST: Duration = Duration::ZERO;

/// A chat request's body of at least `size` bytes whose answer goes on for long.
pub fn body(size: usize, stream: bool) -> String {
    let mut body = chat("hello");
    body["max_tokens"] = 1000.into();
    body["ignore_eos"] = true.into();
    body["stream"] = stream.into();
    body["user"] = "u".repeat(size).into();
    body.to_string()
}

/// The ways in which the same request can be framed: bytes up to what the client has sent when it
/// leaves.
pub fn framings(stream: bool) -> Vec<(&'static str, Vec<u8>)> {
    let (small, large) = (body(0, stream), body(200 * KIB, stream));
    let chunked = |body: &str| raw::chunked_request(CHAT, body.as_bytes(), 16 * KIB);
    let mut unfinished = chunked(&large);
    unfinished.truncate(unfinished.len() - b"0\r\n\r\n".len());
    vec![
        ("small", raw::request(CHAT, &[], small.as_bytes())),
        ("large", raw::request(CHAT, &[], large.as_bytes())),
        ("small, chunked", chunked(&small)),
        ("large, chunked", chunked(&large)),
        ("large, chunked, without its end", unfinished),
    ]
}

/// The framings of a request whose end comes as well.
pub fn whole_framings(stream: bool) -> Vec<(&'static str, Vec<u8>)> {
    let mut all = framings(stream);
    all.retain(|(what, _)| !what.contains("without its end"));
    all
}

/// Workers, an edge before them, and the clients that have left it.
pub struct Scene {
    pub fleet: Fleet,
    pub kindred: Kindred,
    /// How many requests have been left.
    pub left: usize,
}

impl Scene {
    /// One worker of each role, whose engine takes that long for a token of a prompt and of an answer.
    pub fn new(prefill: Duration, decode: Duration) -> Self {
        Self::with("", |config| {
            config.engine.prefill_per_token = prefill;
            config.engine.decode_interval = decode;
        })
    }

    pub fn with(more: &str, adjust: impl Fn(&mut SimulatedWorkerConfig)) -> Self {
        let fleet = fleet::start(1, 1, adjust);
        let kindred = Kindred::serve(&fleet.yaml(more));
        Self::of(fleet, kindred)
    }

    pub fn of(fleet: Fleet, kindred: Kindred) -> Self {
        let left = 0;
        Self {
            fleet,
            kindred,
            left,
        }
    }

    /// A client that sends these bytes.
    pub fn client(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = raw::connect(self.kindred.edge());
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Waits until the next request to a worker of that role has arrived whole.
    pub fn wait_for_arrival(&self, role: Role) {
        eventually("the worker has the request", || {
            let requests = self.fleet.requests(role);
            let last = requests.last()?;
            (requests.len() == self.left + 1 && last.body_length > 0).then_some(())
        });
    }

    /// The client leaves: the worker of that role must notice it soon.
    pub fn leave(&mut self, client: impl Sized, role: Role, what: &str) {
        let since = Instant::now();
        drop(client);
        self.left += 1;
        eventually(&format!("the worker sees the client leave: {what}"), || {
            let requests = self.fleet.requests(role);
            requests.get(self.left - 1)?.client_left.then_some(())
        });
        let after = since.elapsed();
        assert!(after < NOTICED_WITHIN, "{what}: {after:?}");
    }

    /// For each request: a client sends it, waits until it has arrived at a worker of that role, and
    /// leaves.
    pub fn leave_each(&mut self, role: Role, requests: Vec<(&'static str, Vec<u8>)>) {
        for (what, request) in requests {
            let client = self.client(&request);
            self.wait_for_arrival(role);
            self.leave(client, role, what);
        }
    }

    /// Asserts that every request so far ended as a cancellation, and that nothing is left of them;
    /// where the context leg was left, no other one began.
    pub fn assert_only_cancellations(&self) {
        let count = self.left as f64;
        let kindred = &self.kindred;
        kindred.assert_metric("kindred_requests_total", &[], count);
        let cancelled = kindred.metric("kindred_requests_total", &["outcome=\"client_cancel\""]);
        assert_eq!(cancelled, count, "{}", kindred.admin("/metrics").text());
        assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
        kindred.assert_idle();
    }

    pub fn assert_no_generation_leg(&self) {
        let requests = self.fleet.requests(Role::Generation);
        assert!(requests.is_empty(), "nothing new is sent");
    }
}
