//! Bodies that are small on the wire and large or deep when they are read.

use std::io::Write;

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};

use super::*;
use crate::support::{Kindred, asking::ask, scripted, stand_in::Canned};

const BOMB: usize = 64 << 20;

fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let zeros = vec![b' '; BOMB];
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&zeros).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflate.write_all(&zeros).unwrap();
    let mut br = brotli::CompressorWriter::new(Vec::new(), 4096, 1, 22);
    br.write_all(&zeros).unwrap();
    vec![
        ("gzip", gzip.finish().unwrap()),
        ("deflate", deflate.finish().unwrap()),
        ("br", br.into_inner()),
        ("zstd", zstd::encode_all(&zeros[..], 1).unwrap()),
    ]
}

#[test]
fn decompression_bombs_are_413_and_cost_no_more_than_a_body() {
    let (fleet, kindred) = start("limits: {max_body: 1MiB}\n");
    let before = heads::kindred_memory(&kindred);
    for (coding, bomb) in bombs() {
        assert!(bomb.len() < 1 << 20, "{coding}: {}", bomb.len());
        for _ in 0..5 {
            let headers = [("content-encoding", coding)];
            let request = raw::request(CHAT, &headers, &bomb);
            let answer = raw::send(kindred.edge(), &request);
            assert_eq!(answer.status, 413, "{coding}: {}", answer.text());
        }
    }
    let grown = heads::kindred_memory(&kindred).saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for 1.2 GiB of bombs");
    assert_nothing_was_sent_on(&fleet);
    kindred.assert_metric("kindred_body_budget_bytes", &[], 0.0);
}

#[test]
fn nested_codings_are_415() {
    let (fleet, kindred) = start("");
    for coding in ["gzip, gzip", "gzip, br", "deflate,zstd"] {
        let answer = raw::post(kindred.edge(), CHAT, &[("content-encoding", coding)], "x");
        assert_eq!(answer.status, 415, "{coding}: {}", answer.text());
    }
    assert_nothing_was_sent_on(&fleet);
}

/// What is wrong, and the body.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let deep = 1_000_000;
    let member = |name: &str, value: &str| {
        format!("{{\"model\":\"m\",\"messages\":[],\"{name}\":{value}}}").into_bytes()
    };
    let arrays = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let objects = format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    vec![
        ("arrays", arrays.clone().into_bytes()),
        ("arrays that do not end", "[".repeat(deep).into_bytes()),
        ("objects", objects.clone().into_bytes()),
        ("a deep message", member("messages_", &arrays)),
        ("deep params", member("conversation_params", &objects)),
        ("no UTF-8", b"{\"model\":\"\xff\"}".to_vec()),
        (
            "no UTF-8 in an id",
            b"{\"conversation_params\":{\"conversation_id\":\"\xc3\x28\"}}".to_vec(),
        ),
    ]
}

#[test]
fn deep_and_broken_bodies_are_400_and_overflow_no_stack() {
    let (fleet, kindred) = start("");
    let (behind, _filters, filter) = filter("");
    for (what, body) in bodies() {
        for address in [kindred.edge(), filter] {
            let answer = raw::send(address, &raw::request(CHAT, &[], &body));
            assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        }
    }
    assert_nothing_was_sent_on(&fleet);
    assert_nothing_was_sent_on(&behind);
    assert_eq!(raw::get(kindred.edge(), "/version").status, 200);
}

/// What is wrong, and a worker's answer in which it is.
fn deep_answers() -> Vec<(&'static str, String)> {
    let deep = 1_000_000;
    let arrays = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let objects = format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    let choice = |deep: &str| {
        format!(
            r#"{{"id":"1","choices":[{{"index":0,"message":{deep},"finish_reason":"length","disaggregated_params":{deep}}}],"usage":{deep}}}"#
        )
    };
    vec![
        ("nothing but arrays", arrays.clone()),
        ("arrays that do not end", "[".repeat(deep)),
        ("arrays within", choice(&arrays)),
        ("objects within", choice(&objects)),
        ("objects that do not end", "{\"choices\":".repeat(deep)),
    ]
}

#[test]
fn a_deep_answer_of_a_context_worker_is_502() {
    let fleet = fleet::start(0, 1, |_| ());
    let generation = fleet.workers[0].address;
    for (what, answer) in deep_answers() {
        let context = Canned::json(&answer);
        let kindred = Kindred::serve(&fleet::yaml(&[context.address], &[generation], ""));
        let answer = ask(&kindred, false);
        assert_eq!(answer.status, 502, "{what}: {}", answer.text());
        assert_nothing_was_sent_on(&fleet);
        kindred.assert_idle();
    }
}

#[test]
fn a_deep_answer_of_a_generation_worker_crashes_nothing() {
    let fleet = fleet::start(1, 0, |_| ());
    let context = fleet.workers[0].address;
    for (what, deep) in deep_answers() {
        let event = format!("data: {deep}\n\n");
        let stream = scripted::events(&[event.as_bytes(), b"data: [DONE]\n\n"]);
        for streaming in [false, true] {
            let generation = if streaming {
                Canned::answering(stream.concat())
            } else {
                Canned::json(&deep)
            };
            let kindred = Kindred::serve(&fleet::yaml(&[context], &[generation.address], ""));
            let before = heads::kindred_memory(&kindred);
            let answer = ask(&kindred, streaming);
            let known = [200, 502].contains(&answer.status);
            assert!(known, "{what}, {streaming}: {}", answer.status);
            let grown = heads::kindred_memory(&kindred).saturating_sub(before);
            assert!(grown < 128 << 10, "{what}, {streaming}: {grown} KiB");
            kindred.assert_idle();
        }
    }
}
