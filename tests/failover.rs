//! Where a leg is tried again, and where it is not: each kind of failure, at every instant.

mod support;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use kindred::wire::Role;
use serde_json::Value;
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    played::{Act, Played, context_answer, generation_answer, refusal},
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";
/// No test waits for what it does not look at.
const QUICK: &str = "timeouts: {retry_pause: 0s, retry_pause_max: 0s}";

fn ask(kindred: &Kindred, stream: bool) -> Answer {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    raw::post(kindred.edge(), CHAT, &[], &body.to_string())
}

/// Workers that do the same thing with the first `count` requests that reach any of them, and
/// answer the others well.
fn failing_first(
    workers: usize,
    count: usize,
    act: impl Fn() -> Act + Clone + Send + Sync + 'static,
) -> Vec<Played> {
    let failures = std::sync::Arc::new(AtomicUsize::new(count));
    (0..workers)
        .map(|_| {
            let (failures, act) = (failures.clone(), act.clone());
            Played::start(move |seen, _| {
                let left = failures.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
                match left {
                    Ok(_) => act(),
                    Err(_) => Act::Answer(generation_answer(seen)),
                }
            })
        })
        .collect()
}

fn addresses(workers: &[Played]) -> Vec<SocketAddr> {
    workers.iter().map(|worker| worker.address).collect()
}

fn counts(workers: &[Played]) -> Vec<usize> {
    let mut counts: Vec<_> = workers.iter().map(Played::count).collect();
    counts.sort_unstable();
    counts
}

fn retries(kindred: &Kindred, fleet: &str, reason: &str) -> f64 {
    let labels = [format!("fleet=\"{fleet}\""), format!("reason=\"{reason}\"")];
    kindred.metric("kindred_leg_retries_total", &[&labels[0], &labels[1]])
}

fn assert_one_id(workers: &[Played]) {
    let requests = workers.iter().flat_map(Played::requests);
    let mut ids: Vec<_> = requests.map(|request| request.id()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "a generation retry keeps its id");
}

/// A context worker, and generation workers of a test.
fn before(contexts: &Fleet, generations: &[Played], more: &str) -> Kindred {
    let contexts: Vec<_> = contexts.of(Role::Context).map(|one| one.address).collect();
    Kindred::serve(&fleet::yaml(&contexts, &addresses(generations), more))
}

#[test]
fn a_generation_request_moves_where_its_worker_has_not_begun_and_stays_where_it_may_have() {
    let contexts = fleet::start(1, 0, |_| {});
    for (status, moves) in [
        ("408 Request Timeout", true),
        ("429 Too Many Requests", true),
        ("503 Service Unavailable", true),
        ("500 Internal Server Error", false),
        ("502 Bad Gateway", false),
        ("504 Gateway Timeout", false),
    ] {
        for stream in [false, true] {
            let workers = failing_first(2, 1, move || Act::Answer(refusal(status, "")));
            let kindred = before(&contexts, &workers, &format!("max_retries: 1\n{QUICK}"));
            let answer = ask(&kindred, stream);
            assert_eq!(answer.status, 200, "{status}: {}", answer.text());
            let expected = if moves { [1, 1] } else { [0, 2] };
            assert_eq!(counts(&workers), expected, "{status}");
            assert_one_id(&workers);
            assert_eq!(retries(&kindred, "generation", "status"), 1.0);
            kindred.assert_idle();
        }
    }
}

#[test]
fn a_generation_request_that_is_reset_before_an_answer_stays_and_keeps_its_id() {
    let contexts = fleet::start(1, 0, |_| {});
    for stream in [false, true] {
        let workers = failing_first(2, 2, || Act::Reset(Vec::new()));
        let kindred = before(&contexts, &workers, &format!("max_retries: 2\n{QUICK}"));
        let answer = ask(&kindred, stream);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(counts(&workers), [0, 3]);
        assert_one_id(&workers);
        assert_eq!(retries(&kindred, "generation", "reset"), 2.0);
        kindred.assert_idle();
    }
}

