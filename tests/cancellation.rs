//! A client that leaves is noticed within about a second, wherever its request is: the worker that
//! works for it is left as well, nothing new is sent, everything counted in flight comes back, and
//! the request is counted as the client's own cancellation.

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use kindred::wire::Role;
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    raw,
};

const KIB: usize = 1024;
const CHAT: &str = "/v1/chat/completions";
/// "Within 1 s", with room for a loaded machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);

/// Workers whose engine takes that long for a token of a prompt and of an answer.
fn start(prefill: Duration, decode: Duration) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.prefill_per_token = prefill;
        config.engine.decode_interval = decode;
    });
    let kindred = Kindred::serve(&fleet.yaml(""));
    (fleet, kindred)
}

const SLOW: Duration = Duration::from_secs(600);
const FAST: Duration = Duration::ZERO;

/// A chat request's body of at least `size` bytes whose answer goes on for long.
fn body(size: usize, stream: bool) -> String {
    let mut body = chat("hello");
    body["max_tokens"] = 1000.into();
    body["ignore_eos"] = true.into();
    body["stream"] = stream.into();
    body["user"] = "u".repeat(size).into();
    body.to_string()
}

/// The ways in which the same request can be framed: bytes up to what the client has sent when it
/// leaves.
fn framings(stream: bool) -> Vec<(&'static str, Vec<u8>)> {
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

/// Waits until the last request to a worker of that role is running.
fn wait_for_arrival(fleet: &Fleet, role: Role, number: usize) {
    eventually("the worker has the request", || {
        let requests = fleet.requests(role);
        let last = requests.last()?;
        (requests.len() == number && last.rank.is_some()).then_some(())
    });
}

/// Asserts that one request is counted; one that was cancelled before may take a moment to go.
fn assert_in_flight(kindred: &Kindred, metric: &str, role: Role) {
    eventually("one request is in flight", || {
        (kindred.metric(metric, &[role.label()]) == 1.0).then_some(())
    });
}

/// Asserts that the last request to a worker of that role is cancelled soon.
fn assert_cancelled(fleet: &Fleet, role: Role, since: Instant, what: &str) {
    eventually(&format!("the worker sees the client leave: {what}"), || {
        fleet.requests(role).last()?.client_left.then_some(())
    });
    assert!(
        since.elapsed() < NOTICED_WITHIN,
        "{what}: {:?}",
        since.elapsed()
    );
}

/// Asserts that every request so far ended as a cancellation, and that nothing is left of them.
fn assert_only_cancellations(kindred: &Kindred, count: usize) {
    let count = count as f64;
    eventually("the cancellations are counted", || {
        let all = kindred.metric("kindred_requests_total", &[]);
        (all == count).then_some(())
    });
    let cancelled = kindred.metric("kindred_requests_total", &["outcome=\"client_cancel\""]);
    assert_eq!(cancelled, count, "{}", kindred.admin("/metrics").text());
    assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
    kindred.assert_idle();
}

fn connect_and_send(kindred: &Kindred, bytes: &[u8]) -> TcpStream {
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(bytes).unwrap();
    stream
}

/// Reads until `wanted` has been seen.
fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut seen = String::new();
    let mut chunk = [0; 4096];
    while !seen.contains(wanted) {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "ended early: {seen}");
        seen += &String::from_utf8_lossy(&chunk[..read]);
    }
}

#[test]
fn while_it_sends_its_body() {
    let (fleet, kindred) = start(FAST, FAST);
    let large = body(200 * KIB, false);
    let requests = [
        raw::request(CHAT, &[], large.as_bytes()),
        raw::chunked_request(CHAT, large.as_bytes(), 16 * KIB),
    ];
    let mut left = 0;
    for request in &requests {
        for sent in [200, 70 * KIB, 150 * KIB] {
            let stream = connect_and_send(&kindred, &request[..sent]);
            eventually("the edge reads it", || {
                (kindred.metric("kindred_body_budget_bytes", &[]) > 0.0).then_some(())
            });
            drop(stream);
            left += 1;
            eventually("the budget is given back", || {
                (kindred.metric("kindred_body_budget_bytes", &[]) == 0.0).then_some(())
            });
        }
    }
    assert_only_cancellations(&kindred, left);
    assert!(fleet.requests(Role::Context).is_empty());
}

#[test]
fn case_h02_in_the_context_leg() {
    let (fleet, kindred) = start(SLOW, FAST);
    let mut left = 0;
    for stream in [false, true] {
        for (what, request) in framings(stream) {
            let client = connect_and_send(&kindred, &request);
            left += 1;
            wait_for_arrival(&fleet, Role::Context, left);
            assert_in_flight(&kindred, "kindred_in_flight", Role::Context);
            let since = Instant::now();
            drop(client);
            assert_cancelled(&fleet, Role::Context, since, what);
        }
    }
    assert_only_cancellations(&kindred, left);
    assert!(
        fleet.requests(Role::Generation).is_empty(),
        "nothing new is sent"
    );
}

#[test]
fn in_the_context_leg_after_further_bytes() {
    let (fleet, kindred) = start(SLOW, FAST);
    for (number, more) in ["\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"]
        .into_iter()
        .enumerate()
    {
        let (what, request) = framings(false).swap_remove(0);
        let mut client = connect_and_send(&kindred, &request);
        wait_for_arrival(&fleet, Role::Context, number + 1);
        client.write_all(more.as_bytes()).unwrap();
        let since = Instant::now();
        drop(client);
        assert_cancelled(&fleet, Role::Context, since, what);
    }
    assert!(fleet.requests(Role::Generation).is_empty());
}

