//! Request bodies in content codings: decoded within bounds, forwarded as if sent plainly.

mod support;

use std::io::Write;

use flate2::{Compression, GzBuilder, write::ZlibEncoder};
use kindred::wire::Role;
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw::{self, Answer},
    stand_in::Tap,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const CHAT: &str = "/v1/chat/completions";

/// An edge before one worker of whole requests, whose bytes are kept.
struct Way {
    _worker: Fleet,
    tap: Tap,
    edge: Kindred,
}

impl Way {
    fn start(more: &str) -> Self {
        let worker = fleet::start_roles(&[(Role::Aggregated, 1)], |_| {});
        let tap = Tap::before(worker.workers[0].address);
        let yaml = format!(
            "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
             aggregated_servers: {{urls: ['{}']}}\n{more}\n",
            tap.address
        );
        Self {
            _worker: worker,
            tap,
            edge: Kindred::serve(&yaml),
        }
    }

    fn send(&self, bytes: &[u8]) -> Answer {
        raw::send(self.edge.edge(), bytes)
    }

    /// Asserts that the worker got exactly `body`, and nothing about a coding.
    #[track_caller]
    fn assert_seen(&self, body: &[u8], what: &str) {
        let mut seen = self.tap.take();
        assert_eq!(seen.len(), 1, "{what}");
        let seen = seen.remove(0);
        assert!(seen.body == body, "{what}: {} bytes", seen.body.len());
        let head = seen.head.to_lowercase();
        assert!(!head.contains("content-encoding"), "{what}: {head}");
    }
}

/// A chat's body of about `size` bytes that no coding makes much smaller.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let letters: String = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'!' + (state % 90) as u8)
    })
    .filter(|c| !matches!(c, '"' | '\\'))
    .take(size)
    .collect();
    let mut body = support::chat("hello");
    body["user"] = letters.into();
    body.to_string().into_bytes()
}

