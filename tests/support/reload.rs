//! Reloading a running program, and requests around it.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpStream},
};

use kindred::wire::Role;

use super::{
    Kindred, chat, eventually,
    fleet::Fleet,
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";

const RELOADS: &str = "kindred_config_reloads_total";

pub fn reloads(kindred: &Kindred, result: &str) -> f64 {
    let label = format!("result=\"{result}\"");
    kindred.metric(RELOADS, &[&label])
}

/// Writes the file anew, asks for a reload and waits for its result.
pub fn reload(kindred: &Kindred, yaml: &str, result: &str) {
    let before = reloads(kindred, result);
    fs::write(kindred.file.as_ref().unwrap(), yaml).unwrap();
    kindred.signal("HUP");
    let label = format!("result=\"{result}\"");
    kindred.assert_metric(RELOADS, &[&label], before + 1.0);
}

pub fn ask(kindred: &Kindred, headers: &[(&str, &str)]) -> Answer {
    raw::post(kindred.edge(), CHAT, headers, &chat("hello").to_string())
}

pub fn addresses(fleet: &Fleet, role: Role) -> Vec<SocketAddr> {
    fleet.of(role).map(|worker| worker.address).collect()
}

/// Sends all of a request but its last byte, and waits until the edge holds it.
pub fn begin_request(kindred: &Kindred, headers: &[(&str, &str)]) -> (TcpStream, u8) {
    let request = raw::request(CHAT, headers, chat("hello").to_string().as_bytes());
    let (last, most) = request.split_last().unwrap();
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(most).unwrap();
    eventually("the request has begun", || {
        (kindred.metric("kindred_body_budget_bytes", &[]) > 0.0).then_some(())
    });
    (stream, *last)
}
