//! Heads and chunks that two programs could read differently: refused before anything is sent on,
//! and nothing after them is taken for a request.

use super::*;

const SMUGGLED: &str = "GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// What of a request is wrong, and its bytes up to the body.
fn heads(length: usize) -> Vec<(&'static str, u16, String)> {
    let post = |line: &str, fields: &str| format!("POST {line}\r\n{fields}\r\n");
    let with = |fields: &str| {
        let fields = format!("host: a\r\n{fields}\r\n");
        post(&format!("{CHAT} HTTP/1.1"), &fields)
    };
    let sized = |field: &str| with(&format!("{field}\r\ncontent-length: {length}"));
    let chunked = "transfer-encoding: chunked";
    vec![
        ("both", 400, sized(chunked)),
        ("gzip first", 400, with("transfer-encoding: gzip, chunked")),
        (
            "chunked first",
            400,
            with("transfer-encoding: chunked, gzip"),
        ),
        ("unknown coding", 400, with("transfer-encoding: xchunked")),
        (
            "space in the name",
            400,
            with("transfer-encoding : chunked"),
        ),
        (
            "coding twice",
            400,
            with(&format!("{chunked}\r\n{chunked}")),
        ),
        (
            "length twice",
            400,
            sized(&format!("content-length: {length}")),
        ),
        ("two lengths", 400, sized("content-length: 5")),
        (
            "length list",
            400,
            with(&format!("content-length: {length}, {length}")),
        ),
        (
            "signed length",
            400,
            with(&format!("content-length: +{length}")),
        ),
        ("empty length", 400, with("content-length: ")),
        (
            "huge length",
            400,
            with("content-length: 99999999999999999999"),
        ),
        ("folded line", 400, sized("x-a: b\r\n c")),
        ("two hosts", 400, sized("host: b")),
        ("NUL in a value", 400, sized("x-a: b\0c")),
        ("CR in a value", 400, sized("x-a: b\rc")),
        ("no colon", 400, sized("x-a")),
        ("host named", 400, sized("connection: close, host")),
        (
            "bare LF",
            400,
            sized("x-a: b").replace("x-a: b\r\n", "x-a: b\n"),
        ),
        ("bare LFs only", 400, sized("x-a: b").replace("\r\n", "\n")),
        (
            "no host",
            400,
            post(
                &format!("{CHAT} HTTP/1.1"),
                &format!("content-length: {length}\r\n"),
            ),
        ),
        (
            "other host in the target",
            400,
            post(
                &format!("http://b{CHAT} HTTP/1.1"),
                &format!("host: a\r\ncontent-length: {length}\r\n"),
            ),
        ),
        (
            "chunks in HTTP/1.0",
            400,
            post(&format!("{CHAT} HTTP/1.0"), &format!("{chunked}\r\n")),
        ),
    ]
}

#[test]
fn ambiguous_heads_are_refused_and_end_the_connection() {
    let (fleet, kindred) = start("");
    let body = body(false);
    for (what, status, head) in heads(body.len()) {
        let body = if head.contains("transfer-encoding") && !head.contains("content-length") {
            format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        } else {
            body.clone()
        };
        let told = exchange(kindred.edge(), format!("{head}{body}{SMUGGLED}").as_bytes());
        let all = answers(&told);
        assert_eq!(all.len(), 1, "{what}: {told}");
        assert!(all[0].starts_with(&format!("{status} ")), "{what}: {told}");
        assert!(!told.contains("\"version\""), "{what}: {told}");
    }
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

#[test]
fn broken_chunks_are_refused_and_end_the_connection() {
    let (fleet, kindred) = start("");
    let body = body(false);
    let size = format!("{:x}", body.len());
    let chunk = |size: &str| format!("{size}\r\n{body}\r\n0\r\n\r\n");
    for (what, chunks) in [
        ("0x", chunk(&format!("0x{size}"))),
        ("signed", chunk(&format!("+{size}"))),
        ("huge", chunk("ffffffffffffffffff")),
        ("no number", chunk("zz")),
        ("LF after the size", format!("{size}\n{body}\r\n0\r\n\r\n")),
        (
            "no CR LF after the data",
            format!("{size}\r\n{body}0\r\n\r\n"),
        ),
        ("LF after the data", format!("{size}\r\n{body}\n0\r\n\r\n")),
    ] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let told = exchange(
            kindred.edge(),
            format!("{head}{chunks}{SMUGGLED}").as_bytes(),
        );
        assert_eq!(answers(&told).len(), 1, "{what}: {told}");
        assert!(told.starts_with("HTTP/1.1 400 "), "{what}: {told}");
    }
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

#[test]
fn heads_that_are_too_large_are_431_or_refused() {
    let (fleet, kindred) = start("");
    let value = "x".repeat(900 << 10);
    let many: String = (0..101).map(|n| format!("x-{n}: a\r\n")).collect();
    for (what, fields) in [("large", format!("x-a: {value}\r\n")), ("many", many)] {
        let request =
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}content-length: 2\r\n\r\n{{}}");
        let told = exchange(kindred.edge(), request.as_bytes());
        assert_refused(&told, 431, "headers_too_large", what);
    }
    // Beyond what Pingora reads of a head at all.
    let value = "x".repeat(1200 << 10);
    let told = exchange(
        kindred.edge(),
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-a: {value}\r\n\r\n").as_bytes(),
    );
    assert!(
        answers(&told).len() <= 1 && !told.contains(" 200 "),
        "{told}"
    );
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn trace_and_connect_are_405() {
    let (_fleet, kindred) = start("");
    for method in ["TRACE", "CONNECT"] {
        let target = if method == "CONNECT" { "a:1" } else { CHAT };
        let request = format!("{method} {target} HTTP/1.1\r\nhost: a:1\r\n\r\n{SMUGGLED}");
        let told = exchange(kindred.edge(), request.as_bytes());
        assert!(told.starts_with("HTTP/1.1 4"), "{method}: {told}");
        assert_eq!(answers(&told).len(), 1, "{method}: {told}");
    }
}

/// What a chunk may carry besides its size, and how its size may be written.
#[test]
fn unusual_but_clear_framing_is_taken() {
    let (fleet, kindred) = start("");
    let body = body(false);
    let size = format!("{:X}", body.len());
    for (what, head, chunks) in [
        (
            "extension",
            "",
            format!("{size};a=\"b\"\r\n{body}\r\n0\r\n\r\n"),
        ),
        ("zeros", "", format!("000{size}\r\n{body}\r\n000\r\n\r\n")),
        (
            "trailers",
            "",
            format!("{size}\r\n{body}\r\n0\r\nx-session-id: evil\r\n\r\n"),
        ),
        (
            "announced trailers",
            "trailer: x-a\r\n",
            format!("{size}\r\n{body}\r\n0\r\nx-a: evil\r\n\r\n"),
        ),
    ] {
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{head}transfer-encoding: Chunked\r\n\r\n");
        let told = exchange(
            kindred.edge(),
            format!("{head}{chunks}{SMUGGLED}").as_bytes(),
        );
        let statuses: Vec<_> = answers(&told).iter().map(|answer| &answer[..3]).collect();
        assert_eq!(statuses, ["200", "200"], "{what}: {told}");
    }
    for role in [Role::Context, Role::Generation] {
        for request in fleet.requests(role) {
            assert!(!format!("{request:?}").contains("evil"), "{request:?}");
        }
    }
}
