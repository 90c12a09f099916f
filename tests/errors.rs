//! What a client gets that asked for something wrong: a status, an OpenAI error object, words a
//! person can act on.

mod support;

use std::io::Write;

use kindred::wire::Role;
use serde_json::Value;
use support::{
    Kindred, chat,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";

fn start() -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(""));
    (fleet, kindred)
}

/// Asserts the OpenAI shape; the result is the error object.
fn error_of(answer: &Answer, status: u16, what: &str) -> Value {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    let error = body["error"].as_object().expect("an error object");
    let mut fields: Vec<_> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"], "{what}");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.split(' ').count() > 3 && message.ends_with('.'),
        "{message}"
    );
    assert!(error["type"].is_string() && error["code"].is_string());
    assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    body["error"].clone()
}

fn assert_nothing_was_sent_on(fleet: &Fleet) {
    for role in [Role::Context, Role::Generation] {
        assert!(fleet.requests(role).is_empty(), "{role:?}");
    }
}

#[test]
fn wrong_fields_are_named() {
    let (fleet, kindred) = start();
    let cases = [
        ("model", r#""model":5,"messages":[]"#),
        ("model", r#""model":["m"],"messages":[]"#),
        ("model", r#""model":null,"messages":[]"#),
        ("model", r#""messages":[{"role":"user","content":"x"}]"#),
        ("messages", r#""model":"m","messages":"x""#),
        ("messages", r#""model":"m","messages":{"role":"user"}"#),
        ("messages", r#""model":"m","messages":null"#),
        ("messages", r#""model":"m""#),
        ("stream", r#""model":"m","messages":[],"stream":"maybe""#),
        ("stream", r#""model":"m","messages":[],"stream":[]"#),
        (
            "conversation_params",
            r#""model":"m","messages":[],"conversation_params":"x""#,
        ),
        (
            "conversation_params",
            r#""model":"m","messages":[],"conversation_params":[]"#,
        ),
        (
            "conversation_params.conversation_id",
            r#""model":"m","messages":[],"conversation_params":{}"#,
        ),
        (
            "conversation_params.conversation_id",
            r#""model":"m","messages":[],"conversation_params":{"conversation_id":" \t"}"#,
        ),
        (
            "conversation_params.conversation_id",
            r#""model":"m","messages":[],"conversation_params":{"conversation_id":null}"#,
        ),
    ];
    for (param, fields) in cases {
        for body in [
            format!("{{{fields}}}"),
            format!("{{\"temperature\":0,{fields}}}"),
        ] {
            let answer = raw::post(kindred.edge(), CHAT, &[], &body);
            let error = error_of(&answer, 400, &body);
            assert_eq!(error["param"], param, "{body}: {error}");
            assert_eq!(error["type"], "invalid_request_error", "{body}");
            assert!(
                error["message"].as_str().unwrap().contains(param),
                "{error}"
            );
        }
    }
    let repeated = r#"{"model":"m","messages":[],"model":"n"}"#;
    let error = error_of(
        &raw::post(kindred.edge(), CHAT, &[], repeated),
        400,
        repeated,
    );
    assert_eq!(error["param"], "model", "{error}");
    assert_nothing_was_sent_on(&fleet);
    let counted = ["outcome=\"client_error\"", "route=\"chat_completions\""];
    let expected = (cases.len() * 2 + 1) as f64;
    kindred.assert_metric("kindred_requests_total", &counted, expected);
    kindred.assert_idle();
}

#[test]
fn what_is_no_json_object_is_refused_and_breaks_nothing() {
    let (fleet, kindred) = start();
    let deep = |open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":{open}1{close}}}]}}"#)
    };
    let bodies: Vec<Vec<u8>> = [
        "",
        " \n",
        "{",
        "}",
        "[]",
        "5",
        "\"text\"",
        "null",
        "{}{}",
        "{}x",
        "{'model':'m'}",
        r#"{"model":"m","messages":[],}"#,
        r#"{"model":"m","messages":[}"#,
        r#"{"model":"m","messages":[]"#,
        r#"{"model":"m","messages":[],"temperature":NaN}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"\udc00\ud800 x"}]}"#,
        r#"{"model":"m\ud83d","messages":[]}"#,
        "\u{feff}{}",
        &deep("[", "]"),
        &deep("{\"a\":", "}"),
        &"[".repeat(100_000),
        &r#"{"a":"#.repeat(100_000),
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([
        b"{\"model\":\"m\xff\",\"messages\":[]}".to_vec(),
        b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}"
            .to_vec(),
        b"\xff\xfe{\0}\0".to_vec(),
        b"\x1f\x8b\x08\0".to_vec(),
    ])
    .collect();
    for body in &bodies {
        let what = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        for request in [
            raw::request(CHAT, &[], body),
            raw::chunked_request(CHAT, body, 7000),
            raw::request("/v1/completions", &[], body),
        ] {
            let error = error_of(&raw::send(kindred.edge(), &request), 400, &what);
            assert_eq!(error["type"], "invalid_request_error", "{what}");
        }
    }
    assert_nothing_was_sent_on(&fleet);
    let good = raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string());
    assert_eq!(good.status, 200, "{}", good.text());
    kindred.assert_idle();
}

#[test]
fn a_post_without_any_body_is_a_bad_request() {
    let (_fleet, kindred) = start();
    let request = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n\r\n");
    error_of(
        &raw::send(kindred.edge(), request.as_bytes()),
        400,
        "no body",
    );
}

#[test]
fn unknown_paths_are_404_and_wrong_methods_405_with_allow() {
    let (fleet, kindred) = start();
    let body = chat("hello").to_string();
    for path in [
        "/",
        "/v1",
        "/v1/chat",
        "/v1/chat/completions/x",
        "/v1/Chat/completions",
        "/metrics",
        "/simulate/requests",
    ] {
        let error = error_of(&raw::post(kindred.edge(), path, &[], &body), 404, path);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(CHAT), "says where to go: {message}");
        error_of(&raw::get(kindred.edge(), path), 404, path);
    }
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        for path in [CHAT, "/v1/completions", "/v1/completions?x=1"] {
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n");
            let answer = raw::send(kindred.edge(), request.as_bytes());
            error_of(&answer, 405, method);
            assert_eq!(answer.header("allow"), Some("OPTIONS, POST"), "{method}");
        }
    }
    let head = raw::send(
        kindred.edge(),
        format!("HEAD {CHAT} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes(),
    );
    assert_eq!(
        (head.status, head.body.len()),
        (405, 0),
        "HEAD has no body: {}",
        head.text()
    );
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn ambiguous_framing_is_refused_and_the_connection_ends() {
    let (fleet, kindred) = start();
    let body = chat("hello").to_string();
    let length = body.len();
    let chunks = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let cases = [
        (
            format!("host: a\r\ncontent-length: {length}\r\ntransfer-encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("host: a\r\ntransfer-encoding: chunked\r\ncontent-length: {length}\r\n"),
            &chunks,
        ),
        (
            format!("host: a\r\ncontent-length: {length}\r\ncontent-length: {length}\r\n"),
            &body,
        ),
        (
            format!("host: a\r\ncontent-length: {length}\r\ncontent-length: 5\r\n"),
            &body,
        ),
        (
            format!("host: a\r\ncontent-length: {length}, {length}\r\n"),
            &body,
        ),
        (format!("host: a\r\ncontent-length: +{length}\r\n"), &body),
        ("host: a\r\ncontent-length: -1\r\n".to_owned(), &body),
        (
            format!("host: a\r\ncontent-length: 0x{length:x}\r\n"),
            &body,
        ),
        ("host: a\r\ntransfer-encoding: gzip\r\n".to_owned(), &chunks),
        (
            "host: a\r\ntransfer-encoding: gzip, chunked\r\n".to_owned(),
            &chunks,
        ),
        (
            "host: a\r\ntransfer-encoding: chunked, chunked\r\n".to_owned(),
            &chunks,
        ),
        (
            "host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n".to_owned(),
            &chunks,
        ),
        (
            "host: a\r\ntransfer-encoding: xchunked\r\n".to_owned(),
            &chunks,
        ),
        (format!("content-length: {length}\r\n"), &body),
        (
            format!("host: a\r\nhost: b\r\ncontent-length: {length}\r\n"),
            &body,
        ),
    ];
    for (fields, body) in &cases {
        // A second request in the same bytes: it must not be answered as one.
        let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let request = format!("POST {CHAT} HTTP/1.1\r\n{fields}\r\n{body}{smuggled}");
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        // A reset after the answer is an end as well.
        let _ = std::io::Read::read_to_end(&mut stream, &mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("HTTP/1.1 400 "), "{fields}: {text}");
        assert_eq!(text.matches("HTTP/1.1 4").count(), 1, "{fields}: {text}");
        assert!(!text.contains("smuggled"), "{fields}: {text}");
    }
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

#[test]
fn nothing_after_broken_chunks_is_taken_for_a_request() {
    let (fleet, kindred) = start();
    let body = chat("hello").to_string();
    let smuggled = raw::request(CHAT, &[("x-session-id", "smuggled")], body.as_bytes());
    for size in ["zz", "0x5", "+5", "5\r\nhello\r\nzz"] {
        let mut bytes = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\n"
        )
        .into_bytes();
        let mut stream = raw::connect(kindred.edge());
        std::io::Write::write_all(&mut stream, &bytes).unwrap();
        let answer = raw::read_answer(&mut stream);
        assert_eq!(answer.status, 400, "{size}: {}", answer.text());
        bytes.clone_from(&smuggled);
        // The connection may be closed already.
        let _ = std::io::Write::write_all(&mut stream, &bytes);
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
        assert!(
            rest.is_empty(),
            "{size}: {:?}",
            String::from_utf8_lossy(&rest)
        );
    }
    assert!(fleet.requests(Role::Context).is_empty());
}
