//! HTTP as clients and workers speak it: ids and traces, expectations, several requests on one
//! connection, how long one is kept, and heads that two programs could read differently.

#[path = "http/connections.rs"]
mod connections;
#[path = "http/debug_headers.rs"]
mod debug_headers;
#[path = "http/expect.rs"]
mod expect;
#[path = "http/framing.rs"]
mod framing;
#[path = "http/hops.rs"]
mod hops;
#[path = "http/ids.rs"]
mod ids;
#[path = "http/pipelining.rs"]
mod pipelining;
mod support;

use std::{
    io::{Read, Write},
    net::SocketAddr,
};

use kindred::wire::Role;
use support::{
    Kindred, chat,
    fleet::{self, Fleet},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

fn body(stream: bool) -> String {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    body.to_string()
}

/// A POST that leaves the connection open.
fn kept(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Everything that comes back until the connection ends.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = raw::connect(address);
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut told = Vec::new();
    // A reset after the answer is an end as well.
    let _ = stream.read_to_end(&mut told);
    String::from_utf8_lossy(&told).into_owned()
}

/// The answers of a connection, each from its status on.
fn answers(told: &str) -> Vec<&str> {
    let begins = |rest: &&str| rest.starts_with(|first: char| first.is_ascii_digit());
    let lines = told.match_indices("HTTP/1.").map(|(at, _)| at + 9);
    let starts = lines.filter(|at| told.get(*at..).as_ref().is_some_and(begins));
    let starts: Vec<_> = starts.collect();
    let ends = starts.iter().skip(1).copied().chain([told.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(at, end)| &told[*at..end])
        .collect()
}

/// Asserts that a refusal is one answer in OpenAI's shape.
fn assert_refused(told: &str, status: u16, code: &str, what: &str) {
    let all = answers(told);
    assert_eq!(all.len(), 1, "{what}: {told}");
    assert!(all[0].starts_with(&format!("{status} ")), "{what}: {told}");
    let (_, body) = told.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"]["code"], code, "{what}: {told}");
}

fn assert_nothing_was_sent_on(fleet: &Fleet) {
    for role in [Role::Context, Role::Generation] {
        assert!(fleet.requests(role).is_empty(), "{role:?}");
    }
}
