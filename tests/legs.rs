//! What each leg of a request asks its worker, byte for byte (specification sections 4.1 to 4.5).

mod support;

use std::collections::HashSet;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{
    Kindred, fleet,
    raw::{self, Answer},
    seen::{body, handover_is_signed, header, header_names, member, members, request_id},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Bodies whose values are written in unusual ways that must survive.
const ODD_CHAT: &str = r#"{ "model" : "m", "temperature":1.0e0,"top_p": 0.10, "seed":12345678901234567,
 "messages":[ {"role":"system","content":"caf\u00e9 \/ ünï"}, {"role" : "user" , "content":"go on"} ],
 "stream":true,"stream_options":{"include_usage":true},"user":"a\tb","metadata":{"b":1,"a":[ ]},"stop":null,
 "max_tokens":4,"min_p":0.0 }"#;
const ODD_COMPLETION: &str = r#"{"prompt":"Once\u0020upon \/ a time","model":"m", "temperature":1.0e0,
 "stream" : true , "stream_options":{"include_usage":true}, "max_tokens":4,"logit_bias":{"5": -1.50} }"#;

fn good(answer: Answer) -> Answer {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn sorted(json: &str) -> Vec<String> {
    let mut names: Vec<_> = members(json).into_iter().map(|(name, _)| name).collect();
    names.sort();
    names
}

/// Asserts that `sent` has the members of `original`, as they were written and in their order, but
/// for those named.
fn assert_unchanged(original: &str, sent: &str, but_for: &[&str]) {
    let kept = |json: &str| -> Vec<(String, String)> {
        let members = members(json).into_iter();
        members
            .filter(|(name, _)| !but_for.contains(&name.as_str()))
            .collect()
    };
    assert_eq!(kept(original), kept(sent));
}

#[test]
fn the_context_leg_asks_for_the_prefill_and_changes_nothing_else() {
    for (path, original) in [(CHAT, ODD_CHAT), (COMPLETIONS, ODD_COMPLETION)] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(""));
        good(raw::post(
            kindred.edge(),
            path,
            &[("x-session-id", " s-1 ")],
            original,
        ));
        let sent = &fleet.requests(Role::Context)[0];
        assert_eq!(sent.path, path);
        let sent = &sent.body;
        let changed = [
            "stream",
            "stream_options",
            "disaggregated_params",
            "conversation_params",
        ];
        assert_unchanged(original, sent, &changed);
        assert_eq!(member(sent, "stream").as_deref(), Some("false"));
        assert!(matches!(
            member(sent, "stream_options").as_deref(),
            None | Some("null")
        ));
        let asked = member(sent, "disaggregated_params").unwrap();
        assert_eq!(
            sorted(&asked),
            ["disagg_request_id", "request_type", "schedule_style"]
        );
        assert_eq!(member(&asked, "request_type").unwrap(), r#""context_only""#);
        assert_eq!(
            member(&asked, "schedule_style").unwrap(),
            "0",
            "an integer enum"
        );
        let conversation: Value =
            serde_json::from_str(&member(sent, "conversation_params").unwrap()).unwrap();
        assert_eq!(conversation, json!({"conversation_id": "s-1"}));
    }
}

#[test]
fn names_that_are_spelt_with_escapes_are_the_same_names() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let original = ODD_CHAT
        .replace(r#""stream""#, r#""str\u0065am""#)
        .replace(r#""stream_options""#, r#""stream\u005foptions""#);
    let answer = good(raw::post(kindred.edge(), CHAT, &[], &original));
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "it is a stream"
    );
    let sent = &fleet.requests(Role::Context)[0].body;
    assert_eq!(member(sent, "stream").as_deref(), Some("false"));
    assert!(matches!(
        member(sent, "stream_options").as_deref(),
        None | Some("null")
    ));
}

#[test]
fn stream_options_without_a_stream_are_refused_before_any_prefill_is_spent() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let asked = json!({"include_usage": true});
    for (stream, options, status) in [
        (json!(false), asked.clone(), 400),
        (Value::Null, asked.clone(), 400),
        (json!(false), Value::Null, 200),
        (json!(true), asked, 200),
    ] {
        let mut chat = support::chat("hello");
        chat["stream"] = stream;
        chat["stream_options"] = options;
        let answer = raw::post(kindred.edge(), CHAT, &[], &chat.to_string());
        assert_eq!(answer.status, status, "{}", answer.text());
        if status == 400 {
            assert_eq!(answer.json()["error"]["param"], "stream_options");
            assert_eq!(fleet.requests(Role::Context).len(), 0);
        }
    }
}

#[test]
fn without_a_session_the_context_leg_names_none() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    good(raw::post(kindred.edge(), CHAT, &[], ODD_CHAT));
    for role in [Role::Context, Role::Generation] {
        let sent = &fleet.requests(role)[0].body;
        assert_eq!(member(sent, "conversation_params"), None, "{sent}");
    }
}

