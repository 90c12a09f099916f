//! `http.heartbeat` (case H19): a stream that is silent for long gets SSE comments, from the prefill
//! on, so that no balancer between the client and the edge takes it for dead.

mod support;

use std::{io::Read, thread, time::Duration};

use kindred::wire::Role;
use support::{
    Kindred, PATIENCE,
    asking::{CHAT, ask, assert_counted, before, begin, body},
    eventually,
    fleet::{self, Fleet},
    h2c,
    raw::{self, Answer},
    scripted::{self, Fed, Scripted},
    sse,
};

const OFTEN: &str = "http: {heartbeat: 50ms}\nmax_retries: 0\n";
const BEAT: &str = "E\r\n: keep-alive\n\n\r\n";
/// Many heartbeats.
const LONG: Duration = Duration::from_millis(600);

/// Lets the only worker of a role answer late.
fn delay(fleet: &Fleet, role: Role) {
    let fault = format!("delay={}ms", LONG.as_millis());
    fleet.of(role).next().unwrap().fault(1, &fault);
}

fn without_comments(answer: &Answer) -> String {
    answer.text().replace(": keep-alive\n\n", "")
}

/// Text of an answer whose ids and times are its own.
fn events(text: &str) -> usize {
    sse::read(text.as_bytes()).events.len()
}

#[test]
fn case_h19_a_long_wait_for_either_leg_is_filled_with_comments() {
    for style in ["context_first", "generation_first"] {
        for role in [Role::Context, Role::Generation] {
            let fleet = fleet::start(1, 1, |_| {});
            let kindred = Kindred::serve(&fleet.yaml(&format!("{OFTEN}schedule_style: {style}")));
            let quick = ask(&kindred, true);
            delay(&fleet, role);
            let slow = ask(&kindred, true);
            assert_eq!(slow.status, 200);
            assert_eq!(
                slow.header("content-type"),
                Some("text/event-stream; charset=utf-8")
            );
            assert!(sse::read(&slow.body).comments > 1, "{}", slow.text());
            let told = without_comments(&slow);
            assert!(told.ends_with("data: [DONE]\n\n"), "{told}");
            assert_eq!(events(&told), events(&without_comments(&quick)));
            assert_counted(&kindred, "ok", 2);
        }
    }
}

#[test]
fn case_h19_the_head_and_comments_come_while_the_prefill_goes_on() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(OFTEN));
    fleet.workers[0].fault(1, "delay=1h");
    let mut client = begin(&kindred, true);
    let head = raw::read_until(&mut client, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for _ in 0..3 {
        let mut beat = [0; BEAT.len()];
        client.read_exact(&mut beat).unwrap();
        assert_eq!(String::from_utf8_lossy(&beat), BEAT);
    }
    // And a client that leaves meanwhile is noticed as ever.
    drop(client);
    eventually("the worker is left", || {
        fleet
            .requests(Role::Context)
            .last()?
            .client_left
            .then_some(())
    });
    assert_counted(&kindred, "client_cancel", 1);
    assert!(fleet.requests(Role::Generation).is_empty());
}

#[test]
fn case_h19_comments_come_between_events_and_never_within_one() {
    let worker = Fed::start();
    let (_fleet, kindred) = before(worker.address, OFTEN);
    let mut client = begin(&kindred, true);
    worker.begin();
    // Silent in an event: within a line, after a line, and within the CR LF that ends it.
    for part in ["data: {\"a\"", ":1}\r\n", "id: 7\r\n\r"] {
        worker.chunk(part.as_bytes());
        if part.ends_with("\n\r") {
            break;
        }
        thread::sleep(LONG);
    }
    let seen = raw::read_until(&mut client, "id: 7\r\n\r");
    let (before, after) = seen.split_once("data:").unwrap();
    assert!(!after.contains(": keep-alive"), "{after:?}");
    assert!(!before.contains("data"), "{before:?}");
    // The event has ended, so one comes now.
    worker.chunk(b"\n");
    raw::read_until(&mut client, ": keep-alive\n\n");
    worker.chunk(b": the worker's own\n\ndata: [DONE]\n\n");
    raw::read_until(&mut client, "[DONE]\n\n");
    // Nothing more is to come.
    thread::sleep(LONG);
    worker.end();
    assert_eq!(raw::read_until(&mut client, "0\r\n\r\n"), "\r\n0\r\n\r\n");
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn case_h19_later_failures_are_events() {
    for (role, fault, code, outcome) in [
        (
            Role::Context,
            "status=400",
            "worker_refused",
            "upstream_refused",
        ),
        (
            Role::Context,
            "status=503",
            "worker_refused",
            "upstream_error",
        ),
        (Role::Context, "reset", "worker_unreachable", "unreachable"),
        (
            Role::Generation,
            "status=503",
            "worker_refused",
            "upstream_error",
        ),
        (
            Role::Generation,
            "reset",
            "worker_unreachable",
            "unreachable",
        ),
    ] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(OFTEN));
        let fault = format!("delay={}ms,{fault}", LONG.as_millis());
        fleet.of(role).next().unwrap().fault(1, &fault);
        let answer = ask(&kindred, true);
        assert_eq!(answer.status, 200, "{fault}");
        let read = sse::read(&answer.body);
        assert_eq!(read.events.len(), 1, "{read:?}");
        assert!(read.comments > 0, "{read:?}");
        assert_eq!(sse::last_error(&answer.body)["code"], code, "{fault}");
        assert_counted(&kindred, outcome, 1);
    }
}

