//! Request bodies through the whole way, gateway, edge and worker filters: whatever their size and
//! framing, the workers see what was sent but for the documented changes.

mod support;

use std::{io::Write, time::Duration};

use futures_util::StreamExt;
use kindred::wire::Role;
use serde_json::{Map, Value, json};
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
    stand_in::{Seen, Tap},
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Edge, worker filters, taps, workers: one instance of each role.
struct Way {
    edge: Kindred,
    filters: Kindred,
    context: Tap,
    generation: Tap,
    _fleet: Fleet,
}

impl Way {
    fn with(more: &str) -> Self {
        let fleet = fleet::start(1, 1, |config| config.max_sequence = 8 * MIB);
        let tap = |role| Tap::before(fleet.of(role).next().unwrap().address);
        let (context, generation) = (tap(Role::Context), tap(Role::Generation));
        let filters = Kindred::serve(&format!(
            "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
             - {{name: c, listen: '127.0.0.1:0', worker: '{}', server_role: context}}\n\
             - {{name: g, listen: '127.0.0.1:0', worker: '{}', server_role: generation}}\n",
            context.address, generation.address
        ));
        let [(_, c), (_, g)] = filters.filters[..] else {
            panic!("two filters: {}", filters.announced)
        };
        let edge = Kindred::serve(&fleet::yaml(&[c], &[g], more));
        Self {
            edge,
            filters,
            context,
            generation,
            _fleet: fleet,
        }
    }

    fn send(&self, request: &[u8]) -> Answer {
        let mut stream = raw::connect(self.edge.edge());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        raw::read_answer(&mut stream)
    }

    /// Asserts that both workers got `sent`, once each.
    fn assert_passed(&self, sent: &[u8], what: &str) {
        for (tap, changed) in [
            (&self.context, &["stream", "disaggregated_params"][..]),
            (
                &self.generation,
                &["disaggregated_params", "prompt_token_ids"],
            ),
        ] {
            let seen = tap.take();
            assert_eq!(seen.len(), 1, "{what}: one request to each worker");
            assert_unchanged(sent, &seen[0], changed, what);
        }
    }

    fn assert_idle(&self) {
        self.edge.assert_idle();
        self.filters.assert_idle();
    }
}

/// Asserts that a worker saw `sent` with nothing but the fields `added` at its end.
fn assert_unchanged(sent: &[u8], seen: &Seen, added: &[&str], what: &str) {
    let last = sent.iter().rposition(|byte| *byte == b'}').unwrap();
    let kept = sent[..last].trim_ascii_end();
    assert!(
        seen.body.starts_with(kept),
        "{what}: {} bytes sent, {} seen: {:.200}",
        sent.len(),
        seen.body.len(),
        String::from_utf8_lossy(&seen.body)
    );
    let rest = String::from_utf8_lossy(&seen.body[kept.len()..]);
    let rest = format!("{{{}", rest.trim_start_matches([' ', '\n', '\t', ',']));
    let rest: Map<String, Value> = serde_json::from_str(&rest).unwrap_or_else(|error| {
        panic!("{what}: {error}: {rest:.300}");
    });
    let mut names: Vec<_> = rest.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut added = added.to_vec();
    added.sort_unstable();
    assert_eq!(names, added, "{what}");
}

/// A chat request's body of exactly `size` bytes, no two parts alike.
fn body_of(size: usize) -> Vec<u8> {
    let mut body = chat("hello");
    body["user"] = "".into();
    let mut text = serde_json::to_string(&body).unwrap();
    text.truncate(text.len() - 2);
    let mut number = 0u64;
    while text.len() < size {
        text += &format!("{number:x}.");
        number += 1;
    }
    text.truncate(size - 2);
    text += "\"}";
    assert_eq!(text.len(), size);
    text.into_bytes()
}

/// The sizes around every bound that is known to matter.
const SIZES: [usize; 6] = [200, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, MIB];

/// Three unoptimised programs that read 31 MiB on a loaded machine take their time.
const PATIENCE: Duration = Duration::from_secs(300);

const CHAT: &str = "/v1/chat/completions";

#[test]
fn case_h08_bodies_with_a_content_length_reach_both_workers_whole() {
    let way = Way::with("");
    for size in SIZES.into_iter().chain([5 * MIB, 31 * MIB]) {
        let body = body_of(size);
        let answer = way.send(&raw::request(CHAT, &[], &body));
        assert_eq!(answer.status, 200, "{size} bytes: {}", answer.text());
        way.assert_passed(&body, &format!("{size} bytes"));
    }
    way.assert_idle();
}