#[test]
fn case_h02_before_the_first_byte_of_the_generation_leg() {
    let (fleet, kindred) = start(FAST, FAST);
    let generation = fleet.of(Role::Generation).next().unwrap();
    let mut left = 0;
    for stream in [false, true] {
        for (what, request) in framings(stream) {
            if what.contains("without its end") {
                // Its generation request is not whole either.
                continue;
            }
            generation.fault(1, "delay=1h");
            let client = connect_and_send(&kindred, &request);
            left += 1;
            eventually("the worker has the request", || {
                let requests = generation.requests();
                (requests.len() == left && requests.last()?.body_length > 0).then_some(())
            });
            let since = Instant::now();
            drop(client);
            assert_cancelled(&fleet, Role::Generation, since, what);
        }
    }
    assert_only_cancellations(&kindred, left);
}

#[test]
fn after_its_body_was_left_without_an_end_for_the_generation_leg() {
    let (fleet, kindred) = start(FAST, FAST);
    let (_, unfinished) = framings(true).pop().unwrap();
    let client = connect_and_send(&kindred, &unfinished);
    eventually("the prefill is done", || {
        fleet.requests(Role::Context).last()?.finished.then_some(())
    });
    drop(client);
    assert_only_cancellations(&kindred, 1);
}

#[test]
fn in_the_middle_of_a_stream() {
    let (fleet, kindred) = start(FAST, Duration::from_millis(20));
    let mut left = 0;
    for (what, request) in framings(true) {
        if what.contains("without its end") {
            continue;
        }
        let mut client = connect_and_send(&kindred, &request);
        left += 1;
        read_until(&mut client, "data: {");
        let since = Instant::now();
        drop(client);
        assert_cancelled(&fleet, Role::Generation, since, what);
    }
    assert_only_cancellations(&kindred, left);
}

/// The worker says nothing for long after its first event.
#[test]
fn in_a_stream_that_is_silent() {
    let (fleet, kindred) = start(FAST, SLOW);
    let mut left = 0;
    for (what, request) in framings(true) {
        if what.contains("without its end") {
            continue;
        }
        let mut client = connect_and_send(&kindred, &request);
        left += 1;
        read_until(&mut client, "data: {");
        let since = Instant::now();
        drop(client);
        assert_cancelled(&fleet, Role::Generation, since, what);
    }
    assert_only_cancellations(&kindred, left);
}

#[test]
fn while_its_whole_answer_is_made() {
    let (fleet, kindred) = start(FAST, SLOW);
    let mut left = 0;
    for (what, request) in framings(false) {
        if what.contains("without its end") {
            continue;
        }
        let client = connect_and_send(&kindred, &request);
        left += 1;
        wait_for_arrival(&fleet, Role::Generation, left);
        let since = Instant::now();
        drop(client);
        assert_cancelled(&fleet, Role::Generation, since, what);
    }
    assert_only_cancellations(&kindred, left);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_in_either_leg_with_other_requests_on_the_connection() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let (fleet, kindred) = start(prefill, decode);
        let client = reqwest::Client::builder()
            .http2_prior_knowledge()
            .build()
            .unwrap();
        let post = |body: String| client.post(kindred.url(CHAT)).body(body).send();
        let staying = tokio::spawn(post(body(0, false)));
        wait_for_arrival(&fleet, role, 1);
        let mut left = 0;
        for (size, stream) in [(0, false), (0, true), (200 * KIB, false), (200 * KIB, true)] {
            let leaving = tokio::spawn(post(body(size, stream)));
            left += 1;
            wait_for_arrival(&fleet, role, left + 1);
            let since = Instant::now();
            leaving.abort();
            // A stream that has begun is the task's result.
            drop(leaving);
            let what = format!("{role:?}, {size} bytes, stream {stream}");
            assert_cancelled(&fleet, role, since, &what);
        }
        assert!(
            !fleet.requests(role)[0].client_left,
            "the other one goes on"
        );
        eventually("only one is left in flight", || {
            (kindred.metric("kindred_in_flight", &[]) == 1.0).then_some(())
        });
        staying.abort();
        drop(staying);
        assert_only_cancellations(&kindred, left + 1);
        if role == Role::Context {
            assert!(fleet.requests(Role::Generation).is_empty());
        }
    }
}

/// Through worker filters: the engine behind them is left too, and its rank is free again.
#[test]
fn behind_worker_filters() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let fleet = fleet::start(1, 1, |config| {
            config.engine.prefill_per_token = prefill;
            config.engine.decode_interval = decode;
            config.engine.ranks = 2;
        });
        let filter = |name: &str, role| {
            let worker = fleet.of(role).next().unwrap().address;
            format!(
                "- {{name: {name}, listen: '127.0.0.1:0', worker: '{worker}', server_role: {name}, \
                 enable_attention_dp: true, tensor_parallel_size: 2, max_batch_size: 4}}\n"
            )
        };
        let filters = Kindred::serve(&format!(
            "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n{}{}",
            filter("context", Role::Context),
            filter("generation", Role::Generation)
        ));
        let addresses: Vec<_> = filters
            .filters
            .iter()
            .map(|(_, address)| *address)
            .collect();
        let kindred = Kindred::serve(&fleet::yaml(&addresses[..1], &addresses[1..], ""));
        let mut left = 0;
        for stream in [false, true] {
            for (what, request) in framings(stream) {
                if role == Role::Generation && what.contains("without its end") {
                    continue;
                }
                let client = connect_and_send(&kindred, &request);
                left += 1;
                wait_for_arrival(&fleet, role, left);
                assert_in_flight(&filters, "kindred_rank_in_flight", role);
                let since = Instant::now();
                drop(client);
                assert_cancelled(&fleet, role, since, what);
            }
        }
        assert_only_cancellations(&kindred, left);
        filters.assert_idle();
    }
}