#[test]
fn the_generation_leg_has_the_clients_fields_and_the_prompts_ids() {
    for (path, original) in [(CHAT, ODD_CHAT), (COMPLETIONS, ODD_COMPLETION)] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(""));
        good(raw::post(
            kindred.edge(),
            path,
            &[("x-session-id", "s-1")],
            original,
        ));
        let sent = &fleet.requests(Role::Generation)[0];
        assert_eq!(sent.path, path);
        let prompt = if path == CHAT {
            "prompt_token_ids"
        } else {
            "prompt"
        };
        let changed = [prompt, "disaggregated_params", "conversation_params"];
        assert_unchanged(original, &sent.body, &changed);
        let sent = body(sent);
        let ids = sent[prompt].as_array().unwrap();
        assert!(!ids.is_empty() && ids.iter().all(Value::is_u64));
        assert_eq!(sent.get("prompt_token_ids_b64"), None);
        assert_eq!(
            sent["conversation_params"],
            json!({"conversation_id": "s-1"})
        );
        let handed_over = &sent["disaggregated_params"];
        assert_eq!(handed_over["request_type"], "generation_only");
        assert_eq!(handed_over["schedule_style"], 0);
        assert_eq!(handed_over["ctx_usage"]["prompt_tokens"], ids.len());
    }
}

#[test]
fn with_gen_tokids_ctxbytes_the_ids_of_a_chat_travel_as_base64() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("gen_tokids_ctxbytes: true"));
    good(raw::post(kindred.edge(), CHAT, &[], ODD_CHAT));
    good(raw::post(kindred.edge(), COMPLETIONS, &[], ODD_COMPLETION));
    for sent in fleet.requests(Role::Context) {
        let asked = &body(&sent)["disaggregated_params"];
        assert_eq!(asked["return_prompt_token_ids_b64"], true);
        assert_eq!(asked.as_object().unwrap().len(), 4, "{asked}");
    }
    let [chat, completion] = &fleet.requests(Role::Generation)[..] else {
        panic!("two generation requests");
    };
    let chat = body(chat);
    assert!(
        chat["prompt_token_ids_b64"]
            .as_str()
            .is_some_and(|ids| !ids.is_empty())
    );
    assert!(chat.get("prompt_token_ids").is_none_or(Value::is_null));
    // A worker tells a completion's ids as a list all the same (specification section 4.5).
    assert!(body(completion)["prompt"].is_array());
}

#[test]
fn with_gen_strip_message_history_only_the_last_message_goes_to_generation() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("gen_strip_message_history: true"));
    good(raw::post(kindred.edge(), CHAT, &[], ODD_CHAT));
    let context = &fleet.requests(Role::Context)[0].body;
    assert_eq!(member(context, "messages"), member(ODD_CHAT, "messages"));
    let generation = &fleet.requests(Role::Generation)[0].body;
    let last = r#"[{"role" : "user" , "content":"go on"}]"#;
    assert_eq!(member(generation, "messages").as_deref(), Some(last));
}

#[test]
fn ids_are_shared_by_both_legs_in_range_and_never_given_twice() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let chat = support::chat("hello").to_string();
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for _ in 0..25 {
                    good(raw::post(kindred.edge(), CHAT, &[], &chat));
                }
            });
        }
    });
    let ids = |role| -> HashSet<u64> { fleet.requests(role).iter().map(request_id).collect() };
    let context = ids(Role::Context);
    assert_eq!(context.len(), 200);
    assert_eq!(context, ids(Role::Generation));
    assert!(context.iter().all(|id| (1 << 40..1 << 63).contains(id)));
}

#[test]
fn the_hand_over_is_signed_where_there_is_a_key_and_only_there() {
    for (more, signed) in [
        (format!("internal_request_auth_key: {KEY}"), true),
        (String::new(), false),
    ] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(&more));
        good(raw::post(kindred.edge(), CHAT, &[], ODD_CHAT));
        good(raw::post(kindred.edge(), COMPLETIONS, &[], ODD_COMPLETION));
        for sent in fleet.requests(Role::Context) {
            assert_eq!(header(&sent, "x-trtllm-disagg-auth"), None);
        }
        let generation = fleet.requests(Role::Generation);
        assert_eq!(generation.len(), 2);
        for sent in generation {
            assert_eq!(handover_is_signed(&sent, KEY), signed);
            assert_eq!(header(&sent, "x-trtllm-disagg-auth").is_some(), signed);
        }
    }
}

#[test]
fn no_header_of_the_client_reaches_a_worker() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!("internal_request_auth_key: {KEY}")));
    let client = [
        ("authorization", "Bearer client-secret"),
        ("cookie", "client-cookie"),
        ("x-session-id", "s-1"),
        ("user-agent", "client-agent"),
        ("accept", "client/accept"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-custom", "client-custom"),
        ("x-trtllm-subagent-affinity-id", "client-forged"),
        ("x-trtllm-disagg-auth", "sha256=client-forged"),
        ("x-trtllm-msgpack", "0"),
        ("x-data-parallel-rank", "0"),
        ("x-kindred-rank", "1"),
        ("x-simulate", "status=500"),
        ("te", "trailers"),
    ];
    good(raw::post(kindred.edge(), CHAT, &client, ODD_CHAT));
    let context = &fleet.requests(Role::Context)[0];
    assert_eq!(
        header_names(context),
        ["content-length", "content-type", "host", "x-request-id"]
    );
    let generation = &fleet.requests(Role::Generation)[0];
    let expected = [
        "content-length",
        "content-type",
        "host",
        "x-request-id",
        "x-trtllm-disagg-auth",
    ];
    assert_eq!(header_names(generation), expected);
    for sent in [context, generation] {
        assert_eq!(header(sent, "content-type"), Some("application/json"));
        let host = header(sent, "host").unwrap();
        assert!(
            fleet
                .workers
                .iter()
                .any(|worker| worker.address.to_string() == host)
        );
    }
}
