//! Pooled connections to workers: closed before the worker closes them, and replaced where one died
//! just when it was used again.

mod support;

use std::{
    io::Write,
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kindred::wire::Role;
use support::{
    Kindred, chat, eventually, fleet,
    played::{Act, Played, context_answer, generation_answer},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

/// A chat request's body of about 120 KB.
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
    assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
    kindred.assert_idle();
    status
}

#[test]
fn case_h11_a_request_is_sent_again_whatever_its_framing() {
    for bytes in [
        raw::request(CHAT, &[], &large()),
        raw::chunked_request(CHAT, &large(), 50_000),
        raw::request(CHAT, &[], chat("hello").to_string().as_bytes()),
    ] {
        assert_eq!(status_after_a_death(&bytes), 200);
    }
}

/// Two workers that close idle connections after `idle`, and an edge that would keep them longer.
fn racing(idle: Duration) -> (Played, Played, Kindred) {
    let context = Played::closing_idle(idle, |seen, _| Act::Answer(context_answer(seen)));
    let generation = Played::closing_idle(idle, |seen, _| Act::Answer(generation_answer(seen)));
    let more = "max_retries: 0\ntimeouts: {idle_upstream: 60s}\nhealth: {active: false}";
    let yaml = fleet::yaml(&[context.address], &[generation.address], more);
    let kindred = Kindred::serve(&yaml);
    (context, generation, kindred)
}

#[test]
fn case_h11_nobody_notices_a_worker_that_closes_idle_connections_just_then() {
    const IDLE: Duration = Duration::from_millis(60);
    let (context, generation, kindred) = racing(IDLE);
    let kindred = Arc::new(kindred);
    let clients: Vec<_> = (0..3_u64)
        .map(|client| {
            let kindred = kindred.clone();
            thread::spawn(move || {
                let request = raw::request(CHAT, &[], &large());
                for round in 0..40_u64 {
                    let answer = raw::send(kindred.edge(), &request);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    // From some milliseconds before the end to some after it.
                    let offset = (round * 3 + client) % 13;
                    thread::sleep(IDLE - Duration::from_millis(8) + Duration::from_millis(offset));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    for worker in [&context, &generation] {
        let (requests, connections) = (worker.count(), worker.connections());
        assert!(
            connections < requests,
            "some were used again: {connections} of {requests}"
        );
        assert!(connections > 3, "some had died: {connections}");
    }
    assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
    kindred.assert_idle();
}

/// A worker that resets every request on a connection that had one before, so that all pooled
/// connections are dead ones.
fn once_only(answer: fn(&support::scripted::Seen) -> Vec<u8>) -> Played {
    let used = std::sync::Mutex::new(std::collections::HashSet::new());
    Played::start_by_connection(move |seen, connection| {
        match used.lock().unwrap().insert(connection) {
            true => Act::Answer(answer(seen)),
            false => Act::Reset(Vec::new()),
        }
    })
}

#[test]
fn case_h11_a_dead_connection_is_not_replaced_by_another_old_one() {
    let context = once_only(context_answer);
    let generation = once_only(generation_answer);
    let more = "max_retries: 0\ntimeouts: {idle_upstream: 60s}\nhealth: {active: false}";
    let yaml = fleet::yaml(&[context.address], &[generation.address], more);
    let kindred = Kindred::serve(&yaml);
    let request = raw::request(CHAT, &[], &large());
    // Several at once, so that several connections are pooled.
    let clients: Vec<TcpStream> = (0..8).map(|_| raw::connect(kindred.edge())).collect();
    for mut client in &clients {
        client.write_all(&request).unwrap();
    }
    for mut client in clients {
        assert_eq!(raw::read_answer(&mut client).status, 200);
    }
    for _ in 0..20 {
        let answer = raw::send(kindred.edge(), &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
    kindred.assert_idle();
}

#[test]
fn an_idle_connection_is_closed_by_the_edge_before_its_worker_does() {
    let context = Played::start(|seen, _| Act::Answer(context_answer(seen)));
    let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
    let more = "timeouts: {idle_upstream: 150ms}\nhealth: {active: false}";
    let yaml = fleet::yaml(&[context.address], &[generation.address], more);
    let kindred = Kindred::serve(&yaml);
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    for turn in 0..3 {
        assert_eq!(raw::send(kindred.edge(), &request).status, 200);
        for worker in [&context, &generation] {
            eventually("the edge closes it", || worker.is_left(turn).then_some(()));
            let requests = worker.requests();
            assert_eq!(requests.last().map(|last| last.connection), Some(turn));
        }
    }
}

#[test]
fn a_connection_older_than_four_seconds_is_never_used_again() {
    let context = Played::start(|seen, _| Act::Answer(context_answer(seen)));
    let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
    let more = "health: {active: false}";
    let yaml = fleet::yaml(&[context.address], &[generation.address], more);
    let kindred = Kindred::serve(&yaml);
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    assert_eq!(raw::send(kindred.edge(), &request).status, 200);
    let since = Instant::now();
    for worker in [&context, &generation] {
        eventually("the edge closes it", || worker.is_left(0).then_some(()));
    }
    assert!(since.elapsed() > Duration::from_secs(2), "it was pooled");
    assert_eq!(raw::send(kindred.edge(), &request).status, 200);
    for worker in [&context, &generation] {
        assert_eq!(worker.requests()[1].connection, 1);
    }
}
