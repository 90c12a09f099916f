//! Workers that announce themselves: to the store that the edge hosts, and in etcd.

#[path = "discovery/etcd.rs"]
mod etcd;
#[path = "discovery/hosted.rs"]
mod hosted;
#[path = "discovery/members.rs"]
mod members;
mod support;

use std::net::SocketAddr;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{Kindred, eventually, raw};

const CHAT: &str = "/v1/chat/completions";
const PREFIX: &str = "/trtllm-disagg/test/workers/";

/// An edge that hosts the store, followed by more of `disagg_cluster` and of the file.
fn hosting(more: &str, file: &str) -> String {
    cluster(&format!("cluster_uri: 'http://localhost:1', {more}"), file)
}

fn cluster(section: &str, file: &str) -> String {
    format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
         context_servers: {{router: {{type: conversation}}}}\n\
         generation_servers: {{router: {{type: conversation}}}}\n\
         telemetry: {{debug_headers: true}}\n\
         disagg_cluster: {{cluster_name: test, {section}}}\n{file}\n"
    )
}

/// A worker's value, as upstream's workers write it.
fn value(role: Role, address: SocketAddr) -> String {
    let role = if role == Role::Context { 0 } else { 1 };
    let id = format!("{role}-{address}-1764-77-123");
    json!({"worker_id": id, "host": "127.0.0.1", "port": address.port(), "role": role}).to_string()
}

fn set(kindred: &Kindred, key: &str, value: &str, ttl: f64) -> raw::Answer {
    let body = json!({
        "key": format!("{PREFIX}{key}"), "value": value, "expire_time": -1, "ttl": ttl,
        "overwrite_if_exists": false,
    });
    raw::post(kindred.edge(), "/set", &[], &body.to_string())
}

#[track_caller]
fn announce(kindred: &Kindred, key: &str, role: Role, address: SocketAddr) {
    let answer = set(kindred, key, &value(role, address), 3600.0);
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"result": true}))
    );
}

fn withdraw(kindred: &Kindred, key: &str) -> u16 {
    let line = format!(
        "DELETE /delete?key={PREFIX}{key} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
    );
    raw::send(kindred.edge(), line.as_bytes()).status
}

fn info(kindred: &Kindred) -> Value {
    raw::get(kindred.edge(), "/cluster_info").json()
}

/// Waits until these are the instances of a role.
#[track_caller]
fn members(kindred: &Kindred, role: Role, expected: &[SocketAddr]) {
    let mut expected: Vec<_> = expected.iter().map(SocketAddr::to_string).collect();
    expected.sort();
    eventually(&format!("{role:?}: {expected:?}"), || {
        let list = info(kindred)["server_lists"][role.label()].clone();
        let mut list: Vec<String> = serde_json::from_value(list).unwrap();
        list.sort();
        (list == expected).then_some(())
    });
}

fn chat(kindred: &Kindred, session: &str) -> raw::Answer {
    let body = support::chat("hello").to_string();
    raw::post(kindred.edge(), CHAT, &[("x-session-id", session)], &body)
}
