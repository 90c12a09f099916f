//! The store that the edge hosts, as workers see it (specification section 7.2).

use serde_json::{Value, json};

use super::{PREFIX, hosting, set, withdraw};
use crate::support::{Kindred, eventually, fleet, raw};

fn get(kindred: &Kindred, target: &str) -> (u16, Value) {
    let answer = raw::get(kindred.edge(), target);
    (answer.status, answer.json())
}

fn result(value: Value) -> Value {
    json!({ "result": value })
}

#[test]
fn every_answer_has_upstreams_shape_and_status() {
    let kindred = Kindred::serve(&hosting("", ""));
    let key = |key: &str| format!("{PREFIX}{key}");
    let missing = get(&kindred, &format!("/get?key={}", key("a")));
    assert_eq!(missing, (400, result(Value::Null)));
    let none = get(&kindred, &format!("/get_prefix?key_prefix={PREFIX}"));
    assert_eq!(none, (400, result(json!({}))));
    for (ttl, taken) in [(60.0, true), (60.0, false)] {
        let answer = set(&kindred, "a", "value & more", ttl);
        let status = if taken { 200 } else { 400 };
        assert_eq!(
            (answer.status, answer.json()),
            (status, result(taken.into()))
        );
    }
    let there = get(&kindred, &format!("/get?key={}", key("a")));
    assert_eq!(there, (200, result("value & more".into())));
    let all = get(
        &kindred,
        &format!("/get_prefix?key_prefix={PREFIX}&keys_only=0"),
    );
    let name = key("a");
    assert_eq!(all, (200, result(json!({ name.clone(): "value & more" }))));
    let keys = get(
        &kindred,
        &format!("/get_prefix?key_prefix={PREFIX}&keys_only=1"),
    );
    assert_eq!(keys, (200, result(json!({ name: "" }))));
    let kept = get(&kindred, &format!("/expire?key={}&ttl=60", key("a")));
    assert_eq!(kept, (200, result(true.into())));
    let lost = get(&kindred, &format!("/expire?key={}&ttl=60", key("b")));
    assert_eq!(lost, (400, result(false.into())));
    assert_eq!(
        (withdraw(&kindred, "a"), withdraw(&kindred, "a")),
        (200, 400)
    );
    // Escapes in a query are those of a form.
    set(&kindred, "x y+z", "1", 60.0);
    let escaped = format!("/get?key={}", key("x+y%2Bz").replace('/', "%2F"));
    assert_eq!(get(&kindred, &escaped), (200, result("1".into())));
}

#[test]
fn a_key_that_is_overwritten_has_its_new_value() {
    let kindred = Kindred::serve(&hosting("", ""));
    let body =
        |value: &str| json!({"key": "k", "value": value, "overwrite_if_exists": true}).to_string();
    for value in ["1", "2"] {
        assert_eq!(
            raw::post(kindred.edge(), "/set", &[], &body(value)).status,
            200
        );
        assert_eq!(get(&kindred, "/get?key=k"), (200, result(value.into())));
    }
}

#[test]
fn a_key_without_heartbeats_expires() {
    let kindred = Kindred::serve(&hosting("", ""));
    set(&kindred, "short", "1", 0.2);
    set(&kindred, "long", "1", -1.0);
    eventually("the key is gone", || {
        let (status, _) = get(&kindred, &format!("/get?key={PREFIX}short"));
        (status == 400).then_some(())
    });
    assert_eq!(get(&kindred, &format!("/get?key={PREFIX}long")).0, 200);
    let again = set(&kindred, "short", "2", 60.0);
    assert_eq!(again.status, 200, "a worker may announce itself again");
}

#[test]
fn what_is_no_request_for_the_store_is_told_so() {
    let kindred = Kindred::serve(&hosting("", ""));
    for body in [
        "",
        "[]",
        "{\"key\": 1, \"value\": \"x\"}",
        "{\"key\": \"k\"}",
    ] {
        let answer = raw::post(kindred.edge(), "/set", &[], body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["code"], "invalid_body");
    }
    let large = json!({"key": "k", "value": "x".repeat(70_000)}).to_string();
    assert_eq!(raw::post(kindred.edge(), "/set", &[], &large).status, 413);
    for target in [
        "/get",
        "/expire?key=k",
        "/expire?key=k&ttl=soon",
        "/get_prefix",
    ] {
        let (status, answer) = get(&kindred, target);
        assert_eq!(status, 400, "{target}");
        assert_eq!(answer["error"]["code"], "invalid_request", "{target}");
    }
    let answer = raw::get(kindred.edge(), "/set");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    let answer = raw::post(kindred.edge(), "/expire?key=k&ttl=1", &[], "");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET")));
}

#[test]
fn there_is_no_store_where_none_is_hosted() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    assert_eq!(set(&kindred, "a", "1", 1.0).status, 404);
    for target in [
        "/get?key=a",
        "/get_prefix?key_prefix=a",
        "/expire?key=a&ttl=1",
        "/delete?key=a",
    ] {
        assert_eq!(raw::get(kindred.edge(), target).status, 404, "{target}");
    }
}

#[test]
fn a_token_keeps_strangers_out() {
    let kindred = Kindred::serve(&hosting("auth_token: a-token-of-24-characters", ""));
    let body = json!({"key": "k", "value": "v"}).to_string();
    let ask = |authorization: &str| {
        let headers = [("authorization", authorization)];
        let headers = if authorization.is_empty() {
            &[][..]
        } else {
            &headers
        };
        raw::post(kindred.edge(), "/set", headers, &body).status
    };
    for stranger in [
        "",
        "Bearer ",
        "Bearer a-token-of-24-character",
        "Bearer a-token-of-24-charactersx",
        "Basic a-token-of-24-characters",
    ] {
        assert_eq!(ask(stranger), 403, "{stranger:?}");
    }
    assert_eq!(raw::get(kindred.edge(), "/get?key=k").status, 403);
    let page = [
        ("authorization", "Bearer a-token-of-24-characters"),
        ("origin", "https://page.example"),
    ];
    assert_eq!(raw::post(kindred.edge(), "/set", &page, &body).status, 403);
    assert_eq!(ask("Bearer a-token-of-24-characters"), 200);
}
