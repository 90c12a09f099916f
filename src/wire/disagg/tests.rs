use serde_json::{Value, json};

use super::*;
use crate::wire::signature::SigningKey;

const CHAT: &str = r#"{"model":"m","messages":[{"role":"system","content":"s"}, {"role":"user","content":"caf\u00e9"}],"max_tokens":1e1,"stream":true,"stream_options":{"include_usage":true}}"#;

fn view(body: &str) -> BodyView<'_> {
    BodyView::parse(body.as_bytes()).expect("a body")
}

fn context(endpoint: Endpoint) -> ContextParams<'static> {
    ContextParams {
        endpoint,
        disagg_request_id: 1 << 40,
        schedule_style: ScheduleStyle::ContextFirst,
        return_prompt_token_ids_b64: false,
        conversation_params: None,
    }
}

fn generation(endpoint: Endpoint) -> GenerationParams<'static> {
    GenerationParams {
        endpoint,
        disagg_request_id: 1 << 40,
        schedule_style: ScheduleStyle::ContextFirst,
        strip_message_history: false,
        conversation_params: None,
    }
}

/// A context answer with these members in its only choice and in itself.
fn answer(choice: &str, members: &str) -> String {
    format!(
        r#"{{"id":"x","object":"o","created":7,"model":"m","choices":[{{"index":0,{choice}}}],"usage":{{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}}{members}}}"#
    )
}

const UNFINISHED: &str = r#""finish_reason":"length","disaggregated_params":{"request_type":"context_only","first_gen_tokens":[9], "ctx_request_id":5,"disagg_request_id":1099511627777,"schedule_style":null,"encoded_opaque_state":"b3Bh", "later_field":{"a":1.50},"ctx_usage":null}"#;

fn text(body: Vec<u8>) -> String {
    String::from_utf8(body).expect("UTF-8")
}

fn parsed(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("JSON")
}

