//! Asking for a short answer, as a stream or not, and how it was counted.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use super::{
    Kindred, chat,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

pub const CHAT: &str = "/v1/chat/completions";

/// A chat request's body.
pub fn body(stream: bool) -> String {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    body.to_string()
}

pub fn ask(kindred: &Kindred, stream: bool) -> Answer {
    raw::post(kindred.edge(), CHAT, &[], &body(stream))
}

/// A client that has sent its request.
pub fn begin(kindred: &Kindred, stream: bool) -> TcpStream {
    let mut client = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], body(stream).as_bytes());
    client.write_all(&request).unwrap();
    client
}

/// An edge before a simulated context worker and that generation worker.
pub fn before(generation: SocketAddr, more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 0, |_| {});
    let yaml = fleet::yaml(&[fleet.workers[0].address], &[generation], more);
    (fleet, Kindred::serve(&yaml))
}

/// Waits until so many requests have ended, all of them like this, and nothing is left of them.
pub fn assert_counted(kindred: &Kindred, outcome: &str, times: usize) {
    kindred.assert_metric("kindred_requests_total", &[], times as f64);
    let label = format!("outcome=\"{outcome}\"");
    let counted = kindred.metric("kindred_requests_total", &[&label]);
    let metrics = || kindred.admin("/metrics").text();
    assert_eq!(counted, times as f64, "{outcome}: {}", metrics());
    kindred.assert_idle();
}
