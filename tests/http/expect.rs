//! `Expect`: a client that waits is told to go on only when its body is wanted.

use super::*;
use crate::support::h2c;

const CONTINUE: &str = "expect: 100-continue\r\n";

#[test]
fn a_body_that_will_be_refused_is_not_asked_for() {
    let (fleet, kindred) = start(
        "limits: {max_body: 1MiB}\ngateway: {clients: [{name: a, api_keys_sha256: \
         ['1bd55e6baf7e4e671e3078d6c4c21a42ad5b2a4167180b1ca3752381a30ff4e3']}]}",
    );
    let key = "authorization: Bearer example-agent-key\r\n";
    for (path, status, code, fields) in [
        (
            "/nowhere",
            404,
            "not_found",
            format!("{key}content-length: 9\r\n"),
        ),
        (
            CHAT,
            401,
            "missing_api_key",
            "content-length: 9\r\n".to_owned(),
        ),
        (
            CHAT,
            413,
            "request_too_large",
            format!("{key}content-length: 1048577\r\n"),
        ),
        (
            CHAT,
            415,
            "unsupported_content_encoding",
            format!("{key}content-encoding: x\r\ncontent-length: 9\r\n"),
        ),
        (
            CHAT,
            400,
            "ambiguous_framing",
            format!("{key}transfer-encoding: chunked\r\ncontent-length: 9\r\n"),
        ),
        (
            CHAT,
            417,
            "expectation_failed",
            format!("{key}expect: tea\r\ncontent-length: 9\r\n"),
        ),
    ] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\n{CONTINUE}{fields}\r\n");
        // Nothing more is sent: a server that waits for the body never answers.
        let told = exchange(kindred.edge(), head.as_bytes());
        assert_refused(&told, status, code, &head);
    }
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn other_expectations_are_417() {
    let (fleet, kindred) = start("");
    let body = body(false);
    for value in ["200-ok", "100-continue, tea", "100-continue; q=1", ""] {
        for request in [
            format!(
                "GET /version HTTP/1.1\r\nhost: test\r\nconnection: close\r\nexpect: {value}\r\n\r\n"
            ),
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: test\r\nexpect: {value}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
        ] {
            let told = exchange(kindred.edge(), request.as_bytes());
            assert_refused(&told, 417, "expectation_failed", &request);
        }
    }
    let sent = [("expect", "tea")];
    assert_eq!(
        h2c::post(kindred.edge(), CHAT, &sent, body.as_bytes(), &[]).status,
        417
    );
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

/// HTTP/1.0 has no interim answers, and Pingora writes none over HTTP/2, where a client may send at
/// once.
#[test]
fn clients_that_know_no_interim_answer_get_none() {
    let (_fleet, kindred) = start("");
    let body = body(false);
    let request = format!(
        "POST {CHAT} HTTP/1.0\r\nhost: test\r\n{CONTINUE}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let told = exchange(kindred.edge(), request.as_bytes());
    assert!(
        told.contains(" 200 OK\r\n") && !told.contains(" 100 "),
        "{told}"
    );
    let sent = [("expect", "100-continue")];
    let answer = h2c::post(kindred.edge(), CHAT, &sent, body.as_bytes(), &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
}