#[test]
fn case_h08_chunked_bodies_reach_both_workers_whole() {
    let way = Way::with("");
    for size in SIZES {
        let body = body_of(size);
        for chunk in [113, 4000, 64 * KIB, 64 * KIB + 1, size] {
            let answer = way.send(&raw::chunked_request(CHAT, &body, chunk));
            let what = format!("{size} bytes in chunks of {chunk}");
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            way.assert_passed(&body, &what);
        }
    }
    for size in [5 * MIB, 31 * MIB] {
        let body = body_of(size);
        let answer = way.send(&raw::chunked_request(CHAT, &body, MIB));
        assert_eq!(answer.status, 200, "{}", answer.text());
        way.assert_passed(&body, &format!("{size} bytes in chunks of 1 MiB"));
    }
    way.assert_idle();
}

#[test]
fn the_end_of_a_chunked_body_may_come_late_and_in_pieces() {
    let way = Way::with("");
    for size in SIZES {
        for (what, end) in [
            ("at once", &[&b"0\r\n\r\n"[..]][..]),
            ("in two", &[b"0\r\n", b"\r\n"]),
            ("byte by byte", &[b"0", b"\r", b"\n", b"\r", b"\n"]),
            ("after white space", &[b"3\r\n \n \r\n", b"0\r\n\r\n"]),
        ] {
            let body = body_of(size);
            let request = raw::chunked_request(CHAT, &body, 16 * KIB);
            let mut stream = raw::connect(way.edge.edge());
            stream.set_nodelay(true).unwrap();
            stream
                .write_all(&request[..request.len() - b"0\r\n\r\n".len()])
                .unwrap();
            eventually("the edge holds the body", || {
                (way.edge.metric("kindred_body_budget_bytes", &[]) >= size as f64).then_some(())
            });
            for piece in end {
                stream.write_all(piece).unwrap();
            }
            let answer = raw::read_answer(&mut stream);
            let what = format!("{size} bytes, end {what}");
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            way.assert_passed(&body, &what);
        }
    }
    way.assert_idle();
}

#[test]
fn large_prompts_and_streams_work_as_well() {
    let way = Way::with("");
    for size in [64 * KIB + 1, MIB] {
        let mut body = chat(&"word ".repeat(size / 5));
        body["stream"] = true.into();
        let body = body.to_string();
        for request in [
            raw::request(CHAT, &[], body.as_bytes()),
            raw::chunked_request(CHAT, body.as_bytes(), 32 * KIB),
        ] {
            let answer = way.send(&request);
            let text = answer.text();
            assert_eq!(answer.status, 200, "{text}");
            assert!(text.ends_with("data: [DONE]\n\n"), "{text:.300}");
        }
    }
    way.assert_idle();
}

#[test]
fn what_json_can_look_like_arrives_as_it_was_sent() {
    let way = Way::with("");
    let odd = [
        r#" { "model" : "m" ,
            "messages":[ {"role":"user","content":"h\u00e9\u4f1a \ud83d\ude00 \/ é 😀 \u0000"} ] , "max_tokens"	:4 }  "#,
        r#"{"model":"m","metadata":{"id":12345678901234567890123,"f":0.70000000000000001,"z":-0.0,"e":1E+2,"d":1.10},"messages":[{"role":"user","content":"a"}],"temperature":0.70000000000000001,"top_p":1.0,"max_tokens":4}"#,
        r#"{"user":"z","max_tokens":4,"messages":[{"content":"key order","role":"user"}],"temperature":0,"model":"m","logit_bias":{"9":1,"10":2,"1":-0.0}}"#,
        r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"a"}],"stop":null,"seed":null,"\u0075ser":"escaped name"}"#,
    ];
    for body in odd {
        let answer = way.send(&raw::request(CHAT, &[], body.as_bytes()));
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        way.assert_passed(body.as_bytes(), body);
        let answer = way.send(&raw::chunked_request(CHAT, body.as_bytes(), 5));
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        way.assert_passed(body.as_bytes(), body);
    }
    // No simulated worker can read this number, but it is the worker's to refuse.
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":1e400}"#;
    assert_eq!(
        way.send(&raw::request(CHAT, &[], body.as_bytes())).status,
        400
    );
    let seen = way.context.take();
    assert_unchanged(
        body.as_bytes(),
        &seen[0],
        &["stream", "disaggregated_params"],
        body,
    );
    way.assert_idle();
}

