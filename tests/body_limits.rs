//! What bounds a request body: its size, the budget of all bodies, time, coding. Each refusal says
//! what a person can do, and gives everything back.

mod support;

use std::io::{Read, Write};

use kindred::{simulate::worker::recorder::Recorded, wire::Role};
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
    reload,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// How a body is put on the wire.
type Framing = fn(&[u8]) -> Vec<u8>;

const CHAT: &str = "/v1/chat/completions";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

/// A chat request's body of exactly `size` bytes.
fn body_of(size: usize) -> Vec<u8> {
    let mut body = chat("hello");
    body["user"] = "".into();
    let room = size - body.to_string().len();
    body["user"] = "u".repeat(room).into();
    body.to_string().into_bytes()
}

/// The head of a POST whose body is announced and not sent.
fn head(fields: &str) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n{fields}\r\n").into_bytes()
}

fn assert_error(answer: &Answer, status: u16, code: &str) -> String {
    assert_eq!(answer.status, status, "{}", answer.text());
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], code, "{error}");
    assert!(error["type"].is_string(), "{error}");
    error["message"].as_str().unwrap().to_owned()
}

fn assert_nothing_was_sent_on(fleet: &Fleet) {
    for role in [Role::Context, Role::Generation] {
        assert!(fleet.requests(role).is_empty(), "{role:?}");
    }
}

/// Of a large chunked body the end is read only while the request is forwarded, so a worker may have
/// seen its head; it must not have seen the request.
fn assert_nothing_was_generated(fleet: &Fleet) {
    eventually("the generation worker is left", || {
        let requests = fleet.requests(Role::Generation);
        let left = |request: &Recorded| request.body_length == 0 && request.client_left;
        requests.iter().all(left).then_some(())
    });
}

#[test]
fn case_h24_a_length_above_the_limit_is_refused_before_the_body_comes() {
    let (fleet, kindred) = start("");
    let size = 32 * MIB + 1;
    for expect in ["", "expect: 100-continue\r\n"] {
        let request = head(&format!("content-length: {size}\r\n{expect}"));
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(&request).unwrap();
        let message = assert_error(&raw::read_answer(&mut stream), 413, "request_too_large");
        assert!(
            message.contains(&(32 * MIB).to_string()),
            "the limit: {message}"
        );
        assert!(message.contains(&size.to_string()), "the size: {message}");
    }
    assert_nothing_was_sent_on(&fleet);
    let counted = ["outcome=\"too_large\"", "route=\"chat_completions\""];
    kindred.assert_metric("kindred_requests_total", &counted, 2.0);
    kindred.assert_idle();
}

