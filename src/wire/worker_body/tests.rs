use super::*;
use crate::wire::{Role, signature::SigningProfile};

fn body(params: &str) -> String {
    format!(r#"{{"model":"m","prompt":"hi","disaggregated_params":{params}}}"#)
}

#[test]
fn reads_the_last_of_repeated_members() {
    let text = r#"{"model":"a","prompt":"x","model":"b"}"#;
    let read = WorkerBody::parse(text.as_bytes()).expect("a body");
    assert_eq!(read.facts.model.as_str(), Some("b"));
}

#[test]
fn signs_lone_surrogates_as_the_worker_does() {
    let text = r#"{"model":"m\ud800","prompt":"x"}"#;
    let read = WorkerBody::parse(text.as_bytes()).expect("a body");
    let payload = |profile| read.facts.payload(profile, Role::Context, "p");
    let trtllm = payload(SigningProfile::Trtllm).expect("upstream signs everything");
    assert!(trtllm.contains(r#""model":"m\ud800""#), "{trtllm}");
    assert_eq!(payload(SigningProfile::Dynamo), None, "no UTF-8 has them");
}

#[test]
fn checks_the_declared_types() {
    for params in [
        r#"{"request_type":"context_only","ctx_request_id":"x"}"#,
        r#"{"request_type":"context_only","schedule_style":"context_first"}"#,
        r#"{"request_type":"context_only","schedule_style":2}"#,
        r#"{"request_type":"context_only","first_gen_tokens":[1,null]}"#,
        r#"{"request_type":"context_only","return_prompt_token_ids_b64":null}"#,
        r#"{"request_type":"context_only","ctx_info_endpoint":["tcp://a"]}"#,
        r#"{"request_type":null}"#,
        "[]",
        "\"x\"",
    ] {
        assert!(
            WorkerBody::parse(body(params).as_bytes()).is_err(),
            "{params}"
        );
    }
    let good = r#"{"request_type":"context_only","schedule_style":"1","ctx_usage":null,
        "first_gen_tokens":["1",2.0],"return_prompt_token_ids_b64":"yes"}"#;
    let text = body(good);
    let read = WorkerBody::parse(text.as_bytes()).expect("a body");
    assert!(read.has_disagg_params());
}

/// The field that the 1.4 line refuses.
fn undeclared(text: &str) -> Option<String> {
    let read = WorkerBody::parse(text.as_bytes()).expect("a body");
    let error = read.check_declared().err()?;
    Some(error.param.unwrap_or_default())
}

#[test]
fn refuses_undeclared_fields_only_when_asked() {
    let chat = |more: &str| format!(r#"{{"model":"m","messages":[],{more}}}"#);
    let params = |more: &str| {
        chat(&format!(
            r#""disaggregated_params":{{"request_type":"x",{more}}}"#
        ))
    };
    for (text, field) in [
        (chat(r#""zzz":1"#), "zzz"),
        (chat(r#""detokenize":true"#), "detokenize"),
        (
            params(r#""conversation_id":"c""#),
            "disaggregated_params.conversation_id",
        ),
        (
            params(r#""ctx_usage":{"a":1}"#),
            "disaggregated_params.ctx_usage.a",
        ),
        (
            params(r#""ctx_usage":{"prompt_tokens":null}"#),
            "disaggregated_params.ctx_usage.prompt_tokens",
        ),
    ] {
        assert_eq!(undeclared(&text).as_deref(), Some(field), "{text}");
    }
    for text in [
        chat(r#""max_completion_tokens":5"#),
        params(r#""ctx_usage":{"prompt_tokens":"1","completion_tokens":null}"#),
        body(r#"{"request_type":"x"}"#),
    ] {
        assert_eq!(undeclared(&text), None, "{text}");
    }
}

#[test]
fn needs_an_input_of_one_kind() {
    for input in [
        "\"prompt\":5",
        "\"prompt\":null",
        "\"prompt\":[1,\"a\"]",
        "\"messages\":{}",
    ] {
        assert!(
            undeclared(&format!("{{\"model\":\"m\",{input}}}")).is_some(),
            "{input}"
        );
    }
    for input in ["\"a\"", "[]", "[1,2.0]", "[\"a\",\"b\"]", "[[1],[]]"] {
        assert_eq!(
            undeclared(&format!("{{\"model\":\"m\",\"prompt\":{input}}}")),
            None,
            "{input}"
        );
    }
    assert!(undeclared("{\"model\":\"m\"}").is_some());
}

#[test]
fn needs_a_model() {
    for text in [
        r#"{"prompt":"x"}"#,
        r#"{"model":null,"prompt":"x"}"#,
        "[]",
        "",
        "{",
        "{}x",
    ] {
        assert!(WorkerBody::parse(text.as_bytes()).is_err(), "{text}");
    }
}
