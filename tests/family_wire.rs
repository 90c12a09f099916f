//! What the workers of a family see: the child's own id in the body, its parent only where signed.

mod support;

use std::collections::HashSet;

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{
    fleet,
    guarded::Guarded,
    raw,
    seen::{body, conversation_id, handover_is_signed, header, signed_parent},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
const PARENT: &str = "X-Dynamo-Parent-Session-ID";

/// An edge, four worker filters in a process of their own, and the workers behind them.
struct Town(Guarded);

impl Town {
    fn start(scope: &str) -> Self {
        let fleet = fleet::start(2, 2, |config| {
            config.engine.ranks = 4;
            config.engine.block_size = 8;
        });
        let more = format!(
            "conversation_affinity_header_for_subagents: {PARENT}\n\
             subagent_affinity_scope: {scope}\n\
             telemetry: {{debug_headers: true}}"
        );
        Self(Guarded::open(fleet, KEY, 4, &more))
    }

    /// One chat whose answer must be good; the rank that the client is told.
    fn chat(&self, headers: &[(&str, &str)], more: Value) -> String {
        let mut chat = support::chat("What is to be done?");
        for (name, value) in more.as_object().unwrap() {
            chat[name] = value.clone();
        }
        let answer = raw::post(
            self.0.edge.edge(),
            "/v1/chat/completions",
            headers,
            &chat.to_string(),
        );
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("x-kindred-rank").unwrap().to_owned()
    }

    /// The table of the feature document, in order.
    fn table(&self) -> Vec<String> {
        [
            ("parent-1", None),
            ("child-a", Some("parent-1")),
            ("child-b", Some("parent-1")),
        ]
        .into_iter()
        .map(|(session, parent)| {
            let mut headers = vec![("x-session-id", session)];
            headers.extend(parent.map(|parent| (PARENT, parent)));
            let rank = self.chat(&headers, json!({}));
            self.0.edge.assert_idle();
            rank
        })
        .collect()
    }

    /// Conversation id and signed parent of everything a role's workers were asked.
    fn told(&self, role: Role) -> Vec<(String, Option<String>)> {
        let mut told: Vec<_> = self
            .0
            .fleet
            .requests(role)
            .iter()
            .map(|request| {
                let id = conversation_id(request).unwrap();
                (id, signed_parent(request, KEY, role))
            })
            .collect();
        told.sort();
        told
    }
}

fn told(id: &str, parent: Option<&str>) -> (String, Option<String>) {
    (id.to_owned(), parent.map(str::to_owned))
}

#[test]
fn context_workers_see_each_childs_own_id_and_the_parent_only_signed() {
    let town = Town::start("context");
    let ranks = town.table();
    let expected = [
        told("child-a", Some("parent-1")),
        told("child-b", Some("parent-1")),
        told("parent-1", None),
    ];
    assert_eq!(town.told(Role::Context), expected);
    let busy = town.0.fleet.of(Role::Context);
    let busy: Vec<_> = busy
        .filter(|worker| !worker.requests().is_empty())
        .collect();
    assert_eq!(busy.len(), 1, "one context instance");
    for (request, told) in busy[0].requests().iter().zip(&ranks) {
        let rank = request.rank.unwrap().to_string();
        assert_eq!(header(request, "x-data-parallel-rank"), Some(&*rank));
        assert_eq!(&rank, told);
        let text = body(request).to_string();
        let parent_in_body = conversation_id(request).as_deref() == Some("parent-1");
        assert_eq!(text.contains("parent-1"), parent_in_body, "{text}");
    }
    assert!(ranks.iter().all(|rank| rank == &ranks[0]), "{ranks:?}");
}

#[test]
fn in_scope_context_generation_requests_carry_no_affinity() {
    let town = Town::start("context");
    town.table();
    let expected = [
        told("child-a", None),
        told("child-b", None),
        told("parent-1", None),
    ];
    assert_eq!(town.told(Role::Generation), expected);
    for request in town.0.fleet.requests(Role::Generation) {
        assert!(handover_is_signed(&request, KEY));
    }
}

#[test]
fn in_scope_both_generation_requests_carry_the_parent_signed_for_generation() {
    let town = Town::start("both");
    town.table();
    let expected = [
        told("child-a", Some("parent-1")),
        told("child-b", Some("parent-1")),
        told("parent-1", None),
    ];
    assert_eq!(town.told(Role::Context), expected);
    assert_eq!(town.told(Role::Generation), expected);
    for role in [Role::Context, Role::Generation] {
        let places: HashSet<_> = town
            .0
            .fleet
            .of(role)
            .flat_map(|worker| {
                let requests = worker.requests().into_iter();
                requests.map(move |request| (&worker.name, request.rank.unwrap()))
            })
            .collect();
        assert_eq!(places.len(), 1, "{places:?}");
    }
    let verified = r#"check="affinity",outcome="verified""#;
    let count = town
        .0
        .filters
        .metric("kindred_verifications_total", &[verified]);
    assert_eq!(count, 4.0, "two children, two legs");
}

#[test]
fn a_child_without_an_id_of_its_own_gets_one_for_both_legs() {
    let town = Town::start("both");
    for _ in 0..2 {
        town.chat(&[(PARENT, "parent-1")], json!({}));
    }
    let context = town.told(Role::Context);
    assert_eq!(context, town.told(Role::Generation));
    let ids: HashSet<_> = context.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 2, "each request is a session of its own");
    for (id, parent) in &context {
        let rest = id.strip_prefix("subagent:").unwrap();
        assert!(!rest.is_empty() && !rest.contains("parent-1"), "{id}");
        assert_eq!(parent.as_deref(), Some("parent-1"));
    }
}