#[test]
fn completions_keep_their_bytes_too() {
    let way = Way::with("");
    let body = r#"{ "prompt":"a \u00e9 \n b", "temperature":0.70000000000000001,"model":"m","max_tokens":4}"#;
    let answer = way.send(&raw::request("/v1/completions", &[], body.as_bytes()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let added = ["stream", "disaggregated_params"];
    assert_unchanged(body.as_bytes(), &way.context.take()[0], &added, "context");
    let seen = &way.generation.take()[0];
    let seen = String::from_utf8_lossy(&seen.body);
    assert!(
        seen.contains(r#", "temperature":0.70000000000000001,"model":"m","max_tokens":4"#),
        "{seen}"
    );
    let seen: Value = serde_json::from_str(&seen).unwrap();
    assert!(
        seen["prompt"].as_array().is_some_and(|ids| !ids.is_empty()),
        "the prompt is the context worker's ids: {seen}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_bodies_with_a_length_reach_both_workers_whole() {
    let way = Way::with("");
    let client = h2c();
    for size in SIZES.into_iter().chain([31 * MIB]) {
        let body = body_of(size);
        let sent = client.post(way.edge.url(CHAT)).body(body.clone()).send();
        let answer = sent.await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert_eq!(answer.status(), 200, "{size} bytes");
        let answer: Value = answer.json().await.unwrap();
        assert!(answer["choices"][0]["message"]["content"].is_string());
        way.assert_passed(&body, &format!("{size} bytes"));
    }
    for size in [200, 64 * KIB + 1, MIB] {
        let body = body_of(size);
        let sent = client
            .post(way.edge.url(CHAT))
            .header("content-length", size)
            .body(in_parts(&body, 10_000));
        assert_eq!(sent.send().await.unwrap().status(), 200, "{size} bytes");
        way.assert_passed(&body, &format!("{size} bytes in parts"));
    }
    way.assert_idle();
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_bodies_without_a_length_are_taken_to_60_kib_and_refused_above_64() {
    let way = Way::with("");
    let client = h2c();
    for size in [200, 30 * KIB, 60 * KIB] {
        for part in [1000, 16 * KIB, 60 * KIB] {
            let body = body_of(size);
            let sent = client.post(way.edge.url(CHAT)).body(in_parts(&body, part));
            let answer = sent.send().await.unwrap();
            let what = format!("{size} bytes in parts of {part}");
            assert_eq!(answer.status(), 200, "{what}");
            way.assert_passed(&body, &what);
        }
    }
    for size in [64 * KIB + 1, 100 * KIB, MIB] {
        for part in [1000, 16 * KIB, MIB] {
            let body = in_parts(&body_of(size), part);
            let sent = client.post(way.edge.url(CHAT)).body(body);
            let answer = sent.send().await.unwrap();
            let what = format!("{size} bytes in parts of {part}");
            assert_eq!(answer.status(), 411, "{what}");
            let answer: Value = answer.json().await.unwrap();
            assert_eq!(answer["error"]["code"], json!("length_required"));
            assert!(way.context.take().is_empty(), "{what}: refused and sent on");
        }
    }
    way.assert_idle();
}

/// A client that never ends its body gets an answer all the same.
#[tokio::test(flavor = "multi_thread")]
async fn http2_bodies_without_a_length_that_do_not_end_never_hang() {
    let way = Way::with("timeouts: {read_body: 1s}");
    let client = h2c();
    for (size, status) in [(200, 408), (64 * KIB, 408), (64 * KIB + 1, 411), (MIB, 411)] {
        let body = body_of(size);
        let parts: Vec<_> = body.chunks(16 * KIB).map(<[u8]>::to_vec).collect();
        let parts = futures_util::stream::iter(parts.into_iter().map(Ok::<_, std::io::Error>));
        let endless = parts.chain(futures_util::stream::pending());
        let sent = client.post(way.edge.url(CHAT));
        let sent = sent.body(reqwest::Body::wrap_stream(endless)).send();
        let answer = sent.await.unwrap();
        assert_eq!(answer.status(), status, "{size} bytes");
        let answer: Value = answer.json().await.unwrap();
        assert!(answer["error"]["message"].is_string(), "{answer}");
        assert!(way.context.take().is_empty(), "{size} bytes: sent on");
    }
    way.assert_idle();
}

fn h2c() -> reqwest::Client {
    reqwest::Client::builder()
        .http2_prior_knowledge()
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

/// A body whose length is not known beforehand.
fn in_parts(body: &[u8], size: usize) -> reqwest::Body {
    let parts: Vec<_> = body
        .chunks(size)
        .map(|part| Ok::<_, std::io::Error>(part.to_vec()))
        .collect();
    reqwest::Body::wrap_stream(futures_util::stream::iter(parts))
}
