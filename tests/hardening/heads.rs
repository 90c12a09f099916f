//! Heads that are none.

use std::io::Write;

use super::*;

/// What is wrong, the bytes, and the status.
fn heads() -> Vec<(&'static str, Vec<u8>, u16)> {
    let get = |line: &str| format!("{line}\r\nhost: a\r\n\r\n").into_bytes();
    let with = |field: &str| {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{field}\r\n\r\n");
        head.into_bytes()
    };
    vec![
        ("a word", b"GARBAGE\r\n\r\n".to_vec(), 400),
        ("HTTP/0.9", b"GET /version\r\n\r\n".to_vec(), 400),
        ("another version", get("GET /version HTTP/3.7"), 400),
        ("no version", get("GET /version HTTP/"), 400),
        ("no method", get("/version HTTP/1.1"), 400),
        ("a method of brackets", get("G(T /version HTTP/1.1"), 400),
        (
            "a TLS hello",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            400,
        ),
        ("space before the colon", with("x-a : b"), 400),
        ("an empty name", with(": b"), 400),
        ("a folded line", with("x-a: b\r\n c"), 400),
        (
            "identity",
            with("transfer-encoding: chunked, identity"),
            400,
        ),
        ("xchunked", with("transfer-encoding: xchunked"), 400),
        ("vertical tab", with("transfer-encoding: \x0bchunked"), 400),
        (
            "chunked twice",
            with("transfer-encoding: chunked, chunked"),
            400,
        ),
        ("hexadecimal length", with("content-length: 0x1"), 400),
        ("negative length", with("content-length: -1"), 400),
        ("300 fields", with(&vec!["x-a: b"; 300].join("\r\n")), 400),
    ]
}

fn check(fleet: &Fleet, address: SocketAddr) {
    for (what, bytes, status) in heads() {
        let mut stream = raw::connect(address);
        stream.write_all(&bytes).unwrap();
        let smuggled = format!("GET {CHAT} HTTP/1.1\r\nhost: a\r\n\r\n");
        // The connection may be over by now.
        let _ = stream.write_all(smuggled.as_bytes());
        let told = raw::read_all(&mut stream);
        let text = String::from_utf8_lossy(&told);
        let answer = raw::parse(&told).unwrap_or_else(|| panic!("{what}: {text}"));
        assert_eq!(answer.status, status, "{what}: {text}");
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{what}: {text}");
        // Where the head could be read, a filter answers as the worker behind it would.
        let error = answer.json();
        let kind = [&error["error"]["type"], &error["type"]].map(|kind| kind.as_str());
        let known = [Some("invalid_request_error"), Some("BadRequestError")];
        assert!(
            kind.iter().any(|kind| known.contains(kind)),
            "{what}: {text}"
        );
    }
    assert_nothing_was_sent_on(fleet);
}

#[test]
fn what_is_no_head_is_refused_at_once_with_an_error_and_an_id() {
    let (fleet, kindred) = start("");
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(b"GARBAGE\r\n\r\n").unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_refusal(&answer, 400, "invalid_request_head", "garbage");
    check(&fleet, kindred.edge());
    kindred.assert_idle();
}

/// Pingora writes such a byte as `%00` before anything reads the path, so all read it alike.
#[test]
fn a_nul_in_a_path_is_no_path_of_the_edges() {
    let (fleet, kindred) = start("");
    for line in ["GET /ver\0sion HTTP/1.1", "GET /version%00 HTTP/1.1"] {
        let mut stream = raw::connect(kindred.edge());
        let head = format!("{line}\r\nhost: a\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let answer = raw::read_answer(&mut stream);
        assert_eq!(answer.status, 400, "{line:?}");
        assert_eq!(answer.json()["error"]["code"], "invalid_path", "{line:?}");
    }
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn a_worker_filter_refuses_the_same() {
    let (fleet, _kindred, address) = filter("");
    check(&fleet, address);
}

#[test]
fn ten_megabytes_of_head_are_431_and_the_answer_arrives() {
    let (fleet, kindred) = start("");
    let before = kindred_memory(&kindred);
    for _ in 0..20 {
        let mut stream = raw::connect(kindred.edge());
        let mut head = b"GET /version HTTP/1.1\r\nhost: a\r\nx-a: ".to_vec();
        head.resize(10 << 20, b'x');
        stream.write_all(&head).unwrap();
        let answer = raw::read_answer(&mut stream);
        assert_refusal(&answer, 431, "headers_too_large", "10 MiB");
    }
    let grown = kindred_memory(&kindred).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for 200 MiB of heads");
    assert_nothing_was_sent_on(&fleet);
}

/// KiB that the process holds.
pub fn kindred_memory(kindred: &Kindred) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", kindred.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}
