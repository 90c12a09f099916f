//! How the process ends: SIGTERM lets running requests finish, SIGINT ends it at once.

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use kindred::{simulate::worker::SimulatedWorkerConfig, wire::Role};
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    raw,
};

const CHAT: &str = "/v1/chat/completions";
/// Far below every deadline that could end the process instead.
const AT_ONCE: Duration = Duration::from_secs(5);

fn start(more: &str, adjust: impl Fn(&mut SimulatedWorkerConfig)) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, adjust);
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

/// Sends a streaming request of so many tokens and reads its first event.
fn begin_stream(kindred: &Kindred, tokens: u32) -> (TcpStream, String) {
    let mut body = chat("hello");
    body["stream"] = true.into();
    body["ignore_eos"] = true.into();
    body["max_tokens"] = tokens.into();
    let mut stream = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], body.to_string().as_bytes());
    stream.write_all(&request).unwrap();
    let mut seen = String::new();
    let mut chunk = [0; 4096];
    while !seen.contains("data: {") {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "ended early: {seen}");
        seen += &String::from_utf8_lossy(&chunk[..read]);
    }
    (stream, seen)
}

/// Reads what is left of a stream.
fn finish(mut stream: TcpStream, mut seen: String) -> String {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut rest);
    seen += &String::from_utf8_lossy(&rest);
    seen
}

fn refuses_connections(kindred: &Kindred) {
    eventually("nothing new is taken", || {
        TcpStream::connect(kindred.edge()).is_err().then_some(())
    });
}

#[test]
fn sigterm_lets_a_running_stream_finish() {
    let (_fleet, mut kindred) = start("", |config| {
        config.engine.decode_interval = Duration::from_millis(20);
    });
    let (stream, seen) = begin_stream(&kindred, 100);
    kindred.signal("TERM");
    refuses_connections(&kindred);
    let text = finish(stream, seen);
    assert!(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{text}");
    assert_eq!(text.matches("\"content\":").count(), 101, "{text}");
    let since = Instant::now();
    assert_eq!(kindred.exit_code(), Some(0));
    assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
}

#[test]
fn sigterm_lets_a_request_in_its_context_leg_go_both_ways() {
    let (fleet, mut kindred) = start("", |config| {
        config.engine.prefill_per_token = Duration::from_millis(200);
    });
    let mut stream = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    stream.write_all(&request).unwrap();
    eventually("the context worker has it", || {
        fleet.requests(Role::Context).pop()?.rank
    });
    kindred.signal("TERM");
    refuses_connections(&kindred);
    let answer = raw::read_answer(&mut stream);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(kindred.exit_code(), Some(0));
}

#[test]
fn sigterm_ends_an_idle_process_at_once() {
    let (_fleet, mut kindred) = start("", |_| ());
    // A kept-alive connection without a request is no reason to stay.
    let mut idle = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    let request = String::from_utf8(request)
        .unwrap()
        .replace("connection: close\r\n", "");
    idle.write_all(request.as_bytes()).unwrap();
    assert_eq!(raw::read_answer(&mut idle).status, 200);
    let since = Instant::now();
    kindred.signal("TERM");
    assert_eq!(kindred.exit_code(), Some(0));
    assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
}

#[test]
fn readiness_ends_with_sigterm_and_health_and_metrics_stay() {
    let (_fleet, kindred) = start("", |config| {
        config.engine.decode_interval = Duration::from_secs(600);
    });
    let _stream = begin_stream(&kindred, 100);
    assert_eq!(kindred.admin("/readyz").status, 200);
    kindred.signal("TERM");
    eventually("it is not ready", || {
        let answer = kindred.admin("/readyz");
        (answer.status == 503).then_some(())
    });
    refuses_connections(&kindred);
    assert_eq!(kindred.admin("/readyz").status, 503);
    assert_eq!(kindred.admin("/healthz").status, 200);
    kindred.assert_metric("kindred_in_flight", &["generation"], 1.0);
}

#[test]
fn draining_ends_at_its_limit_and_with_a_second_signal() {
    for (more, second) in [
        ("timeouts: {drain: 300ms}", None),
        ("timeouts: {drain: 1h}", Some("INT")),
        ("timeouts: {drain: 1h}", Some("TERM")),
    ] {
        let (_fleet, mut kindred) = start(more, |config| {
            config.engine.decode_interval = Duration::from_secs(600);
        });
        let (stream, seen) = begin_stream(&kindred, 100);
        let since = Instant::now();
        kindred.signal("TERM");
        if let Some(second) = second {
            refuses_connections(&kindred);
            kindred.signal(second);
        }
        assert_eq!(kindred.exit_code(), Some(0), "{more} {second:?}");
        assert!(since.elapsed() < AT_ONCE, "{more} {second:?}");
        let text = finish(stream, seen);
        assert!(
            !text.contains("[DONE]"),
            "a cut stream does not look whole: {text}"
        );
    }
}

#[test]
fn sigint_ends_it_at_once() {
    for busy in [false, true] {
        let (_fleet, mut kindred) = start("", |config| {
            config.engine.decode_interval = Duration::from_secs(600);
        });
        let stream = busy.then(|| begin_stream(&kindred, 100));
        let since = Instant::now();
        kindred.signal("INT");
        assert_eq!(kindred.exit_code(), Some(0), "busy: {busy}");
        assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
        drop(stream);
    }
}

#[test]
fn a_worker_filter_lets_its_requests_finish_too() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = Duration::from_millis(20);
    });
    let worker = fleet.of(Role::Generation).next().unwrap().address;
    let mut filter = Kindred::serve(&format!(
        "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
         - {{name: g, listen: '127.0.0.1:0', worker: '{worker}', server_role: generation}}\n"
    ));
    let context = fleet.of(Role::Context).next().unwrap().address;
    let kindred = Kindred::serve(&fleet::yaml(&[context], &[filter.filters[0].1], ""));
    let (stream, seen) = begin_stream(&kindred, 100);
    filter.signal("TERM");
    let text = finish(stream, seen);
    assert!(text.contains("data: [DONE]"), "{text}");
    assert_eq!(filter.exit_code(), Some(0));
}
