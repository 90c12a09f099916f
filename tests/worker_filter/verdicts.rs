//! Which affinity is believed, and what is answered when it is not.

use kindred::wire::{
    Role,
    headers::{AFFINITY_AUTH, AFFINITY_ID},
};
use serde_json::{Value, json};

use crate::support::raw::{self, Answer};
use crate::{CHAT, Filtered, KEY, SMALLEST_ID, context_body, sign, told_rank, values, whole_body};

const BAD_AFFINITY: &str = "Invalid internal subagent affinity authentication";
const NO_KEY: &str = "Subagent affinity requires internal_request_auth_key";
const ADP: &str = ", enable_attention_dp: true, tensor_parallel_size: 4, \
                   attention_dp_config: {kv_cache_routing_conversation_affinity: true}";

/// Asserts upstream's refusal, to the last field; `message` is any where it is empty.
pub fn assert_refused(answer: &Answer, message: &str, about: &str) {
    assert_eq!(answer.status, 400, "{about}: {}", answer.text());
    let body = answer.json();
    let names: Vec<_> = body.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        ["object", "message", "type", "param", "code"],
        "{about}"
    );
    let told = body["message"].as_str().unwrap();
    assert!(
        !told.is_empty() && (message.is_empty() || told == message),
        "{about}: {told}"
    );
    let expected = json!({"object": "error", "message": told, "type": "BadRequestError", "param": null, "code": 400});
    assert_eq!(body, expected, "{about}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{about}"
    );
}

/// One way in which affinity can be wrong.
struct Wrong {
    about: &'static str,
    headers: Vec<(&'static str, String)>,
    /// Any where it is empty.
    message: &'static str,
    /// How it is counted.
    outcome: &'static str,
}

fn wrong_affinity(role: Role, body: &Value) -> Vec<Wrong> {
    let id = |text: &str| (AFFINITY_ID, text.to_owned());
    let auth = |text: &str| (AFFINITY_AUTH, text.to_owned());
    let good = sign(KEY, role, "parent", body);
    let hex = good.strip_prefix("sha256=").unwrap();
    let altered = |pointer: &str, value: Value| {
        let mut other = body.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        sign(KEY, role, "parent", &other)
    };
    let other_role = match role {
        Role::Context => Role::Generation,
        _ => Role::Context,
    };
    let forged = |(about, text): (&'static str, String)| Wrong {
        about,
        headers: vec![id("parent"), auth(&text)],
        message: BAD_AFFINITY,
        outcome: "forged",
    };
    let repeated = |(about, headers): (&'static str, Vec<(&'static str, String)>)| Wrong {
        about,
        headers,
        message: "",
        outcome: "repeated",
    };
    let params = "/disaggregated_params";
    let forged = [
        ("signed with nothing", String::new()),
        ("signed with zeros", format!("sha256={}", "0".repeat(64))),
        ("signed without the prefix", hex.to_owned()),
        (
            "signed in capitals",
            format!("sha256={}", hex.to_uppercase()),
        ),
        ("signed twice in one value", format!("{good}, {good}")),
        ("cut short", good[..good.len() - 1].to_owned()),
        ("of another key", sign("another-key", role, "parent", body)),
        ("of another role", sign(KEY, other_role, "parent", body)),
        ("of another parent", sign(KEY, role, "other", body)),
        ("of another model", altered("/model", json!("m2"))),
        (
            "of another session",
            altered("/conversation_params/conversation_id", json!("s2")),
        ),
        (
            "of another request",
            altered(
                &format!("{params}/disagg_request_id"),
                json!(SMALLEST_ID + 8),
            ),
        ),
        (
            "of another type",
            altered(
                &format!("{params}/request_type"),
                json!("context_and_generation"),
            ),
        ),
    ]
    .map(forged);
    let repeated = [
        (
            "with the id twice",
            vec![id("parent"), id("parent"), auth(&good)],
        ),
        ("with two ids", vec![id("other"), id("parent"), auth(&good)]),
        (
            "with two signatures",
            vec![id("parent"), auth(&good), auth(&good)],
        ),
    ]
    .map(repeated);
    let unsigned = Wrong {
        about: "unsigned",
        headers: vec![id("parent")],
        message: BAD_AFFINITY,
        outcome: "unsigned",
    };
    [unsigned]
        .into_iter()
        .chain(forged)
        .chain(repeated)
        .collect()
}

