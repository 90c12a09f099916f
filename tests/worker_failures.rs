//! What a client gets when workers fail: failover where it can help, else an OpenAI error object with
//! the right status that tells no address; once a stream has begun, an error event at its end.

mod support;

use std::{
    io::{Read, Write},
    net::SocketAddr,
};

use kindred::{server::listeners::FreePorts, wire::Role};
use serde_json::Value;
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet, Worker},
    raw::{self, Answer},
    stand_in::Canned,
};

const CHAT: &str = "/v1/chat/completions";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

fn only(fleet: &Fleet, role: Role) -> &Worker {
    fleet.of(role).next().unwrap()
}

/// Asks for a chat answer, as a stream or not.
fn ask(kindred: &Kindred, stream: bool) -> Answer {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    body["max_tokens"] = 8.into();
    raw::post(kindred.edge(), CHAT, &[], &body.to_string())
}

/// Asserts the OpenAI shape and that no worker's address is told; the result is the error object.
fn error_of(answer: &Answer, status: u16, what: &str) -> Value {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{what}"
    );
    assert_error_object(&answer.json(), what);
    assert!(!format!("{answer:?}").contains("127.0.0.1"), "{answer:?}");
    answer.json()["error"].clone()
}

fn assert_error_object(body: &Value, what: &str) {
    let error = body["error"].as_object().expect("an error object");
    let mut fields: Vec<_> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"], "{what}");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.split(' ').count() > 3,
        "{what}: words to act on: {message}"
    );
    assert!(error["type"].is_string() && error["code"].is_string());
}

fn assert_counted(kindred: &Kindred, fleet: Role, outcome: &str, times: f64) {
    let labels = [
        format!("fleet=\"{}\"", fleet.label()),
        format!("outcome=\"{outcome}\""),
    ];
    kindred.assert_metric("kindred_requests_total", &[&labels[0], &labels[1]], times);
}

/// Addresses where nothing listens, for as long as the ports are held.
fn nowhere() -> (FreePorts, SocketAddr) {
    let mut ports = FreePorts::default();
    let address = ports.pick().unwrap();
    (ports, address)
}

#[test]
fn unreachable_workers_are_502_in_words() {
    let fleet = fleet::start(1, 1, |_| ());
    let (_ports, dead) = nowhere();
    let live = |role| only(&fleet, role).address;
    for (role, context, generation) in [
        (Role::Context, dead, live(Role::Generation)),
        (Role::Generation, live(Role::Context), dead),
    ] {
        let kindred = Kindred::serve(&fleet::yaml(&[context], &[generation], ""));
        for stream in [false, true] {
            let error = error_of(&ask(&kindred, stream), 502, role.label());
            assert_eq!(error["code"], "worker_unreachable", "{error}");
            assert!(
                error["message"].as_str().unwrap().contains(role.label()),
                "{error}"
            );
        }
        assert_counted(&kindred, role, "unreachable", 2.0);
        kindred.assert_idle();
    }
}

#[test]
fn one_unreachable_worker_of_two_is_not_noticed_by_clients() {
    let fleet = fleet::start(1, 1, |_| ());
    let (mut ports, dead) = nowhere();
    let dead_too = ports.pick().unwrap();
    let context = only(&fleet, Role::Context).address;
    let generation = only(&fleet, Role::Generation).address;
    for (contexts, generations) in [
        ([dead, context], [dead_too, generation]),
        ([context, dead], [generation, dead_too]),
    ] {
        let kindred = Kindred::serve(&fleet::yaml(&contexts, &generations, ""));
        for turn in 0..8 {
            let mut body = chat(&format!("turn {turn}"));
            body["stream"] = (turn % 2 == 0).into();
            let session = format!("s{}", turn % 3);
            let headers = [("x-session-id", session.as_str())];
            let answer = raw::post(kindred.edge(), CHAT, &headers, &body.to_string());
            assert_eq!(answer.status, 200, "turn {turn}: {}", answer.text());
        }
        kindred.assert_idle();
    }
}

