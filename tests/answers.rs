//! What a client gets of the workers' answers: all that is meant for it, and nothing of the fleet's.

mod support;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw::{self, Answer},
    scripted::{self, Scripted},
    seen::body,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn started(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |config| config.engine.block_size = 4);
    let kindred = Kindred::serve(&fleet.yaml(more));
    (fleet, kindred)
}

fn post(kindred: &Kindred, path: &str, body: &Value) -> Answer {
    raw::post(
        kindred.edge(),
        path,
        &[("x-session-id", "s-1")],
        &body.to_string(),
    )
}

fn chat(more: Value) -> Value {
    let mut chat = support::chat("Tell me the whole long story once more from its beginning");
    for (name, value) in more.as_object().unwrap() {
        chat[name] = value.clone();
    }
    chat
}

fn completion(more: Value) -> Value {
    let mut body = chat(more);
    let fields = body.as_object_mut().unwrap();
    fields.remove("messages");
    fields.insert("prompt".to_owned(), json!("Tell me the whole long story"));
    body
}

/// The JSON events of a stream that ends with one `[DONE]`.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let text = text.strip_suffix("data: [DONE]\n\n").expect("[DONE]");
    let events = text.split_terminator("\n\n");
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn the_bytes_of_a_stream_are_relayed_unchanged() {
    let parts: [&[u8]; 7] = [
        b": a comment\r\n\r\ndata: {\"id\":\"x\", \"a\" : 1.0e0}\r\n\r\n",
        b"data: {\"text\":\"caf\xc3",
        b"\xa9 \xff\xfe",
        b"\"}\n\nevent: odd\nid: 7\nretry: 1\ndata: two\ndata: lines\n\n",
        b"data: {\"disaggregated_params\":{\"a\":null},\"prompt_token_ids\":[1]}\n\n",
        b"data: [DO",
        b"NE]\n\n",
    ];
    let context = fleet::start(1, 0, |_| {});
    let generation = Scripted::start(move |_| scripted::events(&parts));
    let yaml = fleet::yaml(&[context.workers[0].address], &[generation.address], "");
    let kindred = Kindred::serve(&yaml);
    for body in [
        chat(json!({"stream": true})),
        completion(json!({"stream": true})),
    ] {
        let path = if body["prompt"].is_null() {
            CHAT
        } else {
            COMPLETIONS
        };
        let answer = post(&kindred, path, &body);
        assert_eq!(answer.status, 200);
        let content_type = answer.header("content-type");
        assert_eq!(content_type, Some("text/event-stream; charset=utf-8"));
        assert_eq!(answer.body, parts.concat());
    }
    kindred.assert_idle();
}

#[test]
fn a_stream_and_a_json_answer_say_the_same() {
    let (_fleet, kindred) = started("");
    for (path, request, field) in [
        (CHAT, chat as fn(Value) -> Value, "/choices/0/delta/content"),
        (COMPLETIONS, completion, "/choices/0/text"),
    ] {
        let whole = post(&kindred, path, &request(json!({}))).json();
        let streamed = events(&post(&kindred, path, &request(json!({"stream": true}))));
        let text: String = streamed
            .iter()
            .filter_map(|event| event.pointer(field)?.as_str())
            .collect();
        let choice = &whole["choices"][0];
        let said = if path == CHAT {
            &choice["message"]["content"]
        } else {
            &choice["text"]
        };
        assert_eq!(said, &text);
        assert_eq!(
            text.split(' ').count(),
            4,
            "no token is lost or doubled: {text}"
        );
    }
}

#[test]
fn case_h17_usage_comes_once_with_the_prompt_counted_by_the_context_leg() {
    let (fleet, kindred) = started("");
    for (path, request) in [
        (CHAT, chat as fn(Value) -> Value),
        (COMPLETIONS, completion),
    ] {
        // The second answer finds the prompt in the context worker's cache.
        post(&kindred, path, &request(json!({})));
        let usage = post(&kindred, path, &request(json!({}))).json()["usage"].clone();
        let generation = fleet.requests(Role::Generation).pop().unwrap();
        let told = &body(&generation)["disaggregated_params"]["ctx_usage"];
        assert_eq!(usage["prompt_tokens"], told["prompt_tokens"]);
        assert_eq!(
            usage["prompt_tokens_details"],
            told["prompt_tokens_details"]
        );
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64().unwrap() > 0);
        assert_eq!(usage["completion_tokens"], 4);
        let total = usage["prompt_tokens"].as_u64().unwrap() + 4;
        assert_eq!(usage["total_tokens"], total);

        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let streamed = events(&post(&kindred, path, &request(options)));
        let mut told = streamed.iter().filter(|event| !event["usage"].is_null());
        assert_eq!(told.next().unwrap()["usage"], usage);
        assert_eq!(told.next(), None);
        let streamed = events(&post(&kindred, path, &request(json!({"stream": true}))));
        assert!(streamed.iter().all(|event| event["usage"].is_null()));
    }
}