fn borrowed<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    let pairs = headers.iter();
    pairs.map(|(name, value)| (*name, value.as_str())).collect()
}

fn only_signed_affinity_passes(more: &str, role: Role, body: &Value) {
    let site = Filtered::open(role, more, |_| {});
    for wrong in wrong_affinity(role, body) {
        let Wrong {
            about,
            headers,
            message,
            outcome,
        } = wrong;
        let before = site.verified("affinity", outcome);
        let answer = site.post(&borrowed(&headers), body);
        assert_refused(&answer, message, about);
        assert_eq!(
            site.verified("affinity", outcome),
            before + 1.0,
            "{about}: {outcome}"
        );
    }
    assert!(site.worker().requests().is_empty());
    assert_eq!(site.verified("affinity", "verified"), 0.0);
    if role == Role::Context {
        let good = sign(KEY, role, "parent", body);
        let answer = site.post(&[(AFFINITY_ID, "parent"), (AFFINITY_AUTH, &good)], body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let seen = site.last();
        assert_eq!(values(&seen, AFFINITY_ID), ["parent"]);
        assert_eq!(values(&seen, AFFINITY_AUTH), [good]);
        assert_eq!(site.verified("affinity", "verified"), 1.0);
    }
    site.kindred.assert_idle();
}

fn generation_body() -> Value {
    let mut body = context_body("s");
    body["disaggregated_params"]["request_type"] = json!("generation_only");
    body
}

#[test]
fn a_context_filter_refuses_affinity_that_is_not_signed_for_this_very_request() {
    only_signed_affinity_passes(", server_role: context", Role::Context, &context_body("s"));
}

#[test]
fn a_filter_without_a_role_takes_it_from_the_request() {
    only_signed_affinity_passes("", Role::Context, &context_body("s"));
    only_signed_affinity_passes("", Role::Generation, &generation_body());
}

#[test]
fn a_generation_filter_refuses_affinity_that_is_not_signed_for_this_very_request() {
    only_signed_affinity_passes(
        ", server_role: generation",
        Role::Generation,
        &generation_body(),
    );
}

#[test]
fn the_configured_role_beats_the_one_that_the_request_implies() {
    let site = Filtered::open(Role::Generation, ", server_role: generation", |_| {});
    let body = context_body("s");
    let auth = sign(KEY, Role::Context, "parent", &body);
    let answer = site.post(&[(AFFINITY_ID, "parent"), (AFFINITY_AUTH, &auth)], &body);
    assert_refused(&answer, BAD_AFFINITY, "signed for the implied role");
}

#[test]
fn blank_affinity_is_none() {
    let site = Filtered::open(Role::Context, ", server_role: context", |_| {});
    for headers in [
        &[(AFFINITY_ID, " ")][..],
        &[(AFFINITY_ID, ""), (AFFINITY_AUTH, "sha256=00")],
        &[(AFFINITY_AUTH, "sha256=00")],
    ] {
        let answer = site.post(headers, &context_body("s"));
        assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
    }
}

#[test]
fn affinity_at_a_filter_without_a_key_is_refused_and_nothing_else_is() {
    let site = Filtered::with_key("", Role::Context, ", server_role: context", |_| {});
    let body = context_body("s");
    assert_eq!(site.post(&[], &body).status, 200);
    let auth = sign(KEY, Role::Context, "parent", &body);
    let answer = site.post(&[(AFFINITY_ID, "parent"), (AFFINITY_AUTH, &auth)], &body);
    assert_refused(&answer, NO_KEY, "no key");
    assert_eq!(site.verified("affinity", "key_missing"), 1.0);
    assert_eq!(site.worker().requests().len(), 1);
}

/// An ordinary request moves nowhere by the header, and the worker does not get to see it.
fn affinity_is_ignored(more: &str) {
    let site = Filtered::open(Role::Aggregated, &format!("{more}{ADP}"), |config| {
        config.engine.ranks = 4
    });
    assert_eq!(site.post(&[], &whole_body("victim")).status, 200);
    let victims = told_rank(&site.last()).unwrap();
    let body = whole_body("thief");
    let signed = sign(KEY, Role::Context, "victim", &body);
    for auth in [
        &[][..],
        &[(AFFINITY_AUTH, "sha256=forged")],
        &[(AFFINITY_AUTH, signed.as_str())],
    ] {
        let mut headers = vec![(AFFINITY_ID, "victim")];
        headers.extend_from_slice(auth);
        let answer = site.post(&headers, &body);
        assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
        let seen = site.last();
        assert_ne!(told_rank(&seen), Some(victims), "{headers:?}");
        assert!(values(&seen, AFFINITY_ID).is_empty(), "{headers:?}");
        assert!(values(&seen, AFFINITY_AUTH).is_empty(), "{headers:?}");
    }
    assert_eq!(site.verified("affinity", "not_applicable"), 3.0);
}

#[test]
fn an_aggregated_filter_ignores_affinity() {
    affinity_is_ignored(", server_role: aggregated");
}

#[test]
fn a_filter_without_a_role_ignores_affinity_on_ordinary_requests() {
    affinity_is_ignored("");
}

/// Bodies without anything that a signature covers, which a worker refuses in its own words.
const FAULTY: [&str; 6] = [
    r#"{"messages": [{"role": "user", "content": "hello"}]}"#,
    r#"{"model": 5, "conversation_params": {"conversation_id": "s"}}"#,
    r#"{"model": "m", "model": "n", "conversation_params": 7}"#,
    r#"{"model": "m", "temperature": NaN}"#,
    "[]",
    "not json",
];

#[test]
fn a_faulty_ordinary_request_is_the_workers_to_judge() {
    for more in ["", ", server_role: aggregated"] {
        let site = Filtered::open(Role::Aggregated, &format!("{more}{ADP}"), |config| {
            config.engine.ranks = 4
        });
        for body in FAULTY {
            let headers = [(AFFINITY_ID, "parent"), ("x-trtllm-msgpack", "1")];
            let through = raw::post(site.address(), CHAT, &headers, body);
            let straight = raw::post(site.worker().address, CHAT, &[], body);
            assert_eq!(through.status, straight.status, "{more} {body}");
            assert_eq!(through.text(), straight.text(), "{more} {body}");
        }
        site.kindred.assert_idle();
    }
}

#[test]
fn a_faulty_request_that_may_hold_something_signed_is_refused() {
    let hidden = [
        r#"{"model": "m", "disaggregated_params": {"request_type": "context_only"}, "disaggregated_params": null}"#,
        r#"{"messages": [], "disaggregated_params": {"request_type": "generation_only"}}"#,
        r#"{"model": "m", "disaggregated_params": {"request_type": "context_only"}, "temperature": NaN}"#,
        r#"{"model": "m", "\u0064isaggregated_params": {"request_type": "context_only"}, "temperature": NaN}"#,
    ];
    for more in ["", ", server_role: aggregated"] {
        let site = Filtered::open(Role::Aggregated, more, |_| {});
        let wide: Vec<u8> = context_body("s")
            .to_string()
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let answer = raw::send(site.address(), &raw::request(CHAT, &[], &wide));
        assert_refused(&answer, "", "UTF-16");
        for body in hidden {
            assert_refused(&raw::post(site.address(), CHAT, &[], body), "", body);
        }
        assert!(site.worker().requests().is_empty(), "{more}");
    }
    let site = Filtered::open(Role::Context, ", server_role: context", |_| {});
    for body in FAULTY {
        assert_refused(&raw::post(site.address(), CHAT, &[], body), "", body);
    }
    assert!(site.worker().requests().is_empty());
}