#[test]
fn a_whole_request_carries_no_hand_over() {
    let body = r#"{"model":"m","prompt":["a b"], "disaggregated_params":{"x":1},"prompt_token_ids_b64":"eA==","n":2}"#;
    let params = Some(r#"{"conversation_id":"c"}"#);
    let whole = |body, params| whole_request(&view(body), Endpoint::Completions, params);
    assert_eq!(
        text(whole(body, params).expect("a body")),
        r#"{"model":"m","prompt":"a b","n":2,"conversation_params":{"conversation_id":"c"}}"#
    );
    let plain = r#"{"model":"m","prompt":"a"}"#;
    assert_eq!(text(whole(plain, None).expect("a body")), plain);
    assert!(whole(r#"{"model":"m","prompt":["a","b"]}"#, None).is_err());
}

#[test]
fn token_ids_are_read_in_both_forms() {
    for (members, expected) in [
        (r#","prompt_token_ids":[1,2,300]"#, Some(vec![1, 2, 300])),
        (
            r#","prompt_token_ids":null,"prompt_token_ids_b64":"AQAAACwBAAA=""#,
            Some(vec![1, 300]),
        ),
        (r#","prompt_token_ids_b64":"AQA=""#, None),
        (r#","prompt_token_ids":"x""#, None),
        ("", None),
    ] {
        let answer = answer(UNFINISHED, members);
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        assert_eq!(answer.token_ids(), expected, "{members}");
    }
}

mod context_leg {
    use super::*;

    #[test]
    fn keeps_the_clients_fields_and_asks_for_the_hand_over() {
        let mut params = context(Endpoint::ChatCompletions);
        params.conversation_params = Some(r#"{"conversation_id":"c"}"#);
        let body = text(context_request(&view(CHAT), &params).expect("a body"));
        assert_eq!(
            body,
            r#"{"model":"m","messages":[{"role":"system","content":"s"}, {"role":"user","content":"caf\u00e9"}],"max_tokens":1e1,"stream":false,"disaggregated_params":{"request_type":"context_only","disagg_request_id":1099511627776,"schedule_style":0},"conversation_params":{"conversation_id":"c"}}"#
        );
    }

    #[test]
    fn replaces_a_clients_hand_over_and_asks_for_base64_where_wanted() {
        let mut params = context(Endpoint::ChatCompletions);
        params.return_prompt_token_ids_b64 = true;
        params.schedule_style = ScheduleStyle::GenerationFirst;
        let body =
            r#"{"disaggregated_params":{"ctx_info_endpoint":"evil"},"prompt_token_ids_b64":"x"}"#;
        let body = parsed(&context_request(&view(body), &params).expect("a body"));
        let expected = json!({
            "disaggregated_params": {
                "request_type": "context_only",
                "disagg_request_id": 1_099_511_627_776_u64,
                "schedule_style": 1,
                "return_prompt_token_ids_b64": true,
            },
            "stream": false,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn completions_take_one_prompt() {
        for (prompt, sent) in [
            (r#""hi""#, r#""hi""#),
            (r#""""#, r#""""#),
            ("[1, 2]", "[1, 2]"),
            ("[5]", "[5]"),
            (r#"["hi"]"#, r#""hi""#),
            ("[[1,2]]", "[1,2]"),
        ] {
            let body = format!(r#"{{"prompt":{prompt}}}"#);
            let body = context_request(&view(&body), &context(Endpoint::Completions));
            let body = text(body.expect("a body"));
            assert!(
                body.starts_with(&format!(r#"{{"prompt":{sent},"#)),
                "{body}"
            );
        }
    }

    #[test]
    fn completions_refuse_what_cannot_be_split() {
        for (prompt, words) in [
            ("[]", "empty list"),
            (r#"["a","b"]"#, "several prompts"),
            ("[[1],[2]]", "several prompts"),
            (r#"[1,"a"]"#, "several prompts"),
            ("[[]]", "string or a list"),
            ("[[[1]]]", "string or a list"),
            ("[null]", "string or a list"),
            ("5", "string or a list"),
            ("{}", "string or a list"),
            ("null", "missing"),
        ] {
            let body = format!(r#"{{"prompt":{prompt}}}"#);
            let error = context_request(&view(&body), &context(Endpoint::Completions));
            let error = error.expect_err(prompt);
            assert!(error.message.contains(words), "{prompt}: {error}");
            assert_eq!(error.param.as_deref(), Some("prompt"));
        }
    }
}

mod hand_over {
    use super::*;

    #[test]
    fn is_kept_byte_for_byte_with_four_members_overlaid() {
        let answer = answer(UNFINISHED, r#","prompt_token_ids":[1, 2,3]"#);
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        assert_eq!(answer.check(), Ok(()));
        assert!(answer.needs_generation());
        let params = generation(Endpoint::ChatCompletions);
        let body = text(generation_request(&view(CHAT), &answer, &params).expect("a body"));
        let head = CHAT.strip_suffix('}').expect("an object");
        let expected = r#","disaggregated_params":{"request_type":"generation_only","first_gen_tokens":[9], "ctx_request_id":5,"disagg_request_id":1099511627777,"schedule_style":0,"encoded_opaque_state":"b3Bh", "later_field":{"a":1.50},"ctx_usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}},"prompt_token_ids":[1, 2,3]}"#;
        assert_eq!(body, format!("{head}{expected}"));
    }

    #[test]
    fn base64_ids_win_over_the_list() {
        let answer = answer(
            UNFINISHED,
            r#","prompt_token_ids":null,"prompt_token_ids_b64":"AQAAAA==""#,
        );
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let body = r#"{"messages":[],"prompt_token_ids":[666]}"#;
        let params = generation(Endpoint::ChatCompletions);
        let body = parsed(&generation_request(&view(body), &answer, &params).expect("a body"));
        assert_eq!(body["prompt_token_ids_b64"], "AQAAAA==");
        assert!(body.get("prompt_token_ids").is_none());
    }

    #[test]
    fn a_clients_own_ids_never_stand_in() {
        let answer = answer(UNFINISHED, "");
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let body = r#"{"messages":[],"prompt_token_ids":[666],"prompt_token_ids_b64":"x"}"#;
        let params = generation(Endpoint::ChatCompletions);
        let body = parsed(&generation_request(&view(body), &answer, &params).expect("a body"));
        assert!(body.get("prompt_token_ids").is_none());
        assert!(body.get("prompt_token_ids_b64").is_none());
    }

    #[test]
    fn completions_continue_from_the_ids() {
        let answer = answer(UNFINISHED, r#","prompt_token_ids":[1,2]"#);
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let mut params = generation(Endpoint::Completions);
        params.conversation_params = Some(r#"{"conversation_id":"c"}"#);
        let body = r#"{"prompt":"hi","stream":true}"#;
        let body = parsed(&generation_request(&view(body), &answer, &params).expect("a body"));
        assert_eq!(body["prompt"], json!([1, 2]));
        assert_eq!(body["stream"], true);
        assert_eq!(body["conversation_params"], json!({"conversation_id": "c"}));
    }

    #[test]
    fn the_history_is_cut_to_its_last_message_where_wanted() {
        let answer = answer(UNFINISHED, "");
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let mut params = generation(Endpoint::ChatCompletions);
        params.strip_message_history = true;
        let body = text(generation_request(&view(CHAT), &answer, &params).expect("a body"));
        assert!(
            body.starts_with(r#"{"model":"m","messages":[{"role":"user","content":"caf\u00e9"}],"#)
        );
    }

    #[test]
    fn the_id_is_the_answers_else_the_one_that_was_sent() {
        let answers = answer(UNFINISHED, "");
        let read = ContextAnswer::parse(answers.as_bytes()).expect("an answer");
        assert_eq!(read.disagg_request_id(1), Ok(1_099_511_627_777.into()));
        let finished = answer(
            r#""finish_reason":"stop","disaggregated_params":{"disagg_request_id":null}"#,
            "",
        );
        let read = ContextAnswer::parse(finished.as_bytes()).expect("an answer");
        assert_eq!(read.disagg_request_id(1), Ok(1.into()));
    }

    #[test]
    fn what_is_signed_is_what_is_sent() {
        let answer = answer(UNFINISHED, "");
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let key = SigningKey::new("secret").expect("a key");
        let params = generation(Endpoint::ChatCompletions);
        let body = generation_request(&view(CHAT), &answer, &params).expect("a body");
        let read = crate::wire::worker_body::WorkerBody::parse(&body).expect("a worker's reading");
        assert!(read.has_disagg_params());
        let signature = key.sign_disagg(&answer.kv_transfer().expect("a transfer"));
        assert!(key.verify_disagg(&read.transfer, &signature));
    }

    #[test]
    fn an_answer_without_it_is_an_error_in_words() {
        for (choice, error) in [
            (r#""finish_reason":"length""#, AnswerError::NoParams(0)),
            (
                r#""finish_reason":"stop","disaggregated_params":null"#,
                AnswerError::NoParams(0),
            ),
            (
                r#""finish_reason":"not_finished","disaggregated_params":{"disagg_request_id":1}"#,
                AnswerError::NoId(0, "ctx_request_id"),
            ),
            (
                r#""finish_reason":"length","disaggregated_params":{"ctx_request_id":1,"disagg_request_id":"x"}"#,
                AnswerError::NoId(0, "disagg_request_id"),
            ),
        ] {
            let answer = answer(choice, "");
            let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
            assert_eq!(answer.check(), Err(error), "{choice}");
        }
        for body in [
            "",
            "[]",
            "{}",
            r#"{"choices":[]}"#,
            r#"{"choices":[1]}"#,
            "{\"choices\":\"\u{0}\"}",
        ] {
            assert!(ContextAnswer::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn several_choices_are_each_checked() {
        let choices = r#"{"choices":[{"finish_reason":"stop","disaggregated_params":{}},{"finish_reason":"length","disaggregated_params":{"ctx_request_id":1,"disagg_request_id":2}}]}"#;
        let answer = ContextAnswer::parse(choices.as_bytes()).expect("an answer");
        assert_eq!(answer.check(), Ok(()));
        assert!(!answer.needs_generation());
        let choices = r#"{"choices":[{"finish_reason":"stop","disaggregated_params":{}},{"finish_reason":"stop"}]}"#;
        let answer = ContextAnswer::parse(choices.as_bytes()).expect("an answer");
        assert_eq!(answer.check(), Err(AnswerError::NoParams(1)));
    }

    #[test]
    fn forty_thousand_ids_are_bytes() {
        let ids: Vec<String> = (0..40_000).map(|id| id.to_string()).collect();
        let ids = format!("[{}]", ids.join(", "));
        let answer = answer(UNFINISHED, &format!(r#","prompt_token_ids":{ids}"#));
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let params = generation(Endpoint::ChatCompletions);
        let body = text(generation_request(&view(CHAT), &answer, &params).expect("a body"));
        assert!(body.ends_with(&format!(r#""prompt_token_ids":{ids}}}"#)));
    }
}

mod towards_the_client {
    use super::*;

    #[test]
    fn internal_fields_are_cut_out_of_answers_and_nothing_else() {
        let body = r#"{ "choices": [ {"index":0, "disaggregated_params":{"a":1}, "text":"\u00e9"} ,
 {"index":1},{"prompt_token_ids_b64":"AA==","disaggregated\u005fparams":2,"prompt_token_ids":[1]} ],
 "prompt_token_ids":[1], "prompt_token_ids_b64":null, "usage": {} }"#;
        assert_eq!(
            text(
                client_answer(body.as_bytes(), false)
                    .expect("JSON")
                    .into_owned()
            ),
            "{ \"choices\": [ {\"index\":0, \"text\":\"\\u00e9\"} ,\n {\"index\":1},{} ], \"usage\": {} }"
        );
    }

    #[test]
    fn answers_without_them_are_not_copied() {
        for body in [
            r#"{"choices":[{"text":"say disaggregated_params"}]}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            "{}",
        ] {
            let told = client_answer(body.as_bytes(), false).expect("JSON");
            assert!(matches!(told, std::borrow::Cow::Borrowed(_)), "{body}");
            assert_eq!(told, body.as_bytes());
        }
    }

    #[test]
    fn answers_keep_everything_where_that_is_wanted() {
        let body = r#"{"choices":[{"disaggregated_params":{}}],"prompt_token_ids":[1]}"#;
        let told = client_answer(body.as_bytes(), true).expect("JSON");
        assert_eq!(told, body.as_bytes());
    }

    #[test]
    fn what_is_no_object_is_no_answer() {
        let cut = r#"{"choices":[{"disaggregated_params":{"a":"#;
        for body in [
            &b"[\"prompt_token_ids\"]"[..],
            b"not JSON",
            b"\xff",
            b"",
            cut.as_bytes(),
        ] {
            for keep in [false, true] {
                assert_eq!(client_answer(body, keep), None, "{body:?}");
            }
        }
    }

    #[test]
    fn choices_that_cannot_be_looked_into_are_no_answer() {
        for choices in [
            r#""choices":[{"disaggregated_params":{}},null]"#,
            r#""choices":{"0":{"disaggregated_params":{}}}"#,
            r#""choices":[[{"disaggregated_params":{}}]]"#,
            r#""choices":[{"disaggregated_params":{}}],"choices":[]"#,
            r#""choices":[{"disaggregated_params":{}}],"choic\u0065s":null"#,
        ] {
            let body = format!("{{{choices}}}");
            assert_eq!(client_answer(body.as_bytes(), false), None, "{body}");
            assert!(client_answer(body.as_bytes(), true).is_some(), "{body}");
        }
    }

    /// The data of each event.
    fn events(answer: &str, endpoint: Endpoint, include_usage: bool) -> Vec<Value> {
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        let events = text(final_events(&answer, endpoint, include_usage));
        let events = events
            .strip_suffix("\n\n")
            .expect("a last event")
            .split("\n\n");
        let mut events: Vec<&str> = events
            .map(|event| event.strip_prefix("data: ").expect("data"))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .into_iter()
            .map(|event| parsed(event.as_bytes()))
            .collect()
    }

    #[test]
    fn a_finished_chat_is_replayed_as_chunks() {
        let choice = "\"finish_reason\":\"tool_calls\",\"stop_reason\":null,\"disaggregated_params\":{},\n\"message\":{\"role\":\"assistant\",\n\"content\":\"h\\ni\",\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}";
        let events = events(
            &answer(
                choice,
                r#","system_fingerprint":"fp","prompt_token_ids":[1]"#,
            ),
            Endpoint::ChatCompletions,
            true,
        );
        for event in &events {
            assert_eq!(event["id"], "x");
            assert_eq!(event["object"], "chat.completion.chunk");
            assert_eq!(event["created"], 7);
            assert_eq!(event["system_fingerprint"], "fp");
            assert!(event.get("prompt_token_ids").is_none());
        }
        let (usage, chunks) = events.split_last().expect("events");
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["total_tokens"], 4);
        let deltas: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["delta"])
            .collect();
        assert_eq!(
            deltas,
            [
                &json!({"role": "assistant", "content": ""}),
                &json!({"content": "h\ni", "reasoning": "r"}),
                &json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
                &json!({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]}),
                &json!({}),
            ]
        );
        let reasons: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["finish_reason"])
            .collect();
        let null = Value::Null;
        assert_eq!(reasons, [&null, &null, &null, &null, &json!("tool_calls")]);
        assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    }

    #[test]
    fn every_choice_is_replayed() {
        let body = r#"{"id":"x","created":7,"model":"m","choices":[{"index":0,"text":"a","finish_reason":"stop"},{"index":1,"text":"b","finish_reason":"stop","stop_reason":"\n"}]}"#;
        let chunks = events(body, Endpoint::Completions, false);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[0]["object"], "text_completion");
        assert_eq!(
            chunks[0]["choices"],
            json!([{"index": 0, "text": "a", "logprobs": null, "finish_reason": "stop"}])
        );
        assert_eq!(chunks[1]["choices"][0]["index"], 1);
        assert_eq!(chunks[1]["choices"][0]["stop_reason"], "\n");
        assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    }

    #[test]
    fn the_final_answer_has_no_internal_fields() {
        let answer = answer(
            r#""finish_reason":"stop","disaggregated_params":{}"#,
            r#","prompt_token_ids":[1]"#,
        );
        let answer = ContextAnswer::parse(answer.as_bytes()).expect("an answer");
        assert!(!answer.needs_generation());
        let body = parsed(&final_answer(&answer, false).expect("choices"));
        assert_eq!(
            body["choices"],
            json!([{"index": 0, "finish_reason": "stop"}])
        );
        assert!(body.get("prompt_token_ids").is_none());
    }
}
