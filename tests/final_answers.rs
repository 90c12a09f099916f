//! A context answer that is final costs no generation leg, and the client gets all of it
//! (specification section 4.2 step 6).

mod support;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn started() -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    (fleet, kindred)
}

fn post(kindred: &Kindred, path: &str, body: &Value) -> Answer {
    let answer = raw::post(kindred.edge(), path, &[], &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The events of a stream that ends as it should.
fn events(answer: &Answer) -> Vec<Value> {
    let content_type = answer.header("content-type").unwrap();
    assert!(
        content_type.starts_with("text/event-stream"),
        "{content_type}"
    );
    let text = answer.text();
    let text = text
        .strip_suffix("data: [DONE]\n\n")
        .expect("[DONE] ends the stream");
    let text = text.strip_suffix("\n\n").unwrap();
    let events = text
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap());
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

/// The only choice of each chunk whose choice has this number.
fn choices(events: &[Value], index: usize) -> Vec<&Value> {
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).collect()
}

fn joined(choices: &[&Value], pointer: &str) -> String {
    choices
        .iter()
        .filter_map(|choice| choice.pointer(pointer)?.as_str())
        .collect()
}

fn finish_reasons<'a>(choices: &[&'a Value]) -> Vec<&'a str> {
    choices
        .iter()
        .filter_map(|choice| choice["finish_reason"].as_str())
        .collect()
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "final: say it"}]})
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Asserts what all chunks of a chat share.
fn assert_chunks(events: &[Value], object: &str) {
    for event in events {
        assert_eq!(event["object"], object);
        assert_eq!(event["id"], events[0]["id"]);
        assert!(event["id"].as_str().is_some_and(|id| !id.is_empty()));
        assert_eq!(event["created"], events[0]["created"]);
        assert_eq!(event["model"], "m");
        let text = event.to_string();
        assert!(!text.contains("disaggregated_params") && !text.contains("prompt_token_ids"));
    }
}

#[test]
fn one_json_answer_comes_without_the_hand_over() {
    let (fleet, kindred) = started();
    let completion = json!({"model": "m", "prompt": "final: say it"});
    for (path, body) in [(CHAT, chat()), (COMPLETIONS, completion)] {
        for more in [json!({}), json!({"n": 2})] {
            let answer = post(&kindred, path, &with(body.clone(), more));
            let text = answer.text();
            assert!(!text.contains("disaggregated_params"), "{text}");
            assert!(!text.contains("prompt_token_ids"), "{text}");
            for choice in answer.json()["choices"].as_array().unwrap() {
                assert_eq!(choice["finish_reason"], "stop");
            }
            assert_eq!(
                answer.json()["usage"]["completion_tokens"],
                answer.json()["choices"].as_array().unwrap().len()
            );
        }
    }
    assert_eq!(fleet.requests(Role::Context).len(), 4);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    kindred.assert_idle();
}

#[test]
fn a_streaming_chat_gets_role_content_finish_reason_and_usage() {
    let (fleet, kindred) = started();
    let whole = post(&kindred, CHAT, &chat()).json();
    for asked in [true, false] {
        let options = json!({"stream": true, "stream_options": {"include_usage": asked}});
        let mut events = events(&post(&kindred, CHAT, &with(chat(), options)));
        assert_chunks(&events, "chat.completion.chunk");
        if asked {
            let last = events.pop().unwrap();
            assert_eq!(last["choices"], json!([]));
            assert_eq!(last["usage"]["completion_tokens"], 1);
            assert_eq!(
                last["usage"]["prompt_tokens"],
                whole["usage"]["prompt_tokens"]
            );
        }
        assert!(
            events.iter().all(|event| event["usage"].is_null()),
            "usage once"
        );
        let choices = choices(&events, 0);
        assert_eq!(choices.len(), events.len());
        assert_eq!(choices[0]["delta"]["role"], "assistant");
        let content = joined(&choices, "/delta/content");
        assert_eq!(whole["choices"][0]["message"]["content"], content);
        assert!(!content.is_empty());
        assert_eq!(finish_reasons(&choices), ["stop"]);
        assert!(
            choices.last().unwrap()["finish_reason"].is_string(),
            "it comes last"
        );
    }
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
}

#[test]
fn a_streaming_chat_gets_its_tool_call() {
    let (fleet, kindred) = started();
    let tools = json!({
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
        "tool_choice": "required",
    });
    let chat = with(chat(), tools);
    let whole = post(&kindred, CHAT, &chat).json();
    let told = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(told["function"]["name"], "look");
    let events = events(&post(&kindred, CHAT, &with(chat, json!({"stream": true}))));
    assert_chunks(&events, "chat.completion.chunk");
    let choices = choices(&events, 0);
    let calls: Vec<&Value> = choices
        .iter()
        .filter_map(|choice| choice["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["index"], 0);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["id"], told["id"]);
    assert_eq!(calls[0]["function"], told["function"]);
    assert_eq!(finish_reasons(&choices), ["tool_calls"]);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
}

#[test]
fn a_streaming_completion_gets_its_text() {
    let (fleet, kindred) = started();
    let body = json!({"model": "m", "prompt": "final: say it"});
    let whole = post(&kindred, COMPLETIONS, &body).json();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut events = events(&post(&kindred, COMPLETIONS, &with(body, options)));
    assert_chunks(&events, "text_completion");
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 1);
    let choices = choices(&events, 0);
    assert_eq!(whole["choices"][0]["text"], joined(&choices, "/text"));
    assert_eq!(finish_reasons(&choices), ["stop"]);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
}

#[test]
fn every_choice_is_streamed() {
    let (fleet, kindred) = started();
    let body = with(chat(), json!({"n": 2}));
    let whole = post(&kindred, CHAT, &body).json();
    let events = events(&post(&kindred, CHAT, &with(body, json!({"stream": true}))));
    assert_chunks(&events, "chat.completion.chunk");
    for index in 0..2 {
        let choices = choices(&events, index);
        assert_eq!(choices[0]["delta"]["role"], "assistant");
        let content = joined(&choices, "/delta/content");
        assert_eq!(whole["choices"][index]["message"]["content"], content);
        assert_eq!(finish_reasons(&choices), ["stop"]);
    }
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
}

#[test]
fn one_token_by_the_clients_limit_is_not_final() {
    let (fleet, kindred) = started();
    let body = with(support::chat("go on"), json!({"max_tokens": 1}));
    let answer = post(&kindred, CHAT, &body).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    assert_eq!(fleet.requests(Role::Generation).len(), 1);
}
