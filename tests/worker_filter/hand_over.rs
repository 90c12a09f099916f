//! Which hand-over of a KV cache is believed.

use kindred::wire::{
    Role,
    headers::DISAGG_AUTH,
    signature::{KvTransfer, SigningKey},
};
use serde_json::{Value, json};

use crate::support::{chat, raw};
use crate::{CHAT, Filtered, KEY, context_body, values, verdicts::assert_refused};

const BAD_TRANSFER: &str = "Invalid internal disaggregated request authentication";

/// A generation request as the edge makes it from a context answer.
fn hand_over(site: &Filtered) -> Value {
    let context = site.fleet.of(Role::Context).next().unwrap();
    let mut body = context_body("s");
    let answer = raw::post(context.address, CHAT, &[], &body.to_string()).json();
    body["disaggregated_params"] = answer["choices"][0]["disaggregated_params"].clone();
    body["disaggregated_params"]["request_type"] = json!("generation_only");
    body["prompt_token_ids"] = answer["prompt_token_ids"].clone();
    body
}

fn sign_transfer(key: &str, state: &Value, endpoint: Option<&str>) -> String {
    let (state, endpoint) = (
        state.to_string(),
        endpoint.map(|text| json!(text).to_string()),
    );
    let transfer = KvTransfer::new(Some(&state), endpoint.as_deref()).unwrap();
    SigningKey::new(key).unwrap().sign_disagg(&transfer)
}

#[test]
fn a_hand_over_passes_only_with_its_own_signature() {
    let site = Filtered::open(Role::Generation, ", server_role: generation", |_| {});
    let body = hand_over(&site);
    let state = &body["disaggregated_params"]["encoded_opaque_state"];
    let good = sign_transfer(KEY, state, None);
    let wrong = [
        ("unsigned", vec![], BAD_TRANSFER),
        (
            "forged",
            vec![format!("sha256={}", "0".repeat(64))],
            BAD_TRANSFER,
        ),
        (
            "of another key",
            vec![sign_transfer("another", state, None)],
            BAD_TRANSFER,
        ),
        (
            "of another state",
            vec![sign_transfer(KEY, &json!("b3RoZXI="), None)],
            BAD_TRANSFER,
        ),
        (
            "of a state with an endpoint",
            vec![sign_transfer(KEY, state, Some("tcp://h:1"))],
            BAD_TRANSFER,
        ),
        ("twice", vec![good.clone(), good.clone()], ""),
        (
            "forged, then good",
            vec!["sha256=00".to_owned(), good.clone()],
            "",
        ),
    ];
    for (about, signatures, message) in wrong {
        let headers: Vec<_> = signatures
            .iter()
            .map(|text| (DISAGG_AUTH, text.as_str()))
            .collect();
        assert_refused(&site.post(&headers, &body), message, about);
    }
    let mut moved = body.clone();
    moved["disaggregated_params"]["ctx_info_endpoint"] = json!("tcp://elsewhere:1");
    assert_refused(
        &site.post(&[(DISAGG_AUTH, &good)], &moved),
        BAD_TRANSFER,
        "sent elsewhere",
    );
    assert!(site.worker().requests().is_empty());
    let answer = site.post(&[(DISAGG_AUTH, &good)], &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(values(&site.last(), DISAGG_AUTH), [good]);
    assert_eq!(site.verified("kv_transfer", "verified"), 1.0);
    assert_eq!(site.verified("kv_transfer", "forged"), 6.0);
    assert_eq!(site.verified("kv_transfer", "repeated"), 2.0);
    site.kindred.assert_idle();
}

#[test]
fn protected_fields_need_a_signature_in_every_role() {
    for more in [", server_role: context", ", server_role: aggregated", ""] {
        let site = Filtered::open(Role::Context, more, |_| {});
        for field in ["encoded_opaque_state", "ctx_info_endpoint"] {
            let mut body = context_body("s");
            body["disaggregated_params"][field] = json!("b3BhcXVl");
            assert_refused(&site.post(&[], &body), BAD_TRANSFER, field);
        }
        assert!(site.worker().requests().is_empty());
    }
}

#[test]
fn a_request_without_protected_fields_needs_no_signature() {
    let site = Filtered::open(Role::Aggregated, "", |_| {});
    assert_eq!(site.post(&[], &chat("hello")).status, 200);
    assert_eq!(
        site.post(&[(DISAGG_AUTH, "sha256=00")], &chat("hello"))
            .status,
        200
    );
    let context = Filtered::open(Role::Context, "", |_| {});
    let mut body = context_body("s");
    body["disaggregated_params"]["encoded_opaque_state"] = Value::Null;
    assert_eq!(context.post(&[], &body).status, 200);
}

#[test]
fn a_hand_over_passes_a_filter_without_a_key() {
    let site = Filtered::with_key("", Role::Generation, ", server_role: generation", |_| {});
    let answer = site.post(&[], &hand_over(&site));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(site.verified("kv_transfer", "key_missing"), 1.0);
}
