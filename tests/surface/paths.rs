//! The table of docs/surface.md, row by row, over HTTP/1.1 and HTTP/2.

use kindred::wire::Role;

use super::*;
use crate::support::h2c;

/// Targets of a POST, the status, and whether the refusal says which path was meant. Over HTTP/2 the
/// same.
const BOTH: &[(&str, u16, bool)] = &[
    (CHAT, 200, false),
    // Put into the one spelling.
    ("/v1/chat/completions/", 200, false),
    ("/v1/chat/completions?a=b", 200, false),
    ("/v1/chat/completions/?a=//b/../c%zz\\", 200, false),
    ("/v1/%63hat/%63%6Fmpletions", 200, false),
    ("/v1/chat/completions%2F", 400, true),
    // Refused: two programs could read it differently.
    ("//v1/chat/completions", 400, true),
    ("/v1//chat/completions", 400, true),
    ("/v1/chat/completions//", 400, true),
    ("/v1/./chat/completions", 400, true),
    ("/v1/../v1/chat/completions", 400, true),
    ("/../v1/chat/completions", 400, true),
    ("/v1/chat/completions/.", 400, true),
    ("/v1/%2e/chat/completions", 400, true),
    ("/x/%2e%2E/v1/chat/completions", 400, true),
    ("/v1%2fchat%2Fcompletions", 400, true),
    ("/v1%5cchat/completions", 400, true),
    ("/v1/ch%2561t/completions", 400, true),
    ("/v1/chat/completions;a=b", 400, true),
    ("/v1;a/chat/completions", 400, true),
    ("/v1/chat/completions%20", 400, true),
    ("/v1/chat/completions%3Fa", 400, true),
    ("/v1/chat/completions%23a", 400, true),
    ("/v1/chat/completions%00", 400, false),
    ("/v1/chat/completions%0d%0a", 400, true),
    ("/v1/chat/completions%", 400, false),
    ("/v1/chat/completions%zz", 400, false),
    ("/v1/chat/../embeddings", 400, false),
    // Not served.
    ("/", 404, false),
    ("/v1", 404, false),
    ("/v1/chat", 404, false),
    ("/v1/chat/completions/x", 404, false),
    ("/x/v1/chat/completions", 404, false),
    ("/V1/chat/completions", 404, false),
    ("/v1/Chat/completions", 404, false),
    ("/v1/chat%2Dcompletions", 404, false),
    ("/v1/ch%C3%A4t/completions", 404, false),
    ("/v1/embeddings", 404, false),
    ("/metrics", 404, false),
    ("/simulate/requests", 404, false),
];

/// Targets that only HTTP/1.1 has.
const ONE: &[(&str, u16, bool)] = &[
    ("http://test/v1/chat/completions", 200, false),
    ("HTTP://test/v1/%63hat/completions/?a=b", 200, false),
    ("https://test/v1/chat/completions", 200, false),
    // A fragment is no part of a target: it is cut off before anything looks.
    ("/v1/chat/completions#a", 200, false),
    ("http://test//v1/chat/completions", 400, true),
    ("http://test/v1/../v1/chat/completions", 400, true),
    ("http://test", 404, false),
    ("http://test?/v1/chat/completions", 404, false),
    ("foo://test/v1/chat/completions", 400, true),
    ("v1/chat/completions", 400, true),
    ("test:80", 400, false),
    ("*", 400, false),
    ("?a=b", 404, false),
];

/// Targets that Pingora refuses before a request is seen.
const UNSEEN: &[&str] = &[
    "http://TEST/v1/chat/completions",
    "http://other/v1/chat/completions",
    "http:///v1/chat/completions",
    "http:/v1/chat/completions",
    "/v1/chat\0/completions",
];

fn assert_told(answer: &Answer, target: &str, status: u16, meant: bool) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{target}: {text}");
    if status == 200 {
        return;
    }
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error", "{target}: {text}");
    let message = error["message"].as_str().unwrap();
    if meant {
        assert!(message.contains("; write /v1/chat/completions."), "{text}");
    }
    let code = match status {
        400 => "invalid_path",
        404 => "not_found",
        _ => "path_too_long",
    };
    assert_eq!(error["code"], code, "{target}: {text}");
    assert!(!message.contains("localhost") && !message.contains("127."));
}

#[test]
fn every_spelling_has_its_row_over_http_1() {
    let (fleet, kindred) = start("");
    let mut served = 0;
    for (target, status, meant) in BOTH.iter().chain(ONE) {
        let answer = raw::post(kindred.edge(), target, &[], &body());
        assert_told(&answer, target, *status, *meant);
        served += usize::from(*status == 200);
    }
    for target in UNSEEN {
        let answer = raw::post(kindred.edge(), target, &[], &body());
        let code = answer.json()["error"]["code"].clone();
        assert_eq!(
            (answer.status, code),
            (400, "invalid_request_head".into()),
            "{target}"
        );
    }
    for target in ["/v1/ch\u{e4}t/completions", "/v1/chat /completions"] {
        let answer = raw::post(kindred.edge(), target, &[], &body());
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
    }
    assert_arrived(&fleet, served);
    kindred.assert_idle();
}

#[test]
fn every_spelling_has_its_row_over_http_2() {
    let (fleet, kindred) = start("");
    let mut served = 0;
    for (target, status, meant) in BOTH {
        let answer = h2c::post(kindred.edge(), target, &[], body().as_bytes(), &[]);
        assert_told(&answer, target, *status, *meant);
        served += usize::from(*status == 200);
    }
    for target in [
        "*",
        "http://test/v1/chat/completions",
        "v1/chat/completions",
        "",
        "/v1/chat\0/completions",
        "/v1/chat /completions",
        "/v1/ch\u{e4}t/completions",
    ] {
        let answer = h2c::post(kindred.edge(), target, &[], body().as_bytes(), &[]);
        assert!([0, 400].contains(&answer.status), "{target}: {answer:?}");
    }
    assert_arrived(&fleet, served);
    kindred.assert_idle();
}

/// What was served reached the workers under the one path, and nothing else did.
fn assert_arrived(fleet: &Fleet, served: usize) {
    for role in [Role::Context, Role::Generation] {
        let requests = fleet.requests(role);
        assert_eq!(requests.len(), served, "{role:?}");
        assert!(requests.iter().all(|request| request.path == CHAT));
    }
}

#[test]
fn a_long_path_is_refused() {
    let (fleet, kindred) = start("");
    for length in [8 * 1024 + 1, 60_000] {
        let target = format!("/{}", "a".repeat(length - 1));
        let answer = raw::post(kindred.edge(), &target, &[], &body());
        assert_told(&answer, "a long one", 414, false);
    }
    let target = format!("/v1/models/{}", "a".repeat(8 * 1024 - 11));
    assert_eq!(raw::get(kindred.edge(), &target).status, 404);
    let query = format!("{CHAT}?{}", "a".repeat(9000));
    assert_eq!(raw::post(kindred.edge(), &query, &[], &body()).status, 200);
    assert_arrived(&fleet, 1);
}

#[test]
fn what_is_read_has_one_spelling_too() {
    let (_fleet, kindred) = start("");
    for (target, status) in [
        ("/health/", 200),
        ("/he%61lth?x", 200),
        ("http://test/version/", 200),
        ("/prometheus/metrics/", 200),
        ("//health", 400),
        ("/prometheus/./metrics", 400),
        ("/prometheus%2fmetrics", 400),
        ("/prometheus", 404),
        ("/healthz", 404),
        ("/Health", 404),
    ] {
        let answer = ask(kindred.edge(), "GET", target, &[]);
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
    }
}