#[test]
fn a_worker_that_says_no_is_passed_on_with_its_status_and_words() {
    for role in [Role::Context, Role::Generation] {
        let (fleet, kindred) = start("");
        for status in [400, 429, 500, 503] {
            for stream in [false, true] {
                // The first try and the one that `max_retries: 1` allows.
                let worker = only(&fleet, role);
                worker.fault(0, "");
                worker.fault(2, &format!("status={status}"));
                let what = format!("{role:?} {status}, stream {stream}");
                let error = error_of(&ask(&kindred, stream), status, &what);
                let message = error["message"].as_str().unwrap();
                assert!(message.contains("simulated fault"), "{what}: {message}");
                worker.fault(0, "");
            }
        }
        assert_counted(&kindred, role, "upstream_error", 4.0);
        assert_counted(&kindred, role, "upstream_refused", 4.0);
        kindred.assert_idle();
    }
}

#[test]
fn a_context_worker_that_answers_nonsense_is_502() {
    let fleet = fleet::start(0, 1, |_| ());
    let generation = only(&fleet, Role::Generation).address;
    let params = r#""disaggregated_params":{"request_type":"context_only","ctx_request_id":7}"#;
    let shapes = [
        "",
        "{",
        "5",
        "[]",
        "null",
        "{}",
        r#"{"choices":5}"#,
        r#"{"choices":[]}"#,
        r#"{"choices":[5]}"#,
        r#"{"choices":[{}]}"#,
        r#"{"choices":[{"finish_reason":"length"}]}"#,
        r#"{"choices":[{"finish_reason":"length","disaggregated_params":null}]}"#,
        r#"{"choices":[{"finish_reason":"length","disaggregated_params":"x"}]}"#,
        // No disagg_request_id, which a request that goes on needs (specification 4.2 step 4).
        &format!(
            r#"{{"choices":[{{"finish_reason":"length",{params}}}],"prompt_token_ids":[1],"usage":null}}"#
        ),
        &r#"{"a":"#.repeat(100_000),
        "<html>127.0.0.1:8001 is down</html>",
    ];
    for shape in shapes {
        let worker = Canned::json(shape);
        let kindred = Kindred::serve(&fleet::yaml(&[worker.address], &[generation], ""));
        for stream in [false, true] {
            let error = error_of(&ask(&kindred, stream), 502, &shape[..shape.len().min(100)]);
            assert_eq!(error["type"], "upstream_error", "{error}");
        }
        assert_counted(&kindred, Role::Context, "upstream_error", 2.0);
        kindred.assert_idle();
    }
    assert!(fleet.requests(Role::Generation).is_empty());
}

#[test]
fn a_worker_that_speaks_no_http_is_502() {
    let fleet = fleet::start(1, 1, |_| ());
    let live = |role| only(&fleet, role).address;
    for answer in [
        &b""[..],
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"choices\":",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let worker = Canned::answering(answer);
        let context = fleet::yaml(&[worker.address], &[live(Role::Generation)], "");
        let kindred = Kindred::serve(&context);
        let what = String::from_utf8_lossy(answer).into_owned();
        for stream in [false, true] {
            error_of(&ask(&kindred, stream), 502, &what);
        }
        kindred.assert_idle();
    }
    for answer in [&b""[..], b"hello\r\n\r\n"] {
        let worker = Canned::answering(answer);
        let yaml = fleet::yaml(&[live(Role::Context)], &[worker.address], "");
        let kindred = Kindred::serve(&yaml);
        let what = String::from_utf8_lossy(answer).into_owned();
        for stream in [false, true] {
            error_of(&ask(&kindred, stream), 502, &what);
        }
        // A worker that hangs up is asked once more; what is no HTTP would be none again.
        let asked = if answer.is_empty() { 4 } else { 2 };
        assert_eq!(worker.requests(), asked, "{what}");
        kindred.assert_idle();
    }
}