/// What comes too late to be a status is an event too: an answer that is no stream, or a coded one.
#[test]
fn case_h19_an_answer_that_cannot_go_on_is_an_event() {
    let json = || scripted::json(r#"{"choices":[]}"#);
    let coded = || {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
                    connection: close\r\n\r\nxyz";
        vec![head.as_bytes().to_vec()]
    };
    for answer in [json, coded] {
        let worker = Scripted::start(move |_| {
            thread::sleep(LONG);
            answer()
        });
        let (_fleet, kindred) = before(worker.address, OFTEN);
        let answer = ask(&kindred, true);
        assert_eq!(answer.status, 200);
        assert_eq!(sse::last_error(&answer.body)["code"], "unusable_answer");
        assert_counted(&kindred, "upstream_error", 1);
    }
}

#[test]
fn case_h19_a_coded_stream_gets_no_comments() {
    let worker = Fed::start();
    // Seldom enough for none to come in the prefill, also where that is slow.
    let seldom = "http: {heartbeat: 2s}\nmax_retries: 0\n";
    let (_fleet, kindred) = before(worker.address, seldom);
    worker.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
          connection: close\r\n\r\nab",
    );
    let mut client = begin(&kindred, true);
    raw::read_until(&mut client, "ab\r\n");
    thread::sleep(Duration::from_secs(5));
    worker.write(b"cd");
    assert_eq!(raw::read_until(&mut client, "cd\r\n"), "2\r\ncd\r\n");
    worker.close();
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn case_h19_there_are_none_by_default_nor_in_an_answer_that_is_no_stream() {
    for (more, stream) in [("", true), (OFTEN, false)] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(more));
        delay(&fleet, Role::Context);
        let answer = ask(&kindred, stream);
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("keep-alive"), "{}", answer.text());
    }
    // And with that, a refusal has its status.
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(OFTEN));
    let fault = format!("delay={}ms,status=400", LONG.as_millis());
    fleet.workers[0].fault(1, &fault);
    assert_eq!(ask(&kindred, false).status, 400);
}

#[test]
fn case_h19_a_context_answer_that_is_final_follows_the_comments() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(OFTEN));
    let fault = format!("delay={}ms,final", LONG.as_millis());
    fleet.workers[0].fault(1, &fault);
    let answer = ask(&kindred, true);
    assert_eq!(answer.status, 200);
    assert!(sse::read(&answer.body).comments > 0, "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert!(fleet.requests(Role::Generation).is_empty());
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn case_h19_over_http2() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(OFTEN));
    delay(&fleet, Role::Context);
    let answer = h2c::post(kindred.edge(), CHAT, &[], body(true).as_bytes(), &[]);
    assert_eq!(answer.status, 200);
    assert!(sse::read(&answer.body).comments > 0, "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn case_h19_a_worker_that_is_silent_for_too_long_is_given_up_all_the_same() {
    let worker = Fed::start();
    let fleet = fleet::start(1, 0, |_| {});
    let more = format!("{OFTEN}timeouts: {{silence: 400ms}}");
    let yaml = fleet::yaml(&[fleet.workers[0].address], &[worker.address], &more);
    let kindred = Kindred::serve(&yaml);
    worker.begin();
    worker.chunk(b"data: {}\n\n");
    let answer = ask(&kindred, true);
    assert!(sse::read(&answer.body).comments > 0, "{}", answer.text());
    assert_eq!(sse::last_error(&answer.body)["code"], "upstream_timeout");
    assert_counted(&kindred, "timeout", 1);
    assert!(worker.is_left(PATIENCE));
}

/// The head that goes out early has what every answer has.
#[test]
fn case_h19_pages_of_other_origins_may_read_it() {
    let fleet = fleet::start(1, 1, |_| {});
    let cors = "cors: {allow_origins: ['https://a.example']}";
    let kindred = Kindred::serve(&fleet.yaml(&format!("{OFTEN}{cors}")));
    delay(&fleet, Role::Context);
    let origin = [("origin", "https://a.example")];
    let answer = raw::post(kindred.edge(), CHAT, &origin, &body(true));
    assert!(sse::read(&answer.body).comments > 0, "{}", answer.text());
    let allowed = answer.header("access-control-allow-origin");
    assert_eq!(allowed, Some("https://a.example"));
}
