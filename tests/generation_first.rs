//! `schedule_style: generation_first`: what reaches the workers, in which order, and what the client
//! gets (specification section 4.5).

mod support;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use hmac::{Hmac, KeyInit, Mac};
use kindred::{simulate::worker::recorder::Recorded, wire::Role};
use serde_json::{Value, json};
use sha2::Sha256;
use support::{
    Kindred, PATIENCE, chat, eventually,
    fleet::{self, Fleet},
    raw, scripted,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const STYLE: &str = "schedule_style: generation_first";
const KEY: &str = "a-key-for-tests-0123456789abcdef";

fn body(request: &Recorded) -> Value {
    serde_json::from_str(&request.body).unwrap()
}

fn only(fleet: &Fleet, role: Role) -> Recorded {
    let mut requests = fleet.requests(role);
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests.remove(0)
}

fn header<'a>(request: &'a Recorded, name: &str) -> Option<&'a str> {
    let found = request
        .headers
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// How often `/server_info` of the context workers was read.
fn infos(fleet: &Fleet) -> usize {
    let recorded = fleet
        .of(Role::Context)
        .flat_map(|worker| worker.recorder.since(0));
    recorded
        .filter(|request| request.path == "/server_info")
        .count()
}

/// The data of an event stream's events.
fn events(text: &str) -> Vec<&str> {
    text.split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
        .collect()
}

/// A request of each kind, with the text of its answer if it is no stream.
fn kinds() -> Vec<(&'static str, Value)> {
    let completion = json!({"model": "m", "max_tokens": 4, "prompt": ["tell me of trees"]});
    let stream = |mut body: Value| {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body
    };
    vec![
        (CHAT, chat("tell me of trees")),
        (CHAT, stream(chat("tell me of trees"))),
        (COMPLETIONS, completion.clone()),
        (COMPLETIONS, stream(completion)),
    ]
}

#[test]
fn both_legs_share_an_id_and_say_what_is_specified() {
    for (path, mut asked) in kinds() {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(STYLE));
        let answer = raw::post(
            kindred.edge(),
            path,
            &[("x-session-id", "s")],
            &asked.to_string(),
        );
        assert_eq!(answer.status, 200, "{}", answer.text());

        let (context, generation) = (only(&fleet, Role::Context), only(&fleet, Role::Generation));
        assert_eq!(
            (context.path.as_str(), generation.path.as_str()),
            (path, path)
        );
        let id = body(&context)["disaggregated_params"]["disagg_request_id"]
            .as_u64()
            .unwrap();
        assert!(id >= 1 << 40);
        asked["conversation_params"] = json!({"conversation_id": "s"});
        if path == COMPLETIONS {
            asked["prompt"] = asked["prompt"][0].take();
        }
        let mut expected = asked.clone();
        expected["disaggregated_params"] = json!({
            "ctx_info_endpoint": "tcp://context-0.simulated:5000",
            "request_type": "generation_only",
            "ctx_request_id": id,
            "disagg_request_id": id,
            "schedule_style": 1,
        });
        assert_eq!(body(&generation), expected);
        let mut expected = asked.clone();
        expected.as_object_mut().unwrap().remove("stream_options");
        expected["stream"] = json!(false);
        expected["disaggregated_params"] =
            json!({"request_type": "context_only", "disagg_request_id": id, "schedule_style": 1});
        assert_eq!(body(&context), expected);
        kindred.assert_idle();
    }
}