#[test]
fn case_h18_more_than_one_choice_is_served() {
    let (fleet, kindred) = started("");
    for (path, request) in [
        (CHAT, chat as fn(Value) -> Value),
        (COMPLETIONS, completion),
    ] {
        let answer = post(&kindred, path, &request(json!({"n": 3})));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 3);
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert_eq!(choice["finish_reason"], "length");
        }
        assert_eq!(answer["usage"]["completion_tokens"], 12);
        let streamed = events(&post(
            &kindred,
            path,
            &request(json!({"n": 3, "stream": true})),
        ));
        for index in 0..3 {
            let choices = streamed.iter().map(|event| &event["choices"][0]);
            let own = choices.filter(|choice| choice["index"] == index);
            assert_eq!(
                own.filter(|choice| choice["finish_reason"] == "length")
                    .count(),
                1
            );
        }
    }
    assert_eq!(fleet.requests(Role::Generation).len(), 4);
}

#[test]
fn json_answers_are_without_the_fields_of_the_fleet() {
    let (fleet, kindred) = started("");
    for (path, body) in [
        (CHAT, chat(json!({}))),
        (CHAT, chat(json!({"n": 2}))),
        (COMPLETIONS, completion(json!({}))),
    ] {
        let answer = post(&kindred, path, &body);
        let text = answer.text();
        for internal in [
            "disaggregated_params",
            "prompt_token_ids",
            "encoded_opaque_state",
        ] {
            assert!(!text.contains(internal), "{text}");
        }
        assert!(answer.json()["choices"][0].is_object());
        for worker in &fleet.workers {
            assert!(!text.contains(&worker.address.to_string()));
        }
    }
}

#[test]
fn words_that_look_like_internal_fields_stay() {
    let context = fleet::start(1, 0, |_| {});
    let said = r#"{"id":"y","choices":[{"index":0, "message":{"content":"\"disaggregated_params\": {}","prompt_token_ids":1},
        "disaggregated_params":{"a":[1]},"finish_reason":"stop"} ],"prompt_token_ids":[1,2],"x": 1.0e0}"#;
    let generation = Scripted::start(move |_| scripted::json(said));
    let yaml = fleet::yaml(&[context.workers[0].address], &[generation.address], "");
    let kindred = Kindred::serve(&yaml);
    let answer = post(&kindred, CHAT, &chat(json!({})));
    let mut expected: Value = serde_json::from_str(said).unwrap();
    let fields = expected.as_object_mut().unwrap();
    fields.remove("prompt_token_ids");
    fields["choices"][0]
        .as_object_mut()
        .unwrap()
        .remove("disaggregated_params");
    assert_eq!(answer.json(), expected);
    assert!(
        answer.text().contains("1.0e0"),
        "numbers stay as they were written"
    );
}

#[test]
fn instance_names_are_in_the_debug_headers_and_nowhere_else() {
    let kindred_headers = |answer: &Answer| -> Vec<(String, String)> {
        let headers = answer.headers.iter();
        let named = headers.filter(|(name, _)| name.starts_with("x-kindred-"));
        named.cloned().collect()
    };
    let final_chat = json!({"model": "m", "messages": [{"role": "user", "content": "final: x"}]});
    for on in [false, true] {
        let (_fleet, kindred) = started(&format!("telemetry: {{debug_headers: {on}}}"));
        for body in [
            chat(json!({})),
            chat(json!({"stream": true})),
            final_chat.clone(),
        ] {
            let answer = post(&kindred, CHAT, &body);
            let mut expected = Vec::new();
            if on {
                expected.push(("x-kindred-context".to_owned(), "context-0".to_owned()));
                if body != final_chat {
                    expected.push(("x-kindred-generation".to_owned(), "generation-0".to_owned()));
                }
            }
            let mut headers = kindred_headers(&answer);
            headers.sort();
            assert_eq!(headers, expected);
            assert_eq!(
                answer.header("server"),
                None,
                "a worker's own headers stay inside"
            );
            assert!(!answer.text().contains("context-0"), "{}", answer.text());
            assert!(!answer.text().contains("generation-0"), "{}", answer.text());
        }
    }
}

#[test]
fn debug_headers_are_off_by_default_on_refusals_too() {
    let (fleet, kindred) = started("");
    fleet.workers[1].fault(1, "status=400");
    for expected in [400, 200] {
        let answer = post(&kindred, CHAT, &chat(json!({})));
        assert_eq!(answer.status, expected, "{}", answer.text());
        let names: Vec<_> = answer.headers.iter().map(|(name, _)| name).collect();
        assert!(
            !names.iter().any(|name| name.starts_with("x-kindred-")),
            "{names:?}"
        );
    }
}

#[test]
fn the_client_gets_no_status_before_generation_has_one() {
    let (fleet, kindred) = started("");
    for (fault, status) in [
        ("status=400", 400),
        ("status=422", 422),
        ("invalid-json,status=503", 503),
    ] {
        for stream in [true, false] {
            // A status that may go away is asked for once more.
            let attempts = if status == 503 { 2 } else { 1 };
            fleet.workers[1].fault(attempts, fault);
            let answer = post(&kindred, CHAT, &chat(json!({"stream": stream})));
            assert_eq!(answer.status, status, "{}", answer.text());
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert!(
                answer.json()["error"]["message"].is_string(),
                "{}",
                answer.text()
            );
        }
    }
    // A generation worker that never answers: nothing at all has come when the edge gives up.
    let silent = Scripted::start(|_| Vec::new());
    let yaml = fleet::yaml(&[fleet.workers[0].address], &[silent.address], "");
    let kindred = Kindred::serve(&yaml);
    let answer = post(&kindred, CHAT, &chat(json!({"stream": true})));
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.json()["error"]["message"].is_string());
    kindred.assert_idle();
}