#[test]
fn the_limit_is_configured_and_holds_to_the_byte_in_every_framing() {
    let (fleet, kindred) = start("limits: {max_body: 100KiB}");
    let limit = 100 * KIB;
    let framings: [Framing; 3] = [
        |body| raw::request(CHAT, &[], body),
        |body| raw::chunked_request(CHAT, body, 1000),
        |body| raw::chunked_request(CHAT, body, 64 * KIB),
    ];
    for frame in framings {
        let answer = raw::send(kindred.edge(), &frame(&body_of(limit)));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let taken = fleet.requests(Role::Context).len();
    for size in [limit + 1, limit + 40 * KIB, MIB] {
        for frame in framings {
            let answer = raw::send(kindred.edge(), &frame(&body_of(size)));
            let message = assert_error(&answer, 413, "request_too_large");
            assert!(message.contains(&limit.to_string()), "{message}");
        }
    }
    assert_eq!(fleet.requests(Role::Context).len(), taken);
    kindred.assert_idle();
}

#[test]
fn case_h24_the_limit_is_by_path_and_a_refusal_is_not_to_be_retried() {
    let limits = "limits: {max_body: {default: 100KiB, /v1/chat/completions: 200KiB}}";
    let (fleet, kindred) = start(limits);
    let completion = |size: usize| {
        let start = r#"{"model":"m","max_tokens":4,"prompt":"hello","user":""#;
        let room = size - start.len() - 2;
        format!("{start}{}\"}}", "u".repeat(room)).into_bytes()
    };
    type OnPath = fn(&str, &[u8]) -> Vec<u8>;
    let framings: [OnPath; 2] = [
        |path, body| raw::request(path, &[], body),
        |path, body| raw::chunked_request(path, body, 10_000),
    ];
    for frame in framings {
        for (path, limit, body) in [
            (CHAT, 200 * KIB, &body_of as &dyn Fn(usize) -> Vec<u8>),
            ("/v1/completions", 100 * KIB, &completion),
        ] {
            let answer = raw::send(kindred.edge(), &frame(path, &body(limit)));
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let answer = raw::send(kindred.edge(), &frame(path, &body(limit + 1)));
            let message = assert_error(&answer, 413, "request_too_large");
            assert!(message.contains(&limit.to_string()), "{path}: {message}");
            assert!(message.contains("do not retry"), "{message}");
            assert_eq!(answer.header("retry-after"), None);
        }
    }
    assert_eq!(fleet.requests(Role::Context).len(), 4);
    // A file with other limits is followed at once.
    reload::reload(
        &kindred,
        &fleet.yaml("limits: {max_body: 50KiB}"),
        "applied",
    );
    let answer = raw::send(kindred.edge(), &raw::request(CHAT, &[], &body_of(60 * KIB)));
    assert_error(&answer, 413, "request_too_large");
    kindred.assert_idle();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_over_http2() {
    let (fleet, kindred) = start("limits: {max_body: 40KiB}");
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .timeout(support::PATIENCE)
        .build()
        .unwrap();
    let send = |body: reqwest::Body| client.post(kindred.url(CHAT)).body(body).send();
    let in_parts = |size: usize| {
        let parts = body_of(size);
        let parts: Vec<_> = parts.chunks(5000).map(<[u8]>::to_vec).collect();
        let parts = parts.into_iter().map(Ok::<_, std::io::Error>);
        reqwest::Body::wrap_stream(futures_util::stream::iter(parts))
    };
    assert_eq!(send(body_of(40 * KIB).into()).await.unwrap().status(), 200);
    assert_eq!(send(in_parts(40 * KIB)).await.unwrap().status(), 200);
    for body in [body_of(40 * KIB + 1).into(), in_parts(40 * KIB + 1)] {
        assert_eq!(send(body).await.unwrap().status(), 413);
    }
    assert_eq!(fleet.requests(Role::Context).len(), 2);
    kindred.assert_idle();
}

#[test]
fn white_space_after_the_object_counts_as_body() {
    let (_fleet, kindred) = start("limits: {max_body: 100KiB}");
    let mut body = body_of(80 * KIB);
    body.resize(MIB, b' ');
    for chunk in [1000, 16 * KIB, MIB] {
        let request = raw::chunked_request(CHAT, &body, chunk);
        let answer = raw::send(kindred.edge(), &request);
        assert_error(&answer, 413, "request_too_large");
    }
    kindred.assert_idle();
}

#[test]
fn bytes_after_the_object_are_refused_however_late_they_come() {
    let (fleet, kindred) = start("");
    for size in [200, 80 * KIB] {
        for garbage in [&b"x"[..], b"{\"model\":\"n\"}"] {
            let mut body = body_of(size);
            let end = body.len();
            body.extend_from_slice(garbage);
            let mut requests = vec![
                raw::request(CHAT, &[], &body),
                raw::chunked_request(CHAT, &body, 1000),
            ];
            // The object in chunks that end with it, so that the garbage has a chunk of its own.
            requests.push(raw::chunked_request(CHAT, &body, end));
            for request in requests {
                let answer = raw::send(kindred.edge(), &request);
                assert_eq!(answer.status, 400, "{size}: {}", answer.text());
            }
        }
    }
    assert_nothing_was_generated(&fleet);
    kindred.assert_idle();
}

#[test]
fn the_budget_of_all_bodies_refuses_with_retry_after_and_is_given_back() {
    let (fleet, kindred) = start("limits: {max_body: 1MiB, body_budget: 3MiB}");
    let used = |bytes: usize| {
        kindred.assert_metric("kindred_body_budget_bytes", &[], bytes as f64);
    };
    let body = body_of(MIB);
    let request = raw::request(CHAT, &[], &body);
    let mut holders: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = raw::connect(kindred.edge());
            stream.write_all(&request[..request.len() - 1]).unwrap();
            stream
        })
        .collect();
    used(3 * (MIB - 1));
    for request in [
        raw::request(CHAT, &[], &body_of(200)),
        raw::chunked_request(CHAT, &body_of(200), 50),
    ] {
        let answer = raw::send(kindred.edge(), &request);
        let message = assert_error(&answer, 503, "body_budget_spent");
        let retry = answer.header("retry-after");
        assert!(
            retry.is_some_and(|after| after.parse::<u32>().is_ok()),
            "{message}"
        );
    }
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_metric("kindred_requests_total", &["outcome=\"overloaded\""], 2.0);
    let mut first = holders.remove(0);
    drop(holders);
    used(MIB - 1);
    first.write_all(&request[request.len() - 1..]).unwrap();
    assert_eq!(raw::read_answer(&mut first).status, 200);
    kindred.assert_idle();
    assert_eq!(raw::send(kindred.edge(), &request).status, 200);
    kindred.assert_idle();
}