#[test]
fn every_kind_of_answer_is_relayed_as_in_the_normal_way() {
    for (path, asked) in kinds() {
        let [normal, first] = ["", STYLE].map(|style| {
            let fleet = fleet::start(1, 1, |_| {});
            let kindred = Kindred::serve(&fleet.yaml(style));
            raw::post(kindred.edge(), path, &[], &asked.to_string())
        });
        assert_eq!((normal.status, first.status), (200, 200));
        for name in ["content-type", "transfer-encoding", "content-length"] {
            assert_eq!(normal.header(name), first.header(name), "{name}");
        }
        // What differs by nature: the answer's own id and time.
        let words = |text: &str| -> Vec<Value> {
            let parts = if asked["stream"] == true {
                events(text)
            } else {
                vec![text]
            };
            let parts = parts.into_iter().filter(|part| *part != "[DONE]");
            parts
                .map(|part| {
                    let mut part: Value = serde_json::from_str(part).unwrap();
                    part["id"] = Value::Null;
                    part["created"] = Value::Null;
                    part
                })
                .collect()
        };
        let (normal, first) = (normal.text(), first.text());
        assert_eq!(words(&normal), words(&first));
        assert!(!first.contains("disaggregated_params") && !first.contains("prompt_token_ids"));
        assert_eq!(asked["stream"] == true, first.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn a_large_body_of_unknown_length_is_read_to_its_end_first() {
    let fleet = fleet::start(1, 1, |_| {});
    // The budget is that of one body.
    let limits = "limits: {max_body: 1MiB, body_budget: 1MiB}";
    let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}\n{limits}")));
    let asked = chat(&"wordswordswordswords ".repeat(40_000)).to_string();
    let bytes = raw::chunked_request(CHAT, asked.as_bytes(), 50_000);
    let whole = bytes.strip_suffix(b"0\r\n\r\n").unwrap();
    for (end, status) in [
        (&b"0\r\n\r\n"[..], 200),
        (b"2\r\n \n\r\n0\r\n\r\n", 200),
        (b"1\r\nx\r\n0\r\n\r\n", 400),
    ] {
        let answer = raw::send(kindred.edge(), &[whole, end].concat());
        assert_eq!(answer.status, status, "{}", answer.text());
        // The budget is given back after the last byte has left.
        kindred.assert_idle();
    }
    assert_eq!(fleet.requests(Role::Generation).len(), 2);
}

/// A worker in the hands of the test.
struct Scripted(TcpListener);

impl Scripted {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// The connection of the next request that is no probe, read up to the end of its head.
    fn accept(&self) -> TcpStream {
        loop {
            let (mut stream, _) = self.0.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                // A probe that was waited for too long is gone.
                if stream.read_exact(&mut byte).is_err() {
                    break;
                }
                head.push(byte[0]);
            }
            if !scripted::is_probe(&head) {
                return stream;
            }
            let _ = stream.write_all(scripted::WELL);
        }
    }
}

/// One context worker that waits for nobody, and a scripted generation worker.
fn scripted() -> (Fleet, Scripted, Kindred) {
    let fleet = fleet::start(1, 0, |config| config.exchange = None);
    let generation = Scripted::new();
    let contexts: Vec<_> = fleet
        .of(Role::Context)
        .map(|worker| worker.address)
        .collect();
    let kindred = Kindred::serve(&fleet::yaml(
        &contexts,
        &[generation.0.local_addr().unwrap()],
        STYLE,
    ));
    (fleet, generation, kindred)
}

#[test]
fn the_context_request_begins_only_when_the_generation_request_is_written_whole() {
    let (fleet, generation, kindred) = scripted();
    // More than the connection can hold while nobody reads.
    let asked = chat(&"x".repeat(24 << 20)).to_string();
    let mut client = raw::connect(kindred.edge());
    client
        .write_all(&raw::request(CHAT, &[], asked.as_bytes()))
        .unwrap();
    let mut generation = generation.accept();
    assert_eq!(infos(&fleet), 1);
    let mut read = vec![0; 1 << 20];
    for _ in 0..8 {
        generation.read_exact(&mut read).unwrap();
        let posts: Vec<_> = fleet
            .of(Role::Context)
            .flat_map(|worker| worker.recorder.since(0))
            .collect();
        assert!(
            posts.iter().all(|request| request.method == "GET"),
            "{posts:?}"
        );
    }
    let mut all = asked.len() - (8 << 20);
    while all > 0 {
        let taken = generation.read(&mut read).unwrap();
        all = all.saturating_sub(taken);
    }
    eventually("the context request comes", || {
        fleet.requests(Role::Context).pop()
    });
}

#[test]
fn the_client_hears_nothing_before_the_context_leg_is_done_and_then_every_event_as_it_comes() {
    let (fleet, generation, kindred) = scripted();
    let context = fleet.of(Role::Context).next().unwrap();
    context.fault(1, "delay=500ms");
    let mut asked = chat("hello");
    asked["stream"] = json!(true);
    let mut client = raw::connect(kindred.edge());
    client
        .write_all(&raw::request(CHAT, &[], asked.to_string().as_bytes()))
        .unwrap();
    let mut generation = generation.accept();
    generation
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
              transfer-encoding: chunked\r\n\r\nf\r\ndata: {\"a\":1}\n\n\r\n",
        )
        .unwrap();
    let mut heard = Vec::new();
    hear(&mut client, &mut heard, "data: {\"a\":1}\n\n");
    // It runs after its delay only.
    assert!(context.requests()[0].rank.is_some());
    generation
        .write_all(b"f\r\ndata: {\"a\":2}\n\n\r\n")
        .unwrap();
    hear(&mut client, &mut heard, "data: {\"a\":2}\n\n");
    generation
        .write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        .unwrap();
    hear(&mut client, &mut heard, "data: [DONE]\n\n");
    kindred.assert_idle();
}

#[test]
fn a_stream_that_breaks_off_ends_with_an_error_event_and_the_connection() {
    let (_fleet, generation, kindred) = scripted();
    let mut asked = chat("hello");
    asked["stream"] = json!(true);
    let mut client = raw::connect(kindred.edge());
    client
        .write_all(&raw::request(CHAT, &[], asked.to_string().as_bytes()))
        .unwrap();
    let mut generation = generation.accept();
    generation
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
              transfer-encoding: chunked\r\n\r\nd\r\ndata: {\"a\":1}\r\n",
        )
        .unwrap();
    let mut heard = Vec::new();
    hear(&mut client, &mut heard, "data: {\"a\":1}");
    drop(generation);
    hear(&mut client, &mut heard, "\"code\":\"stream_broken\"");
    client.read_to_end(&mut heard).unwrap();
    let heard = String::from_utf8(heard).unwrap();
    // The event that broke off is ended before the error.
    assert!(heard.contains("\n\ndata: {\"error\""), "{heard}");
    assert!(!heard.contains("[DONE]"), "{heard}");
    kindred.assert_idle();
    kindred.assert_metric(
        "kindred_requests_total",
        &["outcome=\"stream_broken\""],
        1.0,
    );
}

/// Reads on until `words` have come.
fn hear(client: &mut TcpStream, heard: &mut Vec<u8>, words: &str) {
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(heard).contains(words) {
        let read = client.read(&mut chunk).unwrap();
        assert!(
            read > 0,
            "ended early: {:?}",
            String::from_utf8_lossy(heard)
        );
        heard.extend_from_slice(&chunk[..read]);
    }
}

fn hmac(payload: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY.as_bytes()).unwrap();
    mac.update(payload.as_bytes());
    let digest = mac.finalize().into_bytes();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

/// The signature of a family's request as a worker has to compute it from the body that it got.
fn affinity(request: &Recorded, role: &str) -> String {
    let body = body(request);
    let params = &body["disaggregated_params"];
    hmac(&format!(
        r#"{{"conversation_id":"{}","disagg_request_id":{},"model":"m","purpose":"x-trtllm-subagent-affinity-id","request_type":{},"role":"{role}","subagent_affinity_id":"parent"}}"#,
        body["conversation_params"]["conversation_id"]
            .as_str()
            .unwrap(),
        params["disagg_request_id"],
        params["request_type"],
    ))
}

#[test]
fn signatures_are_valid_in_both_scopes() {
    const ID: &str = "x-trtllm-subagent-affinity-id";
    const AUTH: &str = "x-trtllm-subagent-affinity-auth";
    for scope in ["context", "both"] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(&format!(
            "{STYLE}\ninternal_request_auth_key: {KEY}\n\
             conversation_affinity_header_for_subagents: x-parent\nsubagent_affinity_scope: {scope}"
        )));
        let headers = [("x-session-id", "child"), ("x-parent", "parent")];
        let answer = raw::post(kindred.edge(), CHAT, &headers, &chat("hello").to_string());
        assert_eq!(answer.status, 200);
        let (context, generation) = (only(&fleet, Role::Context), only(&fleet, Role::Generation));
        assert_eq!(header(&context, ID), Some("parent"));
        assert_eq!(
            header(&context, AUTH),
            Some(affinity(&context, "CONTEXT").as_str())
        );
        assert_eq!(header(&context, "x-trtllm-disagg-auth"), None);
        let signed = affinity(&generation, "GENERATION");
        let expected = (scope == "both").then_some(signed.as_str());
        assert_eq!(header(&generation, AUTH), expected, "{scope}");
        assert_eq!(header(&generation, ID), expected.map(|_| "parent"));
        let transfer = hmac(
            r#"{"ctx_info_endpoint":"tcp://context-0.simulated:5000","encoded_opaque_state":null}"#,
        );
        assert_eq!(
            header(&generation, "x-trtllm-disagg-auth"),
            Some(transfer.as_str())
        );
    }
}