#[test]
fn the_last_workers_own_answer_is_told_when_attempts_are_used_up() {
    let contexts = fleet::start(1, 0, |_| {});
    let act = || Act::Answer(refusal("503 Service Unavailable", "retry-after: 7\r\n"));
    let workers = failing_first(2, usize::MAX, act);
    let kindred = before(&contexts, &workers, &format!("max_retries: 3\n{QUICK}"));
    let answer = ask(&kindred, true);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("7"));
    let message = answer.json()["error"]["message"].take();
    assert_eq!(message, "played: 503 Service Unavailable");
    assert_eq!(counts(&workers), [2, 2]);
    kindred.assert_idle();
}

#[test]
fn without_retries_nothing_is_sent_twice() {
    let contexts = fleet::start(1, 0, |_| {});
    let workers = failing_first(2, 1, || Act::Reset(Vec::new()));
    let kindred = before(&contexts, &workers, "max_retries: 0");
    assert_eq!(ask(&kindred, false).status, 502);
    assert_eq!(counts(&workers), [0, 1]);
    kindred.assert_idle();
}

#[test]
fn a_refusal_of_the_request_itself_is_final() {
    let contexts = fleet::start(1, 0, |_| {});
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "422 Unprocessable Entity",
    ] {
        let workers = failing_first(2, 1, move || Act::Answer(refusal(status, "")));
        let kindred = before(&contexts, &workers, &format!("max_retries: 5\n{QUICK}"));
        assert_eq!(ask(&kindred, true).status.to_string(), status[..3]);
        assert_eq!(counts(&workers), [0, 1], "{status}");
    }
}

