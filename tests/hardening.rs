//! Clients that mean harm by how they speak: slowly, too much, in too many connections, or in ways that
//! two programs could read differently. Each is answered or closed, and no worker hears of it.

#[path = "hardening/bombs.rs"]
mod bombs;
#[path = "hardening/frames.rs"]
mod frames;
#[path = "hardening/handshakes.rs"]
mod handshakes;
#[path = "hardening/heads.rs"]
mod heads;
#[path = "hardening/places.rs"]
mod places;
#[path = "hardening/slow.rs"]
mod slow;
mod support;
#[path = "hardening/threats.rs"]
mod threats;

use std::net::SocketAddr;

use kindred::wire::Role;
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

fn assert_nothing_was_sent_on(fleet: &Fleet) {
    for role in [Role::Context, Role::Generation] {
        assert!(fleet.requests(role).is_empty(), "{role:?}");
    }
}

/// Asserts that an answer is a whole error with an id.
fn assert_refusal(answer: &raw::Answer, status: u16, code: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert_eq!(answer.json()["error"]["code"], code, "{what}");
    assert!(answer.header("x-request-id").is_some(), "{what}");
    assert_eq!(answer.header("connection"), Some("close"), "{what}");
}

/// A worker filter before a worker of its own.
fn filter(more: &str) -> (Fleet, Kindred, SocketAddr) {
    let fleet = fleet::start(1, 0, |_| ());
    let worker = fleet.workers[0].address;
    let kindred = Kindred::serve(&format!(
        "admin: {{listen: '127.0.0.1:0'}}\n{more}worker_filters:\n- {{name: one, listen: '127.0.0.1:0', \
         worker: '{worker}', server_role: context}}\n"
    ));
    let address = kindred.filters[0].1;
    (fleet, kindred, address)
}
