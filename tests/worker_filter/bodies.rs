//! Bodies arrive byte for byte, whatever their framing and whatever becomes of a connection.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use kindred::wire::Role;
use sha2::{Digest, Sha256};

use crate::support::{h2c, raw};
use crate::{
    CHAT, Filtered,
    passage::{accept, before_a_socket},
};

/// A worker's answer after which its connection can be used again.
const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A body of exactly `size` bytes that no serialiser would write.
fn odd_body(size: usize) -> Vec<u8> {
    let (head, tail) = (
        " {\t\"max_tokens\" : 1 ,\r\n\"\\u006dodel\":\"m\\u00e4\\/\", \"temperature\":1.0e0,\n\"messages\":[ {\"role\":\"user\",\"content\":\"h\u{e9}llo ",
        "\" } ] }",
    );
    let fill = size - head.len() - tail.len();
    let mut body = head.as_bytes().to_vec();
    body.extend((0..fill).map(|at| b"abcdefg hijk"[at % 12]));
    body.extend_from_slice(tail.as_bytes());
    assert_eq!(body.len(), size);
    body
}

fn generous() -> Filtered {
    Filtered::open(Role::Aggregated, "", |config| config.max_sequence = 1 << 24)
}

#[test]
fn bodies_arrive_byte_for_byte_with_a_length_and_in_chunks() {
    let site = generous();
    for size in [300, 65_535, 65_536, 65_537, 131_072, 200_001, 1 << 20] {
        let body = odd_body(size);
        let mut ways = vec![("with a length".to_owned(), raw::request(CHAT, &[], &body))];
        for chunk in [1000, 16_384, 65_536, size] {
            ways.push((
                format!("in chunks of {chunk}"),
                raw::chunked_request(CHAT, &body, chunk),
            ));
        }
        for (way, bytes) in ways {
            let answer = raw::send(site.address(), &bytes);
            assert_eq!(answer.status, 200, "{size} {way}: {}", answer.text());
            let seen = site.last();
            assert_eq!(
                (seen.body_length, seen.body_sha256),
                (size, digest(&body)),
                "{size} {way}"
            );
        }
    }
    site.kindred.assert_idle();
}

#[test]
fn white_space_after_a_large_body_arrives_too() {
    let site = generous();
    for size in [70_000, 200_000] {
        let mut body = odd_body(size);
        body.extend_from_slice(b"\n \n");
        // The last chunks hold nothing but white space.
        for chunk in [1, size, size + 1] {
            if chunk == 1 && size > 100_000 {
                continue;
            }
            let answer = raw::send(site.address(), &raw::chunked_request(CHAT, &body, chunk));
            assert_eq!(answer.status, 200, "{size}: {}", answer.text());
            let seen = site.last();
            assert_eq!(
                (seen.body_length, seen.body_sha256),
                (body.len(), digest(&body)),
                "{chunk} of {size}"
            );
        }
    }
}

#[test]
fn whatever_else_follows_a_large_body_is_refused() {
    let site = generous();
    let size = 70_000;
    for more in ["x", " {}", "\n\n}"] {
        let mut body = odd_body(size);
        body.extend_from_slice(more.as_bytes());
        for chunk in [size - 1, size, body.len()] {
            let answer = raw::send(site.address(), &raw::chunked_request(CHAT, &body, chunk));
            assert_eq!(
                answer.status,
                400,
                "{more:?} in chunks of {chunk}: {}",
                answer.text()
            );
        }
    }
    site.kindred.assert_idle();
}

#[test]
fn bodies_arrive_byte_for_byte_over_h2c() {
    let site = generous();
    let body = odd_body(15_000);
    let answer = h2c::post(site.address(), CHAT, &[], &body, &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(site.last().body_sha256, digest(&body));
}

/// Reads one request with its body off a connection; the body.
fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 65_536];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let start = head.len() + 4;
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().unwrap();
            if bytes.len() >= start + length {
                return bytes.split_off(start);
            }
        }
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "cut off after {} bytes", bytes.len());
        bytes.extend_from_slice(&chunk[..read]);
    }
}

/// A connection of the filter's on which one request was answered.
fn pooled(listener: &TcpListener, filter: SocketAddr) -> TcpStream {
    let first =
        std::thread::spawn(move || raw::send(filter, &raw::request(CHAT, &[], &odd_body(300))));
    let mut worker = accept(listener);
    read_request(&mut worker);
    worker.write_all(EMPTY).unwrap();
    assert_eq!(first.join().unwrap().status, 200);
    worker
}

#[test]
fn a_pooled_connection_that_dies_unheard_is_replaced() {
    let (listener, kindred) = before_a_socket();
    let filter = kindred.filters[0].1;
    for (size, chunked) in [(300, true), (300, false), (100_000, false)] {
        let mut dying = pooled(&listener, filter);
        let client = std::thread::spawn(move || {
            let body = odd_body(size);
            let bytes = if chunked {
                raw::chunked_request(CHAT, &body, 100)
            } else {
                raw::request(CHAT, &[], &body)
            };
            raw::send(filter, &bytes)
        });
        // As a worker does that closes an idle connection: the request is on its way already.
        read_request(&mut dying);
        drop(dying);
        let mut fresh = accept(&listener);
        assert_eq!(
            digest(&read_request(&mut fresh)),
            digest(&odd_body(size)),
            "{size} {chunked}"
        );
        fresh.write_all(EMPTY).unwrap();
        drop(fresh);
        assert_eq!(client.join().unwrap().status, 200, "{size} {chunked}");
    }
    kindred.assert_idle();
}

#[test]
fn a_body_that_cannot_be_sent_again_is_answered_502_and_does_not_hang() {
    let (listener, kindred) = before_a_socket();
    let filter = kindred.filters[0].1;
    let mut dying = pooled(&listener, filter);
    let bytes = raw::chunked_request(CHAT, &odd_body(100_000), 50_000);
    let client = std::thread::spawn(move || raw::send(filter, &bytes));
    let mut seen = Vec::new();
    let mut chunk = [0; 65_536];
    while !seen.ends_with(b"\r\n0\r\n\r\n") {
        let read = dying.read(&mut chunk).unwrap();
        assert!(read > 0);
        seen.extend_from_slice(&chunk[..read]);
    }
    drop(dying);
    assert_eq!(client.join().unwrap().status, 502);
    kindred.assert_idle();
}
