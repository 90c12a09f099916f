//! Error answers in both shapes (docs/errors.md), and the fleet's own fields in good ones.

mod support;
#[path = "compatibility/table.rs"]
mod table;

use kindred::{
    config::Compatibility, http::reply::Failure, telemetry::labels::Outcome, wire::Role,
};
use serde_json::{Value, json};
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw::{self, Answer},
    reload::reload,
    scripted::{self, Scripted},
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

/// A request that is refused: the code that docs/errors.md has a row for, and the answer.
type Case = (&'static str, Answer);

/// The cases that a client brings about by itself.
fn clients_mistakes(kindred: &Kindred) -> Vec<Case> {
    let at = |path: &str, headers: &[(&str, &str)], body: &str| {
        raw::post(kindred.edge(), path, headers, body)
    };
    let with = |field: &str, value: Value| {
        let mut body = support::chat("hi");
        body[field] = value;
        at(CHAT, &[], &body.to_string())
    };
    let headers = |headers: &[(&str, &str)]| at(CHAT, headers, &support::chat("hi").to_string());
    let prompt = |value: Value| {
        at(
            COMPLETIONS,
            &[],
            &json!({"model": "m", "prompt": value}).to_string(),
        )
    };
    let long = "x".repeat(600);
    // A shorter one is held whole and read by the parser, which has words of its own.
    let half = format!(r#"{{"model":"{}"#, "m".repeat(100_000));
    let half = raw::chunked_request(CHAT, half.as_bytes(), 8192);
    let path = format!("/{}", "x".repeat(20_000));
    vec![
        ("invalid_body", at(CHAT, &[], "[]")),
        ("invalid_body", with("stream", "maybe".into())),
        ("invalid_body", prompt(Value::Null)),
        ("invalid_body", prompt(json!({}))),
        ("invalid_json", raw::send(kindred.edge(), &half)),
        (
            "invalid_content_encoding",
            headers(&[("content-encoding", "gzip")]),
        ),
        (
            "stream_options_without_stream",
            with("stream_options", json!({})),
        ),
        (
            "invalid_session_id",
            with("conversation_params", json!({"conversation_id": long})),
        ),
        ("invalid_session_id", headers(&[("x-session-id", &long)])),
        ("unsupported_prompt", prompt(json!(["a", "b"]))),
        ("unsupported_prompt", prompt(json!([[1], [2]]))),
        ("unsupported_prompt", prompt(json!([]))),
        (
            "chat_template_not_allowed",
            with("chat_template", "x".into()),
        ),
        (
            "ambiguous_framing",
            headers(&[("transfer-encoding", "chunked")]),
        ),
        ("invalid_connection", headers(&[("connection", "host")])),
        ("invalid_path", raw::get(kindred.edge(), "/v1/%2e/models")),
        ("not_found", raw::get(kindred.edge(), "/nowhere")),
        (
            "model_not_found",
            raw::get(kindred.edge(), "/v1/models/nobody"),
        ),
        ("method_not_allowed", raw::get(kindred.edge(), CHAT)),
        (
            "request_too_large",
            with("user", "x".repeat(140_000).into()),
        ),
        ("path_too_long", raw::get(kindred.edge(), &path)),
        (
            "unsupported_content_encoding",
            headers(&[("content-encoding", "odd")]),
        ),
        ("expectation_failed", headers(&[("expect", "much")])),
        (
            "headers_too_large",
            headers(&[("x-large", &"x".repeat(5_000))]),
        ),
    ]
}

/// The cases that take a worker.
fn workers_faults(fleet: &Fleet, kindred: &Kindred) -> Vec<Case> {
    let cases = [
        ("worker_refused", Role::Context, "status=422"),
        ("worker_refused", Role::Generation, "status=405"),
        ("worker_refused", Role::Generation, "status=500"),
        ("worker_unreachable", Role::Generation, "reset"),
        ("unusable_answer", Role::Generation, "invalid-json"),
        ("unusable_answer", Role::Context, "status=401"),
        (
            "unusable_context_answer",
            Role::Context,
            "null=disaggregated_params",
        ),
        ("upstream_timeout", Role::Context, "delay=60s"),
    ];
    let cases = cases.map(|(code, role, fault)| {
        fleet.of(role).next().unwrap().fault(1, fault);
        (code, chat(kindred))
    });
    cases.into()
}

fn cases(fleet: &Fleet, kindred: &Kindred) -> Vec<Case> {
    let mut cases = clients_mistakes(kindred);
    cases.extend(workers_faults(fleet, kindred));
    cases
}

/// What makes every case one that a test can bring about.
const STRICT: &str = "health: {ejection: {min_requests: 1000}}\n\
                      timeouts: {context: 4s}\n\
                      limits: {max_body: 128KiB, max_header_bytes: 4KiB}\n";

fn told(code: &str, answer: &Answer) -> Value {
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/json"), "{code}: {}", answer.status);
    assert!(answer.header("x-request-id").is_some());
    let allows = answer.header("allow").is_some();
    assert_eq!(code == "method_not_allowed", allows, "{code}");
    answer.json()
}

#[test]
fn errors_are_as_documented_in_both_shapes_and_a_reload_changes_the_shape() {
    let (fleet, kindred) = start(STRICT);
    let as_openai = cases(&fleet, &kindred);
    let trtllm = format!("max_retries: 0\n{STRICT}compatibility: trtllm\n");
    reload(&kindred, &fleet.yaml(&trtllm), "applied");
    let as_upstream = cases(&fleet, &kindred);
    for ((code, ours), (_, theirs)) in as_openai.into_iter().zip(as_upstream) {
        let error = told(code, &ours)["error"].clone();
        assert_eq!(error["code"], code, "{error}");
        let mut fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        fields.sort();
        assert_eq!(fields, ["code", "message", "param", "type"]);
        let row = table::row_of(code, error["param"].as_str());
        assert_eq!(ours.status, row.openai.unwrap_or(ours.status), "{error}");
        let status = row.trtllm.unwrap_or(ours.status);
        assert_eq!(theirs.status, status, "{error}: {}", theirs.text());
        let message = error["message"].as_str().unwrap();
        assert_eq!(told(code, &theirs), row.body(message), "{code}");
        assert_eq!(ours.header("retry-after"), theirs.header("retry-after"));
    }
    kindred.assert_idle();
}

#[test]
fn a_client_without_a_key_is_told_so_in_both_shapes() {
    let digest = "0".repeat(64);
    let gateway = format!("gateway: {{clients: [{{name: one, api_keys_sha256: ['{digest}']}}]}}\n");
    for (compatibility, key) in [("openai", "error"), ("trtllm", "detail")] {
        let (_fleet, kindred) = start(&format!("{gateway}compatibility: {compatibility}\n"));
        let answer = chat(&kindred);
        assert_eq!(answer.status, 401);
        assert!(answer.header("www-authenticate").is_some());
        let body = answer.json();
        let message = match key {
            "error" => &body[key]["message"],
            _ => &body[key],
        };
        assert!(
            message.as_str().unwrap().starts_with("No API key"),
            "{body}"
        );
    }
}

#[test]
fn every_error_of_the_edge_is_documented_and_has_the_documented_shape() {
    let codes = table::codes_in_sources();
    assert!(codes.len() > 25, "{codes:?}");
    for code in &codes {
        table::row_of(code, None);
    }
    for row in table::rows() {
        let code: &'static str = row.code.clone().leak();
        for status in row
            .openai
            .map_or(vec![400, 404, 405, 422, 500, 503], |status| vec![status])
        {
            let said = "It is \"so\".";
            let failure = Failure::new(status, "kind", code, Outcome::ClientError, said);
            let failure = failure.param(row.param.clone());
            let (told, body) = failure.shaped(Compatibility::Trtllm);
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (told, body),
                (row.trtllm.unwrap_or(status), row.body(said)),
                "{row:?}"
            );
            let ours = (status, failure.body());
            assert_eq!(failure.shaped(Compatibility::OpenAi), ours);
        }
    }
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

#[test]
fn an_answer_that_nobody_can_look_into_is_not_relayed() {
    let context = fleet::start(1, 0, |_| {});
    for said in [
        r#"{"choices":[{"disaggregated_params":{"a":1}}],"prompt_token_ids":[1,2"#,
        r#"[{"prompt_token_ids":[1]}]"#,
        r#"{"choices":{"0":{"disaggregated_params":{}}}}"#,
        r#"{"choices":[{"disaggregated_params":{}}],"choices":[]}"#,
    ] {
        let generation = Scripted::start(move |_| scripted::json(said));
        let yaml = fleet::yaml(
            &[context.workers[0].address],
            &[generation.address],
            "max_retries: 0",
        );
        let kindred = Kindred::serve(&yaml);
        let answer = chat(&kindred);
        assert_eq!(answer.status, 502, "{said}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "unusable_answer");
        assert!(
            !answer.text().contains("prompt_token_ids"),
            "{}",
            answer.text()
        );
        kindred.assert_idle();
    }
}

#[test]
fn prompt_ids_as_bytes_reach_a_client_only_where_that_is_wanted() {
    let context = fleet::start(1, 0, |_| {});
    let said = r#"{"id":"y","choices":[{"index":0,"message":{"content":"c"},"finish_reason":"stop","prompt_token_ids_b64":"AQAAAA=="}],"prompt_token_ids_b64":"AQAAAA=="}"#;
    let generation = Scripted::start(move |_| scripted::json(said));
    for wanted in [false, true] {
        let more = format!("telemetry: {{internal_fields: {wanted}}}");
        let yaml = fleet::yaml(&[context.workers[0].address], &[generation.address], &more);
        let kindred = Kindred::serve(&yaml);
        let answer = chat(&kindred);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(
            answer.text().matches("AQAAAA==").count(),
            if wanted { 2 } else { 0 }
        );
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "c");
    }
}
