//! What a context answer says goes into the generation request unread (specification section 4.5).

mod support;

use kindred::wire::signature::SigningKey;
use serde_json::Value;
use support::{
    Kindred, fleet,
    raw::{self, Answer},
    scripted::{self, Scripted, Seen},
    seen::{member, members},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A hand-over with members of another version, nulls and odd spellings; `ID` is the attempt's.
const HAND_OVER: &str = r#"{"request_type":"context_only", "future_member" : {"b":[1,2.50], "a":null},
 "first_gen_tokens":[ 7 ],"first_gen_log_probs":null,"ctx_request_id":12,"encoded_opaque_state":"b3Bh\/Y+=",
 "draft_tokens":null,"disagg_request_id":ID,"ctx_dp_rank":3,"ctx_info_endpoint":null,"schedule_style":1,
 "ctx_usage":null,"return_prompt_token_ids_b64":false}"#;
const USAGE: &str = r#"{"prompt_tokens":5, "total_tokens":6,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}"#;

/// A context worker that answers with `hand_over`, `USAGE` and further members of the answer.
fn context(hand_over: &str, more: &str) -> Scripted {
    let (hand_over, more) = (hand_over.to_owned(), more.to_owned());
    Scripted::start(move |seen| {
        let id = &seen.json()["disaggregated_params"]["disagg_request_id"];
        let hand_over = hand_over.replace("ID", &id.to_string());
        scripted::json(&format!(
            r#"{{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,
               "message":{{"role":"assistant","content":"a"}},"finish_reason":"length",
               "disaggregated_params":{hand_over}}}],"usage":{USAGE}{more}}}"#
        ))
    })
}

fn generation() -> Scripted {
    Scripted::start(|_| {
        let body = r#"{"id":"y","object":"chat.completion","created":1,"model":"m","choices":[]}"#;
        scripted::json(body)
    })
}