/// Every attempt has an id of its own, and the second leg is told the one that was answered.
#[test]
fn case_h07_a_context_worker_that_resets_is_tried_again_under_a_new_id() {
    let (fleet, kindred) = start("");
    let worker = only(&fleet, Role::Context);
    let id = |body: &str| -> Value {
        let body: Value = serde_json::from_str(body).unwrap();
        body["disaggregated_params"]["disagg_request_id"].clone()
    };
    for stream in [false, true, false] {
        worker.fault(1, "reset");
        let answer = ask(&kindred, stream);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answered = worker.requests().pop().unwrap();
        let generation = fleet.requests(Role::Generation).pop().unwrap();
        assert_eq!(id(&answered.body), id(&generation.body));
    }
    // More than any kind of second attempt can outlast.
    worker.fault(100, "reset");
    error_of(&ask(&kindred, false), 502, "resets");
    error_of(&ask(&kindred, true), 502, "resets");
    assert_eq!(fleet.requests(Role::Generation).len(), 3);
    let requests = fleet.requests(Role::Context);
    let mut ids: Vec<_> = requests.iter().map(|r| id(&r.body).to_string()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), requests.len(), "one id for each attempt");
    kindred.assert_idle();
}

#[test]
fn case_h15_a_worker_that_hangs_is_504_after_the_configured_time() {
    for (role, more) in [
        (Role::Context, "timeouts: {context: 300ms}"),
        (Role::Generation, "timeouts: {silence: 300ms}"),
    ] {
        let (fleet, kindred) = start(more);
        for stream in [false, true] {
            only(&fleet, role).fault(1, "delay=1h");
            let error = error_of(&ask(&kindred, stream), 504, role.label());
            assert_eq!(error["code"], "upstream_timeout", "{error}");
        }
        let hung: Vec<_> = eventually("the worker is left", || {
            let requests = fleet.requests(role);
            requests
                .iter()
                .all(|request| request.client_left)
                .then_some(requests)
        });
        assert_eq!(hung.len(), 2, "nobody waits a second time");
        assert_counted(&kindred, role, "timeout", 2.0);
        kindred.assert_idle();
    }
}

#[test]
fn a_stream_that_breaks_off_ends_in_an_error_event() {
    let (fleet, kindred) = start("");
    for events in [1, 3, 5] {
        only(&fleet, Role::Generation).fault(1, &format!("die-after={events}"));
        assert_broken_stream(&kindred, events);
    }
    assert_counted(&kindred, Role::Generation, "stream_broken", 3.0);
    kindred.assert_idle();
}

#[test]
fn a_stream_that_breaks_off_behind_a_worker_filter_ends_in_an_error_event() {
    let fleet = fleet::start(1, 1, |_| ());
    let worker = only(&fleet, Role::Generation);
    let filter = Kindred::serve(&format!(
        "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
         - {{name: g, listen: '127.0.0.1:0', worker: '{}', server_role: generation}}\n",
        worker.address
    ));
    let context = only(&fleet, Role::Context).address;
    let kindred = Kindred::serve(&fleet::yaml(&[context], &[filter.filters[0].1], ""));
    for events in [1, 3, 5] {
        worker.fault(1, &format!("die-after={events}"));
        assert_broken_stream(&kindred, events);
    }
    assert_counted(&kindred, Role::Generation, "stream_broken", 3.0);
    kindred.assert_idle();
    filter.assert_idle();
}

/// Asks for a stream whose worker dies after so many events.
fn assert_broken_stream(kindred: &Kindred, events: usize) {
    let answer = ask(kindred, true);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let all: Vec<_> = text.split_terminator("\n\n").collect();
    assert_eq!(all.len(), events + 1, "{text}");
    let last = all
        .last()
        .unwrap()
        .strip_prefix("data: ")
        .expect("an event");
    assert_error_object(&serde_json::from_str(last).expect("JSON"), last);
    assert!(!text.contains("[DONE]"), "no good end: {text}");
    assert!(!text.contains("127.0.0.1"), "{text}");
}

#[test]
fn a_json_answer_that_breaks_off_never_looks_whole() {
    let (fleet, kindred) = start("");
    only(&fleet, Role::Generation).fault(1, "die-after=1");
    let mut stream = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    stream.write_all(&request).unwrap();
    let mut bytes = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.starts_with("HTTP/1.1 200") && text.ends_with("0\r\n\r\n");
    assert!(!whole, "{text}");
    kindred.assert_metric("kindred_requests_total", &[], 1.0);
    let ok = kindred.metric("kindred_requests_total", &["outcome=\"ok\""]);
    assert_eq!(ok, 0.0);
    kindred.assert_idle();
}
