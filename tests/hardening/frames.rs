//! HTTP/2 as no library speaks it: floods are bounded, and half a head is not waited for.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use kindred::wire::Role;

use super::*;
use crate::support::raw::read_all;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn open(more: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[]), more].concat()
}

/// Literal fields without indexing, of fewer than 127 bytes each.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// What comes until `enough` is in it, or the connection ends.
fn read_until(stream: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut told = Vec::new();
    let mut part = [0; 4096];
    while !enough(&told) {
        match stream.read(&mut part) {
            Ok(read @ 1..) => told.extend_from_slice(&part[..read]),
            _ => break,
        }
    }
    told
}

#[test]
fn half_a_head_and_half_a_frame_end_the_connection() {
    let (fleet, kindred) = start("timeouts: {read_header: 300ms}\n");
    for (what, bytes) in [
        ("half a preface", PREFACE[..10].to_vec()),
        ("no request", open(&[])),
        (
            "half a HEADERS frame",
            open(&frame(1, 4, 1, &[0; 40])[..20]),
        ),
        (
            "no CONTINUATION",
            open(&frame(1, 0, 1, &block(&[(":method", "GET")]))),
        ),
    ] {
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(&bytes).unwrap();
        read_all(&mut stream);
        eprintln!("{what} ended");
    }
    kindred.assert_metric("kindred_heads_refused_total", &["reason=\"slow\""], 4.0);
    kindred.assert_metric("kindred_connections", &[], 0.0);
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn floods_are_bounded_and_reach_no_worker() {
    let (fleet, kindred) = start("timeouts: {read_header: 2s}\n");
    let before = heads::kindred_memory(&kindred);
    let request = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", CHAT),
        ("content-length", "9"),
    ]);
    let reset = |stream: u32| {
        [
            frame(1, 4, stream, &request),
            frame(3, 0, stream, &8_u32.to_be_bytes()),
        ]
        .concat()
    };
    let resets: Vec<u8> = (0..5000).flat_map(|n| reset(2 * n + 1)).collect();
    let continuation = frame(9, 0, 1, &block(&[("x-a", "b")]));
    for (what, bytes) in [
        ("rapid reset", resets),
        ("PING", frame(6, 0, 0, &[0; 8]).repeat(20_000)),
        ("SETTINGS", frame(4, 0, 0, &[]).repeat(20_000)),
        (
            "CONTINUATION",
            [frame(1, 0, 1, &request), continuation.repeat(50_000)].concat(),
        ),
        (
            "a window of too much",
            [
                frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
                frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
            ]
            .concat(),
        ),
    ] {
        let mut stream = raw::connect(kindred.edge());
        let mut reader = stream.try_clone().unwrap();
        let reading = std::thread::spawn(move || read_all(&mut reader).len());
        // It may be over before all is sent.
        let _ = stream.write_all(&open(&bytes));
        reading.join().unwrap();
        eprintln!("{what} ended");
    }
    kindred.assert_metric("kindred_connections", &[], 0.0);
    let grown = heads::kindred_memory(&kindred).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB");
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

#[test]
fn heads_that_http2_forbids_reach_no_worker() {
    let (fleet, kindred) = start("");
    let body = support::chat("hello").to_string();
    let length = body.len().to_string();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", CHAT),
    ];
    for (what, more) in [
        // What is like the others but for their fault is served.
        ("nothing", ("x-a", "b")),
        ("upper case", ("X-A", "b")),
        ("a connection header", ("connection", "close")),
        ("a coding", ("transfer-encoding", "chunked")),
        ("a second path", (":path", "/metrics")),
        ("a status", (":status", "200")),
        ("an unknown pseudo field", (":x", "b")),
        ("too short a length", ("content-length", "3")),
        ("too long a length", ("content-length", "9999")),
        ("a line break", ("x-a", "b\r\nx-c: d")),
    ] {
        let mut fields = fields.to_vec();
        fields.push(more);
        if more.0 != "content-length" {
            fields.push(("content-length", &length));
        }
        let head = frame(1, 4, 1, &block(&fields));
        let data = frame(0, 1, 1, body.as_bytes());
        // Tells that all before it was read.
        let ping = frame(6, 0, 0, b"all-read");
        let mut stream = raw::connect(kindred.edge());
        stream
            .write_all(&open(&[head, data, ping].concat()))
            .unwrap();
        let told = read_until(&mut stream, |told| {
            told.windows(8)
                .any(|window| window == b"chat.com" || window == b"all-read")
        });
        let answered = || told.windows(8).any(|window| window == b"chat.com");
        if what == "nothing" {
            let told = read_until(&mut stream, |told| {
                told.windows(8).any(|window| window == b"chat.com")
            });
            assert!(!told.is_empty());
            assert_eq!(fleet.requests(Role::Context).len(), 1);
            continue;
        }
        assert!(!answered(), "{what}: {}", String::from_utf8_lossy(&told));
        assert_eq!(fleet.requests(Role::Context).len(), 1, "{what}");
    }
    kindred.assert_idle();
    assert_eq!(fleet.requests(Role::Context).len(), 1);
}