#[test]
fn an_id_in_the_body_wins_and_a_parent_in_the_body_is_never_believed() {
    let town = Town::start("context");
    let headers = [("x-session-id", "from-a-header"), (PARENT, " parent-1 ")];
    let params = |id: &str| json!({"conversation_params": {"conversation_id": id}});
    town.chat(&headers, params("from-the-body"));
    let mut forged = params("forger");
    forged["conversation_params"]["subagent_affinity_id"] = json!("parent-1");
    town.chat(&[], forged);
    let expected = [
        told("forger", None),
        told("from-the-body", Some("parent-1")),
    ];
    assert_eq!(town.told(Role::Context), expected);
    for request in town.0.fleet.requests(Role::Context) {
        let params = &body(&request)["conversation_params"];
        assert_eq!(params.as_object().unwrap().len(), 1, "{params}");
    }
}

#[test]
fn a_completion_is_kept_with_its_family_too() {
    let town = Town::start("context");
    town.table();
    let headers = [("x-session-id", "child-c"), (PARENT, "parent-1")];
    let body = json!({"model": "m", "prompt": "Once upon a time", "max_tokens": 4});
    let answer = raw::post(
        town.0.edge.edge(),
        "/v1/completions",
        &headers,
        &body.to_string(),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        town.told(Role::Context)[2],
        told("child-c", Some("parent-1"))
    );
    let mut busy = town.0.fleet.of(Role::Context);
    assert!(
        busy.any(|worker| worker.requests().len() == 4),
        "one instance"
    );
}

#[test]
fn a_family_that_arrives_all_at_once_meets_in_one_place() {
    let town = Town::start("both");
    std::thread::scope(|threads| {
        for number in 0..12 {
            let town = &town;
            threads.spawn(move || {
                let session = format!("child-{number}");
                let mut headers = vec![("x-session-id", session.as_str())];
                if number > 0 {
                    headers.push((PARENT, "child-0"));
                }
                town.chat(&headers, json!({}));
            });
        }
    });
    for role in [Role::Context, Role::Generation] {
        let busy = town.0.fleet.of(role).filter_map(|worker| {
            let ranks = worker.requests().into_iter().map(|request| request.rank);
            let ranks: HashSet<_> = ranks.collect();
            (!ranks.is_empty()).then_some(ranks.len())
        });
        assert_eq!(
            busy.collect::<Vec<_>>(),
            [1],
            "{role:?}: one instance, one rank"
        );
    }
}