/// Sends `body` through both legs; what each of them was sent.
fn through(context: &Scripted, path: &str, body: &str) -> (Seen, Seen, Answer) {
    let generation = generation();
    let more = format!("internal_request_auth_key: {KEY}");
    let kindred = Kindred::serve(&fleet::yaml(
        &[context.address],
        &[generation.address],
        &more,
    ));
    let answer = raw::post(kindred.edge(), path, &[], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    kindred.assert_idle();
    (context.only(), generation.only(), answer)
}

#[test]
fn only_the_four_members_of_the_edge_change() {
    let context = context(HAND_OVER, r#","prompt_token_ids":[1,2]"#);
    let chat = support::chat("hello").to_string();
    let (asked, sent, _) = through(&context, CHAT, &chat);
    let id = asked.json()["disaggregated_params"]["disagg_request_id"].to_string();
    let sent_params = member(&sent.text(), "disaggregated_params").unwrap();
    let expected: Vec<(String, String)> = members(&HAND_OVER.replace("ID", &id))
        .into_iter()
        .map(|(name, value)| {
            let value = match name.as_str() {
                "request_type" => r#""generation_only""#.to_owned(),
                "schedule_style" => "0".to_owned(),
                "ctx_usage" => USAGE.to_owned(),
                "disagg_request_id" => id.clone(),
                _ => value,
            };
            (name, value)
        })
        .collect();
    assert_eq!(members(&sent_params), expected);
    // Signed over the decoded values, in upstream's canonical form.
    let canonical = r#"{"ctx_info_endpoint":null,"encoded_opaque_state":"b3Bh/Y+="}"#;
    let signature = SigningKey::new(KEY).unwrap().sign_payload(canonical);
    assert_eq!(sent.header("x-trtllm-disagg-auth"), Some(signature));
}

#[test]
fn an_endpoint_alone_is_signed_and_a_hand_over_without_either_is_not() {
    let without = HAND_OVER.replace(r#""b3Bh\/Y+=""#, "null");
    let with = without.replace(
        r#""ctx_info_endpoint":null"#,
        r#""ctx_info_endpoint":"tcp://10.0.0.1:5000""#,
    );
    let canonical = r#"{"ctx_info_endpoint":"tcp://10.0.0.1:5000","encoded_opaque_state":null}"#;
    let signature = SigningKey::new(KEY).unwrap().sign_payload(canonical);
    let chat = support::chat("hello").to_string();
    for (hand_over, expected) in [(with, Some(signature)), (without, None)] {
        let (_, sent, _) = through(&context(&hand_over, ""), CHAT, &chat);
        assert_eq!(sent.header("x-trtllm-disagg-auth"), expected);
    }
}

#[test]
fn an_id_that_the_context_worker_changed_is_the_hand_overs() {
    let own = HAND_OVER.replace("ID", "4611686018427387905");
    let chat = support::chat("hello").to_string();
    let (_, sent, _) = through(&context(&own, ""), CHAT, &chat);
    let params = member(&sent.text(), "disaggregated_params").unwrap();
    let id = member(&params, "disagg_request_id");
    assert_eq!(id.as_deref(), Some("4611686018427387905"));
}

#[test]
fn ids_as_base64_are_carried_verbatim() {
    let more = r#","prompt_token_ids":null,"prompt_token_ids_b64":"AQAAAAIAAAA\u003d""#;
    let chat = support::chat("hello").to_string();
    let (_, sent, _) = through(&context(HAND_OVER, more), CHAT, &chat);
    let sent = sent.text();
    let packed = member(&sent, "prompt_token_ids_b64");
    assert_eq!(packed.as_deref(), Some(r#""AQAAAAIAAAA\u003d""#));
    assert!(matches!(
        member(&sent, "prompt_token_ids").as_deref(),
        None | Some("null")
    ));
}

#[test]
fn forty_thousand_prompt_ids_are_carried_as_they_were_written() {
    let ids: Vec<String> = (0..40_000)
        .map(|id| (id * 7919 % 128_000).to_string())
        .collect();
    let ids = format!("[{}]", ids.join(" ,"));
    let more = format!(r#","prompt_token_ids":{ids}"#);
    let chat = support::chat("hello").to_string();
    let completion = r#"{"model":"m","prompt":"hello","max_tokens":4}"#;
    for (path, body, field) in [
        (CHAT, chat.as_str(), "prompt_token_ids"),
        (COMPLETIONS, completion, "prompt"),
    ] {
        let (_, sent, _) = through(&context(HAND_OVER, &more), path, body);
        assert!(
            member(&sent.text(), field).as_deref() == Some(ids.as_str()),
            "{path}"
        );
    }
}

#[test]
fn a_prompt_of_forty_thousand_tokens_goes_through_both_legs_of_a_worker_that_checks() {
    let fleet = fleet::start(1, 1, |_| {});
    let prompt = "alder ".repeat(40_000);
    for more in ["", "gen_tokids_ctxbytes: true"] {
        let kindred = Kindred::serve(&fleet.yaml(more));
        let chat = support::chat(&prompt).to_string();
        let answer = raw::post(kindred.edge(), CHAT, &[], &chat);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let counted = answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(counted >= 40_000, "{counted}");
        let body = serde_json::json!({"model": "m", "prompt": prompt, "max_tokens": 4});
        let answer = raw::post(kindred.edge(), COMPLETIONS, &[], &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        kindred.assert_idle();
    }
}

#[test]
fn an_answer_that_cannot_be_handed_over_is_a_502_in_words_and_costs_no_generation() {
    for (hand_over, named) in [
        ("null", "disaggregated_params"),
        (r#"{"request_type":"context_only"}"#, "ctx_request_id"),
        (
            r#"{"request_type":"context_only","ctx_request_id":1}"#,
            "disagg_request_id",
        ),
    ] {
        let (context, generation) = (context(hand_over, ""), generation());
        let yaml = fleet::yaml(&[context.address], &[generation.address], "");
        let kindred = Kindred::serve(&yaml);
        let chat = support::chat("hello").to_string();
        let answer = raw::post(kindred.edge(), CHAT, &[], &chat);
        assert_eq!(answer.status, 502, "{}", answer.text());
        let message: Value = answer.json()["error"]["message"].clone();
        assert!(message.as_str().unwrap().contains(named), "{message}");
        assert!(!answer.text().contains("127.0.0.1"));
        assert_eq!(generation.seen().len(), 0);
        kindred.assert_idle();
    }
}