#[test]
fn a_family_stays_on_one_context_instance() {
    let fleet = fleet::start(3, 2, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!(
        "{STYLE}\ninternal_request_auth_key: {KEY}\n\
         conversation_affinity_header_for_subagents: x-parent"
    )));
    for family in ["a", "b", "c"] {
        let own = [("x-session-id", family)];
        for turn in 0..4 {
            let child = format!("{family}-{turn}");
            let sub_agent = [("x-session-id", child.as_str()), ("x-parent", family)];
            let headers = if turn % 2 == 0 {
                &own[..]
            } else {
                &sub_agent[..]
            };
            let answer = raw::post(kindred.edge(), CHAT, headers, &chat(&child).to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let hosts = fleet.of(Role::Context).filter(|worker| {
            let requests = worker.requests();
            requests
                .iter()
                .any(|request| request.body.contains(&format!("\"{family}-")))
        });
        assert_eq!(hosts.count(), 1, "{family}");
    }
    // Each generation request waited at the instance that its context request went to, or the
    // simulated worker would have refused it.
    assert_eq!(fleet.requests(Role::Generation).len(), 12);
    kindred.assert_idle();
}

#[test]
fn server_info_is_read_once_for_many_requests() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(STYLE));
    for _ in 0..5 {
        assert_eq!(
            raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string()).status,
            200
        );
    }
    assert_eq!(infos(&fleet), 1);
}

