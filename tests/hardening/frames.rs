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

/// A number of HPACK with so many bits of its first byte (RFC 7541 section 5.1).
fn number(first: u8, bits: u8, mut value: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if value < most {
        return vec![first | u8::try_from(value).unwrap()];
    }
    let mut bytes = vec![first | u8::try_from(most).unwrap()];
    value -= most;
    while value >= 128 {
        bytes.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// A literal field that goes into the dynamic table, where it is number 62 from then on.
fn indexed(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x40];
    for text in [name.as_bytes(), value] {
        bytes.extend(number(0, 7, text.len()));
        bytes.extend(text);
    }
    bytes
}

/// One block of fields in as many frames as it takes; the stream ends with it.
fn head(fields: &[u8]) -> Vec<u8> {
    let parts: Vec<_> = fields.chunks(16 << 10).collect();
    let frames = parts.iter().enumerate().map(|(at, part)| {
        let kind = if at == 0 { 1 } else { 9 };
        let end_stream = u8::from(at == 0);
        let end_head = if at + 1 == parts.len() { 4 } else { 0 };
        frame(kind, end_stream | end_head, 1, part)
    });
    frames.collect::<Vec<_>>().concat()
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
fn heads_that_grow_when_they_are_decoded_are_bounded() {
    let (fleet, kindred) = start("");
    let pseudo = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", CHAT),
    ]);
    let entry = indexed("x-a", &[b'a'; 4000]);
    // Each byte stands for the four kilobytes of the entry.
    let references = |count: usize| [&pseudo[..], &entry, &vec![0x80 | 62; count]].concat();
    let many: Vec<_> = (0..5000).map(|at| format!("x-{at}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "b")).collect();
    let large = [
        &pseudo[..],
        &[0, 1, b'x'],
        &number(0, 7, 1 << 20),
        &vec![b'a'; 1 << 20],
    ];
    let crumbs = [("cookie", "a=b"); 10_000];
    for (what, fields) in [
        ("references to one entry", references(16_000)),
        ("references over many frames", references(200_000)),
        ("many fields", [&pseudo[..], &block(&many)].concat()),
        ("one large field", large.concat()),
        (
            "crumbs of a cookie",
            [&pseudo[..], &block(&crumbs)].concat(),
        ),
    ] {
        let before = heads::kindred_memory(&kindred);
        for _ in 0..10 {
            let mut stream = raw::connect(kindred.edge());
            // It may be over before all is sent.
            let _ = stream.write_all(&open(&head(&fields)));
            let answer = support::h2c::read_answer(&mut stream);
            assert!(
                [0, 431].contains(&answer.status),
                "{what}: {}",
                answer.status
            );
        }
        let grown = heads::kindred_memory(&kindred).saturating_sub(before);
        assert!(grown < 48 << 10, "{what}: {grown} KiB");
    }
    kindred.assert_metric("kindred_connections", &[], 0.0);
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_idle();
}

/// Frames tell how long a client may take for a head; the body's own rate is for its DATA.
#[test]
fn data_below_the_rate_is_408_long_before_its_time() {
    let (fleet, kindred) = start("limits: {min_body_rate: 1MiB}\ntimeouts: {read_body: 1h}\n");
    let fields = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", CHAT),
        ("content-type", "application/json"),
    ]);
    let mut stream = raw::connect(kindred.edge());
    let begun = [frame(1, 4, 1, &fields), frame(0, 0, 1, b"{")].concat();
    stream.write_all(&open(&begun)).unwrap();
    let mut dripper = stream.try_clone().unwrap();
    let answer = std::thread::scope(|scope| {
        let reading = scope.spawn(|| support::h2c::read_answer(&mut stream));
        // A question at the operator's port lies between one drop and the next.
        while !reading.is_finished() {
            kindred.admin("/healthz");
            let _ = dripper.write_all(&frame(0, 0, 1, b" "));
        }
        reading.join().unwrap()
    });
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(
        answer.text().contains("bytes a second"),
        "{}",
        answer.text()
    );
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
