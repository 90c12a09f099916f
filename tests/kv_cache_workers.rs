//! What the router `kv_cache_aware` asks of workers, and what a worker that answers badly, or not at
//! all, does to requests: nothing.

mod support;

use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};
use support::{
    Kindred, eventually, fleet, raw,
    scripted::{self, Scripted, Seen},
};

const COMPLETIONS: &str = "/v1/completions";

/// A context worker that ends every request at once; the other routes are answered by `other`.
fn worker(other: impl Fn(&str) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |seen| match path(seen) {
        COMPLETIONS => scripted::json(
            &json!({
                "id": "x", "object": "text_completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "text": "t", "finish_reason": "stop",
                             "disaggregated_params": {"request_type": "context_only"}}],
                "usage": {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1},
            })
            .to_string(),
        ),
        path => other(path),
    })
}

fn path(seen: &Seen) -> &str {
    seen.head.split(' ').nth(1).unwrap()
}

fn not_found() -> Vec<Vec<u8>> {
    vec![b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()]
}

/// How often the worker was asked for that.
fn asked(worker: &Scripted, wanted: &str) -> usize {
    let seen = worker.seen();
    seen.iter().filter(|seen| path(seen) == wanted).count()
}

fn serve(worker: &Scripted) -> Kindred {
    let yaml = fleet::yaml(&[worker.address], &["127.0.0.1:1".parse().unwrap()], "");
    Kindred::serve(&yaml.replacen("{type: conversation}", "{type: kv_cache_aware}", 1))
}

fn complete(kindred: &Kindred, prompt: &Value) {
    let body = json!({"model": "m", "prompt": prompt}).to_string();
    let answer = raw::post(kindred.edge(), COMPLETIONS, &[], &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_worker_without_these_routes_serves_all_the_same() {
    let worker = worker(|_| not_found());
    let kindred = serve(&worker);
    for _ in 0..3 {
        complete(&kindred, &json!("alder amber"));
    }
    let labels = ["fleet=\"context\"", "reason=\"completion_without_tokens\""];
    let fallbacks = kindred.metric("kindred_router_fallbacks_total", &labels);
    assert_eq!(fallbacks, 3.0);
    assert_eq!(
        asked(&worker, "/_internal/tokenize"),
        1,
        "then it is left alone"
    );
    complete(&kindred, &json!([1, 2, 3]));
    assert_eq!(
        kindred.metric("kindred_router_fallbacks_total", &labels),
        3.0
    );
    eventually("the log tells of /server_info", || {
        kindred
            .log()
            .contains("its /server_info could not be read")
            .then_some(())
    });
    kindred.assert_idle();
}

#[test]
fn answers_that_make_no_sense_are_passed_over() {
    let worker = worker(|path| match path {
        "/server_info" => scripted::json(r#"{"tokens_per_block": 4}"#),
        "/_internal/tokenize" => scripted::json(r#"{"tokens": "none"}"#),
        _ => scripted::json(r#"{"not": "a list"}"#),
    });
    let kindred = serve(&worker);
    complete(&kindred, &json!("alder amber"));
    complete(&kindred, &json!((0..41).collect::<Vec<u32>>()));
    eventually("events were asked for", || {
        (asked(&worker, "/kv_cache_events") > 0).then_some(())
    });
    let known = || kindred.metric("kindred_kv_blocks", &["fleet=\"context\""]);
    assert_eq!(known(), 10.0, "what was sent there is known by itself");
    eventually("the log tells what is assumed", || {
        kindred
            .log()
            .contains("v1_block_key is assumed")
            .then_some(())
    });
    kindred.assert_idle();
}

#[test]
fn events_are_asked_for_once_at_a_time_and_once_more_after_that() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let held = gate.clone();
    let worker = worker(move |path| match path {
        "/server_info" => {
            scripted::json(r#"{"tokens_per_block": 4, "kv_cache_hash_algo": "v1_block_key"}"#)
        }
        "/kv_cache_events" => {
            let (open, opened) = &*held;
            drop(
                opened
                    .wait_while(open.lock().unwrap(), |open| !*open)
                    .unwrap(),
            );
            scripted::json(r#"[{"data": {"type": "stored", "blocks": [{"block_hash": 1}]}}]"#)
        }
        _ => not_found(),
    });
    let kindred = serve(&worker);
    let ids = |first: u32| json!((first..first + 41).collect::<Vec<u32>>());
    complete(&kindred, &ids(0));
    eventually("the first question is asked", || {
        (asked(&worker, "/kv_cache_events") == 1).then_some(())
    });
    for turn in 1..=5 {
        complete(&kindred, &ids(100 * turn));
    }
    assert_eq!(asked(&worker, "/kv_cache_events"), 1);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    eventually("it is asked again", || {
        (asked(&worker, "/kv_cache_events") == 2).then_some(())
    });
    // With the block of the event.
    kindred.assert_metric("kindred_kv_blocks", &["fleet=\"context\""], 61.0);
    // Each finished leg before had its share in the second question.
    complete(&kindred, &ids(0));
    eventually("a later leg asks anew", || {
        (asked(&worker, "/kv_cache_events") == 3).then_some(())
    });
    kindred.assert_idle();
}