#[test]
fn a_context_answer_that_is_final_does_not_stop_the_generation_leg() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(STYLE));
    fleet.of(Role::Context).next().unwrap().fault(1, "final");
    let answer = raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);
    assert_eq!(fleet.requests(Role::Generation).len(), 1);
}

#[test]
fn the_same_figures_and_debug_headers_as_in_the_normal_way() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred =
        Kindred::serve(&fleet.yaml(&format!("{STYLE}\ntelemetry: {{debug_headers: true}}")));
    let answer = raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string());
    assert_eq!(answer.header("x-kindred-context"), Some("context-0"));
    assert_eq!(answer.header("x-kindred-generation"), Some("generation-0"));
    kindred.assert_idle();
    for (name, labels) in [
        (
            "kindred_requests_total",
            &["fleet=\"generation\"", "outcome=\"ok\""][..],
        ),
        ("kindred_leg_duration_seconds_count", &["fleet=\"context\""]),
        (
            "kindred_leg_duration_seconds_count",
            &["fleet=\"generation\""],
        ),
        (
            "kindred_leg_first_byte_seconds_count",
            &["fleet=\"generation\""],
        ),
        ("kindred_affinity_decisions_total", &["fleet=\"context\""]),
        (
            "kindred_affinity_decisions_total",
            &["fleet=\"generation\""],
        ),
        (
            "kindred_request_duration_seconds_count",
            &["route=\"chat_completions\""],
        ),
    ] {
        kindred.assert_metric(name, labels, 1.0);
    }
    assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
}