/// Every end of an answer's connection after its first byte, at each byte of the head and after it.
#[test]
fn nothing_is_sent_again_once_a_byte_of_the_answer_has_come() {
    let contexts = fleet::start(1, 0, |_| {});
    for stream in [false, true] {
        let kind = match stream {
            false => "application/json\r\ncontent-length: 14",
            true => "text/event-stream\r\ntransfer-encoding: chunked",
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n");
        let length = head.len();
        let body = if stream {
            "a\r\ndata: {}\n\n\r\n"
        } else {
            r#"{"choices""#
        };
        let answer = format!("{head}{body}").into_bytes();
        let worker = Played::start(move |_, number| {
            let part = answer[..=number / 2].to_vec();
            if number % 2 == 0 {
                Act::Close(part)
            } else {
                Act::Reset(part)
            }
        });
        let more = format!("max_retries: 5\n{QUICK}");
        let kindred = before(&contexts, std::slice::from_ref(&worker), &more);
        for number in 0..2 * (length + body.len()) {
            let sent = number / 2 + 1;
            let answer = ask(&kindred, stream);
            let what = format!(
                "{sent} of {length} bytes, stream {stream}: {}",
                answer.text()
            );
            assert_eq!(worker.count(), number + 1, "{what}");
            if stream && sent >= length {
                assert_eq!(answer.status, 200, "{what}");
                assert!(answer.text().contains("data: {\"error\":"), "{what}");
            } else {
                assert_eq!(answer.status, 502, "{what}");
            }
        }
        assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
        kindred.assert_idle();
    }
}

/// None of a context answer is told before it is whole, so it is asked for again wherever it ended.
#[test]
fn a_context_answer_that_ends_anywhere_is_asked_for_again_under_a_new_id() {
    let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
    let context = Played::start(|seen, number| {
        let answer = context_answer(seen);
        let part = answer[..(number / 2 * 3).min(answer.len() - 1)].to_vec();
        match number % 4 {
            0 => Act::Close(part),
            2 => Act::Reset(part),
            _ => Act::Answer(answer),
        }
    });
    let yaml = fleet::yaml(&[context.address], &[generation.address], QUICK);
    let kindred = Kindred::serve(&yaml);
    for number in 1..=100 {
        let answer = ask(&kindred, false);
        assert_eq!(answer.status, 200, "{number}: {}", answer.text());
        let requests = context.requests();
        let [.., first, second] = &requests[..] else {
            panic!("two attempts")
        };
        assert_eq!(requests.len(), 2 * number);
        assert_ne!(first.id(), second.id());
        let generation = generation.requests().pop().unwrap();
        assert_eq!(generation.id(), second.id(), "the attempt that answered");
    }
    // Those on pooled connections that ended before a byte are replaced and not counted.
    assert!(retries(&kindred, "context", "reset") >= 99.0);
    kindred.assert_idle();
}

#[test]
fn a_whole_request_moves_whatever_happened_before_an_answer() {
    type Do = fn() -> Act;
    let acts: [(&str, Do); 4] = [
        ("status", || {
            Act::Answer(refusal("500 Internal Server Error", ""))
        }),
        ("status", || {
            Act::Answer(refusal("429 Too Many Requests", ""))
        }),
        ("reset", || Act::Reset(Vec::new())),
        ("timeout", || Act::Silence),
    ];
    for (reason, act) in acts {
        for stream in [false, true] {
            let workers = failing_first(2, 1, act);
            let urls: Vec<_> = addresses(&workers)
                .iter()
                .map(|one| format!("'{one}'"))
                .collect();
            let kindred = Kindred::serve(&format!(
                "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\nmax_retries: 1\n\
                 timeouts: {{first_byte: 5s}}\naggregated_servers: {{num_instances: 2, urls: [{}]}}\n",
                urls.join(", ")
            ));
            let answer = ask(&kindred, stream);
            assert_eq!(answer.status, 200, "{reason}: {}", answer.text());
            assert_eq!(counts(&workers), [1, 1], "{reason}");
            assert_eq!(retries(&kindred, "aggregated", reason), 1.0, "{reason}");
            kindred.assert_idle();
        }
    }
}

#[test]
fn case_h15_a_frozen_context_worker_is_left_for_another_one_under_a_new_id() {
    let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
    let first = std::sync::Arc::new(AtomicUsize::new(0));
    let contexts: Vec<_> = (0..2)
        .map(|_| {
            let first = first.clone();
            Played::start(move |seen, _| match first.fetch_add(1, Relaxed) {
                0 => Act::Silence,
                _ => Act::Answer(context_answer(seen)),
            })
        })
        .collect();
    let more = "max_retries: 1\ntimeouts: {context: 5s}";
    let yaml = fleet::yaml(&addresses(&contexts), &[generation.address], more);
    let kindred = Kindred::serve(&yaml);
    let answer = ask(&kindred, false);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(counts(&contexts), [1, 1]);
    let ids: Vec<_> = contexts.iter().map(|one| one.requests()[0].id()).collect();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(retries(&kindred, "context", "timeout"), 1.0);
    eventually("the frozen one is left", || {
        contexts.iter().any(|one| one.is_left(0)).then_some(())
    });
    kindred.assert_idle();
}

#[test]
fn case_h15_a_frozen_generation_worker_is_a_504_and_nobody_else_is_asked() {
    let contexts = fleet::start(1, 0, |_| {});
    for stream in [false, true] {
        let workers = failing_first(2, 1, || Act::Silence);
        let more = "max_retries: 5\ntimeouts: {first_byte: 2s}";
        let kindred = before(&contexts, &workers, more);
        let answer = ask(&kindred, stream);
        assert_eq!(answer.status, 504, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_timeout");
        assert_eq!(counts(&workers), [0, 1]);
        eventually("it is left", || {
            workers.iter().any(|one| one.is_left(0)).then_some(())
        });
        kindred.assert_idle();
    }
}

fn in_flight(kindred: &Kindred) -> Value {
    let page = kindred.admin("/metrics").text();
    let lines = page
        .lines()
        .filter(|line| line.starts_with("kindred_in_flight{fleet=\"context\""));
    let counts: serde_json::Map<_, _> = lines
        .filter_map(|line| {
            let name = line.split("instance=\"").nth(1)?.split('"').next()?;
            let count: f64 = line.rsplit(' ').next()?.parse().ok()?;
            Some((name.to_owned(), (count as i64).into()))
        })
        .collect();
    Value::Object(counts)
}

#[test]
fn the_load_of_a_context_retry_goes_where_the_retry_goes() {
    let first = std::sync::Arc::new(AtomicUsize::new(0));
    let contexts: Vec<_> = (0..2)
        .map(|_| {
            let first = first.clone();
            Played::start(move |_, _| match first.fetch_add(1, Relaxed) {
                0 => Act::Answer(refusal("503 Service Unavailable", "")),
                _ => Act::Silence,
            })
        })
        .collect();
    let yaml = fleet::yaml(
        &addresses(&contexts),
        &["127.0.0.1:1".parse().unwrap()],
        "max_retries: 1",
    );
    let kindred = Kindred::serve(&yaml);
    let mut client = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    std::io::Write::write_all(&mut client, &request).unwrap();
    let second = eventually("the second attempt is there", || {
        let requests = first.load(Relaxed);
        (requests == 2).then(|| in_flight(&kindred))
    });
    let mut loads: Vec<_> = second.as_object().unwrap().values().cloned().collect();
    loads.sort_by_key(Value::as_i64);
    assert_eq!(loads, [0, 1], "{second}");
    drop(client);
    kindred.assert_idle();
}

#[test]
fn a_worker_is_asked_again_when_it_said_it_might() {
    let contexts = fleet::start(1, 0, |_| {});
    let act = || Act::Answer(refusal("429 Too Many Requests", "retry-after: 1\r\n"));
    let workers = failing_first(1, 1, act);
    let more = "max_retries: 1\ntimeouts: {retry_pause: 0s, retry_pause_max: 60s}";
    let kindred = before(&contexts, &workers, more);
    assert_eq!(ask(&kindred, false).status, 200);
    let [refused, answered] = &workers[0].requests()[..] else {
        panic!("two requests");
    };
    let waited = answered.at.duration_since(refused.at);
    assert!(waited.as_millis() >= 1000, "{waited:?}");
}

#[test]
fn a_leg_finds_the_one_instance_that_works() {
    let (mut ports, mut dead) = (kindred::server::listeners::FreePorts::default(), Vec::new());
    dead.resize_with(4, || ports.pick().unwrap());
    for rounds in 0..4 {
        let context = Played::start(|seen, _| Act::Answer(context_answer(seen)));
        let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
        let with = |address| {
            let mut all = dead.clone();
            all.insert(rounds, address);
            all
        };
        let (contexts, generations) = (with(context.address), with(generation.address));
        let yaml = fleet::yaml(&contexts, &generations, "max_retries: 4");
        let kindred = Kindred::serve(&yaml);
        for _ in 0..5 {
            let answer = ask(&kindred, false);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        kindred.assert_idle();
    }
}

/// A worker that answers once it has the head of a request, reads no more of it and hangs up.
fn hasty(answer: Vec<u8>) -> SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut head = [0; 64];
            // What is not read makes the end of the connection a reset.
            if client.read(&mut head).is_ok() {
                let _ = client.write_all(&answer);
            }
        }
    });
    address
}

#[test]
fn a_worker_that_refuses_before_it_has_the_whole_body_is_heard() {
    let context = Played::start(|seen, _| Act::Answer(context_answer(seen)));
    let generation = Played::start(|seen, _| Act::Answer(generation_answer(seen)));
    let refusing = hasty(refusal("413 Payload Too Large", "connection: close\r\n"));
    for (contexts, generations) in [
        ([refusing], [generation.address]),
        ([context.address], [refusing]),
    ] {
        let kindred = Kindred::serve(&fleet::yaml(&contexts, &generations, "max_retries: 0"));
        let body = chat(&"words ".repeat(1_000_000)).to_string();
        let answer = raw::post(kindred.edge(), CHAT, &[], &body);
        assert_eq!(answer.status, 413, "{}", answer.text());
        let message = answer.json()["error"]["message"].take();
        assert_eq!(message, "played: 413 Payload Too Large");
        kindred.assert_idle();
    }
}