/// `body` in gzip with exactly `size` bytes: the comment in its head fills what is missing.
fn gzip_of(body: &[u8], size: usize) -> Vec<u8> {
    let coded = |comment: usize| {
        let head = GzBuilder::new().comment("c".repeat(comment));
        let mut encoder = head.write(Vec::new(), Compression::fast());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let coded_plainly = coded(1).len();
    let whole = coded(1 + size - coded_plainly);
    assert_eq!(whole.len(), size);
    whole
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn brotli(body: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut encoder = brotli::CompressorWriter::new(&mut coded, 4096, 4, 22);
    encoder.write_all(body).unwrap();
    drop(encoder);
    coded
}

fn zstd(body: &[u8]) -> Vec<u8> {
    zstd::encode_all(body, 3).unwrap()
}

/// A request whose body has a length.
fn with_length(coding: &str, coded: &[u8]) -> Vec<u8> {
    raw::request(CHAT, &[("Content-Encoding", coding)], coded)
}

/// A request whose body comes in chunks.
fn chunked(coding: &str, coded: &[u8], size: usize) -> Vec<u8> {
    let plain = raw::chunked_request(CHAT, coded, size);
    let end = plain
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap();
    let coding = format!("\r\ncontent-encoding: {coding}");
    [&plain[..end], coding.as_bytes(), &plain[end..]].concat()
}

type Encoder = fn(&[u8]) -> Vec<u8>;

#[test]
fn case_h09_a_compressed_body_reaches_the_worker_decoded() {
    let way = Way::start("");
    let codings: [(&str, Encoder); 5] = [
        ("gzip", gzip),
        ("x-gzip", gzip),
        ("deflate", deflate),
        ("br", brotli),
        ("zstd", zstd),
    ];
    for (coding, encode) in codings {
        for size in [10, 200 * KIB, 3 * MIB] {
            let body = noise(size);
            let coded = encode(&body);
            for request in [
                with_length(coding, &coded),
                chunked(coding, &coded, 1000),
                chunked(coding, &coded, 256 * KIB),
            ] {
                let what = format!("{coding}, {size} bytes");
                let answer = way.send(&request);
                assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                way.assert_seen(&body, &what);
            }
        }
    }
    way.edge.assert_idle();
}

#[test]
fn every_size_around_the_proxys_buffer_passes() {
    let way = Way::start("");
    for size in [200, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, MIB] {
        let body = noise(size / 2 + 1);
        let coded = gzip_of(&body, size.max(400));
        for request in [
            with_length("gzip", &coded),
            chunked("gzip", &coded, 777),
            chunked("gzip", &coded, 64 * KIB),
            chunked("gzip", &coded, 2 * MIB),
        ] {
            let answer = way.send(&request);
            assert_eq!(answer.status, 200, "{size}: {}", answer.text());
            way.assert_seen(&body, &size.to_string());
        }
    }
    way.edge.assert_idle();
}

#[test]
fn both_legs_get_the_decoded_body() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let body = noise(20 * KIB);
    for request in [
        with_length("gzip", &gzip(&body)),
        chunked("br", &brotli(&body), 1000),
    ] {
        let answer = raw::send(kindred.edge(), &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let sent: serde_json::Value = serde_json::from_slice(&body).unwrap();
    for role in [Role::Context, Role::Generation] {
        for request in fleet.requests(role) {
            assert!(
                request.body.contains(sent["user"].as_str().unwrap()),
                "{role:?}"
            );
            assert!(
                request
                    .headers
                    .iter()
                    .all(|(name, _)| name != "content-encoding")
            );
        }
    }
    kindred.assert_idle();
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_come_over_http2_too() {
    let way = Way::start("");
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .unwrap();
    for size in [100, 40 * KIB, 500 * KIB] {
        let body = noise(size);
        let request = client
            .post(way.edge.url(CHAT))
            .header("content-encoding", "zstd");
        let answer = request.body(zstd(&body)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{size}");
        way.assert_seen(&body, &size.to_string());
    }
    way.edge.assert_idle();
}

#[test]
fn what_cannot_be_decoded_is_refused_in_words_and_reaches_nobody() {
    let way = Way::start("limits: {max_body: 1MiB}");
    let body = noise(100 * KIB);
    let good = gzip(&body);
    let cut = &good[..good.len() / 2];
    let more = [&good[..], b"{}"].concat();
    let bomb = gzip(&vec![b' '; 300 * MIB]);
    assert!(bomb.len() < MIB);
    let cases: [(&str, &[u8], u16, &str, &str); 8] = [
        ("gzip", cut, 400, "invalid_content_encoding", "ends before"),
        (
            "gzip",
            &more,
            400,
            "invalid_content_encoding",
            "goes on after",
        ),
        (
            "gzip",
            &body,
            400,
            "invalid_content_encoding",
            "is not in the coding",
        ),
        ("br", &good, 400, "invalid_content_encoding", "is br"),
        (
            "gzip",
            &bomb,
            413,
            "request_too_large",
            "1048576 bytes once it is decoded",
        ),
        (
            "compress",
            &good,
            415,
            "unsupported_content_encoding",
            "gzip, deflate, br or zstd",
        ),
        (
            "gzip, gzip",
            &good,
            415,
            "unsupported_content_encoding",
            "several",
        ),
        (
            "gzip",
            &gzip(b"{\"model\":"),
            400,
            "invalid_body",
            "JSON object",
        ),
    ];
    for (coding, coded, status, code, part) in cases {
        for request in [with_length(coding, coded), chunked(coding, coded, 30_000)] {
            let answer = way.send(&request);
            assert_eq!(answer.status, status, "{coding} {part}: {}", answer.text());
            let error = &answer.json()["error"];
            assert_eq!(error["code"], code);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(part), "{message}");
            if status == 415 {
                let accepted = answer.header("accept-encoding");
                assert_eq!(accepted, Some("gzip, deflate, br, zstd"));
            }
        }
    }
    assert!(way.tap.take().is_empty());
    way.edge.assert_idle();
}
