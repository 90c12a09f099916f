//! Error answers in both shapes (docs/errors.md), and the fleet's own fields in good ones.

mod support;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw::{self, Answer},
    reload::reload,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!("max_retries: 0\n{more}")));
    (fleet, kindred)
}

fn chat(kindred: &Kindred) -> Answer {
    raw::post(kindred.edge(), CHAT, &[], &support::chat("hi").to_string())
}

/// Every case that a client can bring about: its name, and the answer.
fn cases(fleet: &Fleet, kindred: &Kindred) -> Vec<(&'static str, Answer)> {
    let post = |path: &str, body: &str| raw::post(kindred.edge(), path, &[], body);
    let worker = |role| fleet.of(role).next().unwrap();
    let mut template = support::chat("hi");
    template["chat_template"] = "x".into();
    let prompts = json!({"model": "m", "prompt": ["a", "b"]}).to_string();
    let mut cases = vec![
        ("body", post(CHAT, "[]")),
        ("prompts", post(COMPLETIONS, &prompts)),
        ("template", post(CHAT, &template.to_string())),
        ("path", raw::get(kindred.edge(), "/nowhere")),
        ("method", raw::get(kindred.edge(), CHAT)),
    ];
    worker(Role::Context).fault(1, "status=422");
    cases.push(("refused", chat(kindred)));
    worker(Role::Generation).fault(1, "reset");
    cases.push(("reset", chat(kindred)));
    worker(Role::Generation).fault(1, "invalid-json");
    cases.push(("no JSON", chat(kindred)));
    let coding = [("content-encoding", "odd")];
    let body = support::chat("hi").to_string();
    cases.push(("coding", raw::post(kindred.edge(), CHAT, &coding, &body)));
    cases
}

#[test]
fn errors_have_the_shape_of_openai_by_default() {
    let (fleet, kindred) = start("");
    let expected = [
        (400, "invalid_body"),
        (400, "invalid_body"),
        (400, "chat_template_not_allowed"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (422, "worker_refused"),
        (502, "worker_unreachable"),
        (502, "unusable_answer"),
        (415, "unsupported_content_encoding"),
    ];
    for ((case, answer), (status, code)) in cases(&fleet, &kindred).into_iter().zip(expected) {
        assert_eq!(answer.status, status, "{case}: {}", answer.text());
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], code, "{case}");
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{case}"
        );
        assert!(error.get("param").is_some(), "{case}");
    }
    kindred.assert_idle();
}

#[test]
fn errors_have_upstreams_shape_where_that_is_wanted() {
    let (fleet, kindred) = start("compatibility: trtllm");
    let internal = "Internal server error ";
    let expected: [(u16, &str, &str); 9] = [
        (400, "error", "The body must be one JSON object"),
        (
            500,
            "detail",
            "Internal server error Disaggregated server currently only supports",
        ),
        (400, "detail", "chat_template in requests is off here"),
        (404, "detail", "Not Found"),
        (405, "detail", "Method Not Allowed"),
        (422, "detail", "simulated fault: status 422"),
        (500, "detail", internal),
        (500, "detail", internal),
        (415, "detail", "A request body in the content coding"),
    ];
    for ((case, answer), (status, key, begin)) in cases(&fleet, &kindred).into_iter().zip(expected)
    {
        assert_eq!(answer.status, status, "{case}: {}", answer.text());
        let body = answer.json();
        let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(fields, [key], "{case}: {body}");
        let told = body[key].as_str().unwrap();
        assert!(told.starts_with(begin), "{case}: {told}");
        if status == 405 {
            assert!(answer.header("allow").is_some());
        }
    }
    // It is live by reload.
    reload(&kindred, &fleet.yaml(""), "applied");
    let answer = raw::get(kindred.edge(), "/nowhere");
    assert_eq!(answer.json()["error"]["code"], "not_found");
    kindred.assert_idle();
}

#[test]
fn a_cluster_that_is_not_ready_says_so_as_upstream_does() {
    let yaml = "hostname: 127.0.0.1\nport: 0\nadmin: {listen: '127.0.0.1:0'}\n\
                disagg_cluster: {cluster_uri: 'http://localhost:1'}\ncompatibility: trtllm\n";
    let kindred = Kindred::serve(yaml);
    let answer = chat(&kindred);
    assert_eq!(answer.status, 500);
    let told = "Internal server error Cluster is not ready";
    assert_eq!(answer.json(), json!({ "detail": told }));
    assert!(answer.header("retry-after").is_some());
}

#[test]
fn an_error_within_a_stream_is_an_event_of_openais_shape() {
    let (fleet, kindred) = start("compatibility: trtllm");
    fleet
        .of(Role::Generation)
        .next()
        .unwrap()
        .fault(1, "die-after=2");
    let mut body = support::chat("hi");
    body["stream"] = true.into();
    let text = raw::post(kindred.edge(), CHAT, &[], &body.to_string()).text();
    let last = text.trim_end().rsplit("data: ").next().unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["error"]["code"], "stream_broken");
}

#[test]
fn the_fleets_own_fields_reach_a_client_only_where_that_is_wanted() {
    for fault in ["", "final"] {
        for wanted in [false, true] {
            let (fleet, kindred) = start(&format!("telemetry: {{internal_fields: {wanted}}}"));
            if !fault.is_empty() {
                fleet.of(Role::Context).next().unwrap().fault(1, fault);
            }
            let answer = chat(&kindred);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let choice = &answer.json()["choices"][0];
            assert_eq!(
                choice.get("disaggregated_params").is_some(),
                wanted,
                "{choice}"
            );
            assert_eq!(answer.json().get("prompt_token_ids").is_some(), wanted);
        }
    }
}
