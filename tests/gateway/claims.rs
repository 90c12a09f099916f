//! Which parents a client may name.

use kindred::wire::Role;
use serde_json::json;

use crate::support::{chat, raw};
use crate::{CHAT, PARENT, Site, affinity_id, conversation_id, key};

#[test]
fn a_declared_client_may_name_any_parent() {
    let site = Site::guarded();
    let seen = site.claims("open", "child-a", "parent-1", "authorised");
    assert_eq!(conversation_id(&seen), "child-a");
    let seen = site.claims("open", "", "parent-1", "authorised");
    assert!(
        conversation_id(&seen).starts_with("subagent:"),
        "{}",
        conversation_id(&seen)
    );
}

#[test]
fn a_client_without_subagents_may_name_no_parent_not_even_its_own() {
    let site = Site::guarded();
    site.turn("nobody", "parent-1", None);
    let seen = site.claims("nobody", "child-a", "parent-1", "not_allowed");
    assert_eq!(conversation_id(&seen), "child-a");
    site.told(&["nobody", "child-a", "parent-1", "not_allowed"]);
    assert_eq!(
        conversation_id(&site.claims("nobody", "", "parent-1", "not_allowed")),
        ""
    );
}

#[test]
fn an_owning_client_may_name_the_parents_that_it_has_used() {
    let site = Site::guarded();
    for client in ["first", "quiet"] {
        site.claims(client, "child-a", "parent-1", "not_owned");
        site.told(&[client, "child-a", "parent-1", "not_owned"]);
        site.turn(client, "parent-1", None);
        let seen = site.claims(client, "child-a", "parent-1", "authorised");
        assert_eq!(conversation_id(&seen), "child-a");
        site.claims(client, "child-b", "parent-1", "authorised");
        // A family has one level.
        site.claims(client, "child-c", "child-a", "nested");
        site.told(&[client, "child-c", "child-a", "nested"]);
    }
}

#[test]
fn equal_session_ids_of_two_owning_clients_are_two_sessions() {
    let site = Site::guarded();
    site.turn("first", "main", None);
    site.claims("second", "child", "main", "not_owned");
    site.told(&["second", "child", "main", "not_owned"]);
    site.claims("first", "child", "main", "authorised");
    // What another client may do with any parent makes nobody its owner.
    site.claims("open", "main-2", "main", "authorised");
    site.claims("second", "child", "main-2", "not_owned");
    site.turn("second", "main", None);
    site.claims("second", "child", "main", "authorised");
}

#[test]
fn a_session_that_names_itself_is_no_subagent() {
    let site = Site::guarded();
    for client in ["open", "first"] {
        site.turn(client, "narcissus", None);
        let seen = site.claims(client, "narcissus", "narcissus", "self_named");
        assert_eq!(conversation_id(&seen), "narcissus");
        site.claims(client, "narcissus", "  narcissus ", "self_named");
        site.told(&[client, "narcissus", "self_named"]);
    }
}

#[test]
fn a_parent_id_in_the_body_is_no_claim() {
    let site = Site::guarded();
    let mut body = chat("hello");
    body["conversation_params"] =
        json!({"conversation_id": "child", "subagent_affinity_id": "parent"});
    let authorization = format!("Bearer {}", key("open"));
    let headers = [("authorization", authorization.as_str())];
    let answer = raw::post(site.kindred.edge(), CHAT, &headers, &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(affinity_id(&site.fleet.requests(Role::Context)[0]), None);
    assert_eq!(
        site.kindred
            .metric("kindred_parent_claims_total", &["outcome=\"none\""]),
        1.0
    );
}

#[test]
fn session_ids_out_of_bounds_are_refused_wherever_they_stand() {
    let site = Site::guarded();
    let authorization = format!("Bearer {}", key("open"));
    let long = "x".repeat(513);
    for name in ["x-session-id", "x-correlation-id", PARENT] {
        let answer = site.post(&[("authorization", &authorization), (name, &long)]);
        assert_eq!(answer.status, 400, "{name}");
        assert!(answer.text().contains("512"), "{}", answer.text());
    }
    for id in [long.as_str(), "a\u{7}b", "a\nb"] {
        let mut body = chat("hello");
        body["conversation_params"] = json!({"conversation_id": id});
        let headers = [("authorization", authorization.as_str())];
        let answer = raw::post(site.kindred.edge(), CHAT, &headers, &body.to_string());
        assert_eq!(answer.status, 400, "{id:?}");
        assert!(
            answer.json()["error"]["param"]
                .as_str()
                .unwrap()
                .contains("conversation_params")
        );
    }
    assert!(site.fleet.requests(Role::Context).is_empty());
}