/// Only what has come counts: an announcement takes no room from others.
#[test]
fn bodies_that_are_only_announced_starve_nobody() {
    let (_fleet, kindred) = start("limits: {body_budget: 40MiB}");
    let announcers: Vec<_> = (0..20)
        .map(|_| {
            let mut request = head(&format!("content-length: {}\r\n", 32 * MIB));
            request.push(b'{');
            let mut stream = raw::connect(kindred.edge());
            stream.write_all(&request).unwrap();
            stream
        })
        .collect();
    // A byte of each is held.
    kindred.assert_metric("kindred_body_budget_bytes", &[], announcers.len() as f64);
    let answer = raw::send(kindred.edge(), &raw::request(CHAT, &[], &body_of(MIB)));
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(announcers);
    kindred.assert_idle();
}

#[test]
fn a_budget_of_one_largest_body_serves_one_largest_body() {
    let (_fleet, kindred) = start("limits: {max_body: 1MiB, body_budget: 1MiB}");
    let answer = raw::send(kindred.edge(), &raw::request(CHAT, &[], &body_of(MIB)));
    assert_eq!(answer.status, 200, "{}", answer.text());
    kindred.assert_idle();
}

#[test]
fn case_h09_coded_bodies_are_told_apart_from_bad_json() {
    let (fleet, kindred) = start("");
    for coding in ["compress", "exi", "lzma, identity", "x"] {
        let request = raw::request(CHAT, &[("Content-Encoding", coding)], b"\x1f\x8b\x08");
        let answer = raw::send(kindred.edge(), &request);
        let message = assert_error(&answer, 415, "unsupported_content_encoding");
        let name = coding.split(',').next().unwrap();
        assert!(message.contains(name), "{message}");
    }
    assert_nothing_was_sent_on(&fleet);
    let plain = [("content-encoding", "identity")];
    let answer = raw::send(kindred.edge(), &raw::request(CHAT, &plain, &body_of(200)));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_body_that_comes_too_slowly_ends_with_408() {
    let (fleet, kindred) = start("timeouts: {read_body: 300ms}");
    let chunked = "transfer-encoding: chunked\r\n";
    let mut whole_in_chunks = format!("{:x}\r\n", 80 * KIB).into_bytes();
    whole_in_chunks.extend_from_slice(&body_of(80 * KIB));
    for (what, fields, sent) in [
        ("nothing", "content-length: 100\r\n", Vec::new()),
        ("a part", "content-length: 100\r\n", b"{\"model\"".to_vec()),
        ("no chunk", chunked, Vec::new()),
        ("half a chunk", chunked, b"50\r\n{\"model".to_vec()),
        ("no end, small", chunked, b"2\r\n{}\r\n".to_vec()),
        ("no end, large", chunked, whole_in_chunks),
    ] {
        let mut request = head(fields);
        request.extend_from_slice(&sent);
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(&request).unwrap();
        let answer = raw::read_answer(&mut stream);
        assert_eq!(answer.status, 408, "{what}: {}", answer.text());
        let message = assert_error(&answer, 408, "request_timeout");
        assert!(message.contains("0.3 s"), "{what}: {message}");
    }
    assert_nothing_was_generated(&fleet);
    kindred.assert_idle();
}

/// The time that a worker takes is not the client's.
#[test]
fn a_slow_prefill_does_not_make_a_body_late() {
    let (fleet, kindred) = start("timeouts: {read_body: 300ms}");
    let body = body_of(80 * KIB);
    for request in [
        raw::request(CHAT, &[], &body),
        raw::chunked_request(CHAT, &body, 1000),
    ] {
        let context = fleet.of(Role::Context).next().unwrap();
        context.fault(1, "delay=700ms");
        let answer = raw::send(kindred.edge(), &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn a_client_that_expects_it_is_told_to_go_on() {
    let (_fleet, kindred) = start("");
    for size in [200, 64 * KIB + 1, MIB] {
        let body = body_of(size);
        let chunked = raw::chunked_request(CHAT, &body, 10_000);
        let start = chunked
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap();
        let length = format!("content-length: {size}\r\n");
        for (fields, body) in [
            (length.as_str(), &body[..]),
            ("transfer-encoding: chunked\r\n", &chunked[start + 4..]),
        ] {
            let mut stream = raw::connect(kindred.edge());
            stream
                .write_all(&head(&format!("{fields}expect: 100-continue\r\n")))
                .unwrap();
            let mut told = [0; 25];
            stream.read_exact(&mut told).unwrap();
            assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
            stream.write_all(body).unwrap();
            let answer = raw::read_answer(&mut stream);
            assert_eq!(answer.status, 200, "{size}: {}", answer.text());
        }
    }
    kindred.assert_idle();
}
