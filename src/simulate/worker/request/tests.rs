use serde_json::json;

use super::*;
use crate::simulate::worker::prompt::pack;

fn chat(changes: Value) -> Result<InferenceRequest, String> {
    let base = json!({"model": "m", "messages": [{"role": "user", "content": "hello there"}]});
    read(Endpoint::ChatCompletions, base, changes)
}

fn completion(changes: Value) -> Result<InferenceRequest, String> {
    let base = json!({"model": "m", "prompt": "hello there"});
    read(Endpoint::Completions, base, changes)
}

fn read(endpoint: Endpoint, mut base: Value, changes: Value) -> Result<InferenceRequest, String> {
    let body = base.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        body.insert(name.clone(), value.clone());
    }
    InferenceRequest::read(endpoint, body)
}

#[test]
fn the_standard_fields_are_accepted() {
    let request = chat(json!({
        "temperature": 0.2, "top_p": 1, "seed": 4, "stop": ["x"], "user": "u", "n": 2,
        "max_completion_tokens": 9, "stream": true, "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "look"}}], "tool_choice": "required",
        "response_format": {"type": "text"}, "logprobs": false, "reasoning_effort": "low",
        "conversation_params": {"conversation_id": "c"}, "cache_salt": null,
    }))
    .expect("valid");
    assert_eq!((request.choices, request.max_tokens), (2, Some(9)));
    assert!(request.stream && request.include_usage);
    assert_eq!(request.tool.as_deref(), Some("look"));
}

#[test]
fn what_upstream_refuses_is_refused() {
    for wrong in [
        json!({"subagent_affinity_id": "p"}),
        json!({"conversation_id": "c"}),
        json!({"prompt": "p"}),
        json!({"model": null}),
        json!({"model": 7}),
        json!({"messages": "hello"}),
        json!({"messages": [{"content": "hello"}]}),
        json!({"stream": "yes"}),
        json!({"n": 0}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": 5, "max_completion_tokens": 5}),
        json!({"max_tokens": null, "max_completion_tokens": 5}),
        json!({"stream_options": {"include_usage": true}}),
        json!({"stream": false, "stream_options": {}}),
        json!({"stream": true, "stream_options": {"usage": true}}),
        json!({"conversation_params": {"conversation_id": " "}}),
        json!({"conversation_params": {"conversation_id": "c", "subagent_affinity_id": "p"}}),
        json!({"disaggregated_params": {"request_type": "context_only", "conversation_id": "c"}}),
        json!({"prompt_token_ids": [1], "prompt_token_ids_b64": "AQAAAA=="}),
        json!({"prompt_token_ids_b64": "AQAA"}),
        json!({"prompt_token_ids": [-1]}),
    ] {
        assert!(chat(wrong.clone()).is_err(), "{wrong}");
    }
    for wrong in [
        json!({"prompt": null}),
        json!({"prompt": []}),
        json!({"prompt": ""}),
        json!({"prompt": ["a", "b"]}),
        json!({"messages": []}),
        json!({"prompt_token_ids": [1]}),
        json!({"logprobs": true}),
    ] {
        assert!(completion(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn a_complaint_names_the_field_in_upstreams_form() {
    assert_eq!(
        chat(json!({"colour": "red"})).expect_err("an unknown field"),
        "[{'type': 'extra_forbidden', 'loc': ('body', 'colour'), \
         'msg': 'Extra inputs are not permitted'}]"
    );
}

#[test]
fn null_options_are_as_if_absent() {
    let request = chat(json!({
        "stream": false, "stream_options": null, "disaggregated_params": null, "tools": null,
        "max_tokens": null, "n": null,
    }))
    .expect("valid");
    assert_eq!(Ok(request), chat(json!({})));
}

#[test]
fn every_form_of_a_prompt_is_read() {
    let text = completion(json!({})).expect("valid");
    assert_eq!(text.prompt.len(), 2);
    let wrapped = completion(json!({"prompt": ["hello there"]})).expect("valid");
    assert_eq!(wrapped.prompt, text.prompt);
    let ids = completion(json!({"prompt": [5, 6]})).expect("valid");
    assert_eq!((ids.prompt, ids.prompt_was_ids), (vec![5, 6], true));
    let one = completion(json!({"prompt": [5]})).expect("valid");
    assert_eq!(one.prompt, [5]);
    let listed = chat(json!({"prompt_token_ids": [1, 70_000]})).expect("valid");
    let packed = chat(json!({"prompt_token_ids_b64": pack(&[1, 70_000])})).expect("valid");
    assert_eq!(listed, packed);
}

#[test]
fn a_conversation_that_goes_on_begins_with_the_tokens_it_had() {
    let system = json!({"role": "system", "content": "be kind"});
    let first = json!({"role": "user", "content": [{"type": "text", "text": "first question"}]});
    let reply = json!({"role": "assistant", "content": "an answer"});
    let next = json!({"role": "user", "content": "next question"});
    let before = chat(json!({"messages": [system, first]}))
        .expect("valid")
        .prompt;
    let after = chat(json!({"messages": [system, first, reply, next]}))
        .expect("valid")
        .prompt;
    assert_eq!(before[..], after[..before.len()]);
}

#[test]
fn the_last_message_can_ask_for_a_final_answer() {
    let messages = json!([{"role": "user", "content": "final: yes or no"}]);
    assert!(
        chat(json!({"messages": messages}))
            .expect("valid")
            .finish_at_once
    );
    assert!(
        completion(json!({"prompt": "final:"}))
            .expect("valid")
            .finish_at_once
    );
    assert!(
        !completion(json!({"prompt": [1, 2]}))
            .expect("valid")
            .finish_at_once
    );
}
