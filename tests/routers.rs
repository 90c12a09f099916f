//! Where round_robin and load_balancing send requests (specification sections 2.1 and 2.2).

mod support;

use std::{io::Write, net::TcpStream, time::Duration};

use kindred::wire::Role;
use serde_json::json;
use support::{
    Kindred, eventually,
    fleet::{self, Fleet, Worker},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

fn serve(fleet: &Fleet, router: &str) -> Kindred {
    let yaml = fleet.yaml("").replace("{type: conversation}", router);
    Kindred::serve(&yaml)
}

fn chat(kindred: &Kindred, session: &str) {
    let body = support::chat("hello").to_string();
    let answer = raw::post(kindred.edge(), CHAT, &[("x-session-id", session)], &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// How many requests reached each worker of a role.
fn counts(fleet: &Fleet, role: Role) -> Vec<usize> {
    fleet
        .of(role)
        .map(|worker| worker.requests().len())
        .collect()
}

/// Sends a request and leaves it open; it ends when the connection is dropped.
fn open(kindred: &Kindred, body: &serde_json::Value) -> TcpStream {
    let mut stream = raw::connect(kindred.edge());
    let bytes = raw::request(CHAT, &[], body.to_string().as_bytes());
    stream.write_all(&bytes).unwrap();
    stream
}

fn workers(fleet: &Fleet, role: Role) -> Vec<&Worker> {
    fleet.of(role).collect()
}

#[test]
fn round_robin_takes_one_instance_after_the_other() {
    let fleet = fleet::start(2, 3, |_| {});
    let kindred = serve(&fleet, "{type: round_robin}");
    for turn in 1..=6 {
        // One session: stickiness is not this router's.
        chat(&kindred, "always-the-same");
        let expected: Vec<usize> = (0..2).map(|worker| (turn + 1 - worker) / 2).collect();
        assert_eq!(counts(&fleet, Role::Context), expected);
        let expected: Vec<usize> = (0..3).map(|worker| (turn + 2 - worker) / 3).collect();
        assert_eq!(counts(&fleet, Role::Generation), expected);
    }
    kindred.assert_idle();
}

#[test]
fn round_robin_is_the_default_and_exact_under_concurrency() {
    let fleet = fleet::start(2, 3, |_| {});
    let kindred = serve(&fleet, "{}");
    std::thread::scope(|threads| {
        for _ in 0..6 {
            threads.spawn(|| (0..10).for_each(|_| chat(&kindred, "s")));
        }
    });
    assert_eq!(counts(&fleet, Role::Context), [30, 30]);
    assert_eq!(counts(&fleet, Role::Generation), [20, 20, 20]);
    kindred.assert_idle();
}

#[test]
fn load_balancing_prefers_the_context_instance_with_fewer_requests() {
    let fleet = fleet::start(2, 1, |_| {});
    let kindred = serve(&fleet, "{type: load_balancing}");
    let contexts = workers(&fleet, Role::Context);
    contexts[0].fault(1, "delay=1h");
    let slow = open(&kindred, &support::chat("slow"));
    eventually("the slow prefill begins", || {
        (contexts[0].requests().len() == 1).then_some(())
    });
    for turn in 1..=5 {
        chat(&kindred, "s");
        assert_eq!(counts(&fleet, Role::Context), [1, turn]);
    }
    drop(slow);
    kindred.assert_idle();
    // Of equally idle instances each gets its turn.
    for _ in 0..4 {
        chat(&kindred, "s");
        kindred.assert_idle();
    }
    assert_eq!(counts(&fleet, Role::Context), [3, 7]);
}

#[test]
fn load_balancing_counts_a_stream_on_its_generation_instance_until_it_ends() {
    let fleet = fleet::start(1, 3, |config| {
        config.engine.decode_interval = Duration::from_millis(5);
    });
    let kindred = serve(&fleet, "{type: load_balancing}");
    let endless = json!({"model": "m", "stream": true, "ignore_eos": true, "max_tokens": 100_000,
                         "messages": [{"role": "user", "content": "on and on"}]});
    let mut open_streams = Vec::new();
    for expected in 1..=2 {
        open_streams.push(open(&kindred, &endless));
        eventually("the stream begins", || {
            let begun: usize = counts(&fleet, Role::Generation).iter().sum();
            (begun == expected).then_some(())
        });
    }
    let begun = counts(&fleet, Role::Generation);
    let free = begun.iter().position(|count| *count == 0).unwrap();
    assert_eq!(begun.iter().max(), Some(&1), "{begun:?}");
    let free_label = format!("instance=\"generation-{free}\"");
    for turn in 1..=4 {
        chat(&kindred, "s");
        let mut expected = vec![1; 3];
        expected[free] = turn;
        assert_eq!(counts(&fleet, Role::Generation), expected);
        kindred.assert_metric("kindred_in_flight", &[&free_label], 0.0);
    }
    drop(open_streams);
    kindred.assert_idle();
}
