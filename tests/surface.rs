//! The clients' port beyond inference: paths in every spelling, what the edge tells of itself, and
//! what it tells browsers.

#[path = "surface/aliases.rs"]
mod aliases;
#[path = "surface/cors.rs"]
mod cors;
#[path = "surface/models.rs"]
mod models;
#[path = "surface/paths.rs"]
mod paths;
#[path = "surface/routes.rs"]
mod routes;
mod support;

use std::{io::Write, net::SocketAddr};

use support::{
    Kindred, chat,
    clients::digest,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "key-of-a-client-0123456789";
/// What is only read.
const READ: [&str; 5] = [
    "/v1/models",
    "/health",
    "/version",
    "/cluster_info",
    "/prometheus/metrics",
];

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

/// A `gateway` section with one client, and `more` of its members.
fn gateway(more: &str) -> String {
    let digest = digest(KEY);
    format!("gateway: {{clients: [{{name: ada, api_keys_sha256: ['{digest}']}}]{more}}}")
}

/// A request without a body and with header lines, on a connection of its own.
fn ask(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    raw::send(address, &head(method, target, headers, true))
}

fn head(method: &str, target: &str, headers: &[(&str, &str)], close: bool) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: test\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if close {
        head.push_str("connection: close\r\n");
    }
    (head + "\r\n").into_bytes()
}

/// Everything that comes back until the connection ends.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = raw::connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn bearer() -> String {
    format!("Bearer {KEY}")
}

fn body() -> String {
    chat("hello").to_string()
}
