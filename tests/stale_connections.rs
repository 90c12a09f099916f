//! A generation worker that closes a pooled connection just when it is used again.

mod support;

use std::io::Write;

use kindred::wire::Role;
use support::{Kindred, chat, fleet, raw};

const CHAT: &str = "/v1/chat/completions";

fn large() -> Vec<u8> {
    chat(&"words ".repeat(20_000)).to_string().into_bytes()
}

/// The status of `bytes` after the generation worker's connection was used once, and died unheard
/// when it was used again.
fn status_after_a_death(bytes: &[u8]) -> u16 {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("max_retries: 0"));
    let first = raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string());
    assert_eq!(first.status, 200);
    fleet.of(Role::Generation).next().unwrap().fault(1, "reset");
    let mut client = raw::connect(kindred.edge());
    client.write_all(bytes).unwrap();
    let status = raw::read_answer(&mut client).status;
    kindred.assert_idle();
    status
}

#[test]
fn case_h11_a_large_chunked_body_is_sent_again() {
    let bytes = raw::chunked_request(CHAT, &large(), 50_000);
    assert_eq!(status_after_a_death(&bytes), 200);
}
