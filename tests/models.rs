//! Aggregated fleets, and fleets of their own for models by name.

mod support;

use std::collections::HashSet;

use kindred::{simulate::worker::recorder::Recorded, wire::Role};
use serde_json::{Value, json};
use support::{
    Kindred,
    fleet::{self, Fleet},
    raw,
    reload::reload,
    seen,
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "a-key-of-more-than-16-bytes";
const PARENT: &str = "x-dynamo-parent-session-id";

/// Top-level keys of an edge that signs for sub-agents, followed by its fleets.
fn yaml(fleets: &str) -> String {
    format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
         internal_request_auth_key: {KEY}\n\
         conversation_affinity_header_for_subagents: {PARENT}\n\
         telemetry: {{debug_headers: true}}\n{fleets}\n"
    )
}

/// A chat of that model.
fn body(model: &str, user: &str) -> Value {
    let mut body = support::chat(user);
    body["model"] = model.into();
    body
}

#[track_caller]
fn chat(kindred: &Kindred, model: &str, headers: &[(&str, &str)]) -> raw::Answer {
    let body = body(model, "hello").to_string();
    let answer = raw::post(kindred.edge(), CHAT, headers, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The alias of the instance that answered a session's turn.
#[track_caller]
fn place(kindred: &Kindred, model: &str, session: &str) -> String {
    let answer = chat(kindred, model, &[("x-session-id", session)]);
    answer.header("x-kindred-generation").unwrap().to_owned()
}

fn aggregated(workers: usize) -> Fleet {
    fleet::start_roles(&[(Role::Aggregated, workers)], |_| {})
}

fn section(fleet: &Fleet) -> String {
    fleet.section(Role::Aggregated)
}

/// Models with two fleets of each kind: `whole` (alias `w`) and `legs` (aliases `l`, `L/2`).
struct TwoModels {
    whole: Fleet,
    legs: Fleet,
}

impl TwoModels {
    fn start() -> Self {
        Self {
            whole: aggregated(2),
            legs: fleet::start(2, 2, |_| {}),
        }
    }

    fn models(&self) -> String {
        format!(
            "models:\n  whole:\n    aliases: [w]\n    {}\n  legs:\n    aliases: [l, L/2]\n    {}\n    {}\n",
            section(&self.whole),
            self.legs.section(Role::Context),
            self.legs.section(Role::Generation),
        )
    }
}

#[test]
fn an_aggregated_fleet_is_sent_the_clients_request_with_its_session_and_nothing_else() {
    let fleet = aggregated(1);
    let kindred = Kindred::serve(&yaml(&section(&fleet)));
    let client_sent = body("any", "hello").to_string();
    let headers = [
        ("x-session-id", "s"),
        ("x-trtllm-subagent-affinity-id", "forged"),
    ];
    let answer = raw::post(kindred.edge(), CHAT, &headers, &client_sent);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.json()["choices"][0]["message"]["content"].is_string());
    let seen: Recorded = fleet.requests(Role::Aggregated).remove(0);
    let with_session = client_sent.strip_suffix('}').unwrap().to_owned()
        + r#","conversation_params":{"conversation_id":"s"}}"#;
    assert_eq!(seen.body, with_session);
    let names = ["content-length", "content-type", "host"];
    assert!(
        seen::header_names(&seen)
            .iter()
            .all(|name| !name.starts_with("x-trtllm") && !name.starts_with("x-session")),
        "{seen:?}"
    );
    for name in names {
        assert!(seen::header(&seen, name).is_some(), "{name}");
    }
    assert_eq!(answer.header("x-kindred-generation"), Some("aggregated-0"));
    assert_eq!(answer.header("x-kindred-context"), None);
    kindred.assert_idle();
    kindred.assert_metric(
        "kindred_requests_total",
        &["fleet=\"aggregated\"", "outcome=\"ok\""],
        1.0,
    );
    // There is no context leg.
    kindred.assert_metric("kindred_leg_duration_seconds_count", &[], 1.0);
}

#[test]
fn a_stream_of_an_aggregated_fleet_comes_to_its_end() {
    let fleet = aggregated(1);
    let kindred = Kindred::serve(&yaml(&section(&fleet)));
    let mut body = body("any", "hello");
    body["stream"] = true.into();
    let answer = raw::post(kindred.edge(), CHAT, &[], &body.to_string());
    assert_eq!(answer.status, 200);
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(text.matches("data: {").count() > 1, "{text}");
    kindred.assert_idle();
}

#[test]
fn prompts_that_no_context_leg_could_take_are_an_aggregated_workers_to_judge() {
    let fleet = aggregated(1);
    let kindred = Kindred::serve(&yaml(&section(&fleet)));
    let batch = json!({"model": "m", "prompt": ["one", "two"], "max_tokens": 2}).to_string();
    raw::post(kindred.edge(), "/v1/completions", &[], &batch);
    assert_eq!(fleet.requests(Role::Aggregated).remove(0).body, batch);
}

#[test]
fn a_family_stays_on_one_aggregated_instance_in_either_scope() {
    for scope in ["context", "both"] {
        let fleet = aggregated(3);
        let more = format!("{}\nsubagent_affinity_scope: {scope}", section(&fleet));
        let kindred = Kindred::serve(&yaml(&more));
        for parent in ["p1", "p2", "p3"] {
            let home = place(&kindred, "m", parent);
            for turn in 0..3 {
                let child = format!("{parent}-child-{turn}");
                let headers = [("x-session-id", child.as_str()), (PARENT, parent)];
                let answer = chat(&kindred, "m", &headers);
                let place = answer.header("x-kindred-generation");
                assert_eq!(place, Some(home.as_str()), "{scope}");
            }
        }
        for request in fleet.requests(Role::Aggregated) {
            assert_eq!(seen::header(&request, PARENT), None);
            let affinity = seen::header(&request, "x-trtllm-subagent-affinity-id");
            assert_eq!(affinity, None, "whole requests carry no affinity");
        }
        kindred.assert_idle();
    }
}

#[test]
fn each_model_has_fleets_of_its_own_and_workers_are_told_its_name() {
    let models = TwoModels::start();
    let kindred = Kindred::serve(&yaml(&models.models()));
    for model in ["whole", "w", "legs", "l", "L/2"] {
        chat(&kindred, model, &[("x-session-id", model)]);
    }
    let told = |requests: Vec<Recorded>| -> Vec<Value> {
        requests
            .iter()
            .map(|request| seen::body(request)["model"].clone())
            .collect()
    };
    let whole = told(models.whole.requests(Role::Aggregated));
    assert_eq!(whole, ["whole", "whole"]);
    for role in [Role::Context, Role::Generation] {
        assert_eq!(told(models.legs.requests(role)), ["legs", "legs", "legs"]);
    }
    kindred.assert_idle();
}

#[test]
fn a_model_that_nobody_serves_is_refused_before_any_leg() {
    let models = TwoModels::start();
    let kindred = Kindred::serve(&yaml(&models.models()));
    let answer = raw::post(kindred.edge(), CHAT, &[], &body("other", "x").to_string());
    assert_eq!(answer.status, 404);
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["param"], "model");
    assert!(error["message"].as_str().unwrap().contains("\"other\""));
    assert!(models.whole.requests(Role::Aggregated).is_empty());
    assert!(models.legs.requests(Role::Context).is_empty());
    kindred.assert_idle();
}

#[test]
fn fleets_without_a_name_serve_every_model_that_has_none() {
    let (models, rest) = (TwoModels::start(), fleet::start(1, 1, |_| {}));
    let more = format!(
        "{}{}\n{}",
        models.models(),
        rest.section(Role::Context),
        rest.section(Role::Generation)
    );
    let kindred = Kindred::serve(&yaml(&more));
    chat(&kindred, "other", &[]);
    chat(&kindred, "legs", &[]);
    let seen = rest.requests(Role::Generation);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen::body(&seen[0])["model"], "other");
    let names = |name: &str| kindred.metric("kindred_in_flight", &[name]);
    for instance in ["context-0", "legs/context-1", "whole/aggregated-0"] {
        assert_eq!(names(&format!("instance=\"{instance}\"")), 0.0);
        let page = kindred.admin("/metrics").text();
        assert!(page.contains(&format!("instance=\"{instance}\"")), "{page}");
    }
}

#[test]
fn aliases_share_a_binding_and_two_models_keep_two() {
    let models = TwoModels::start();
    let kindred = Kindred::serve(&yaml(&models.models()));
    let sessions: Vec<String> = (0..8).map(|number| format!("s{number}")).collect();
    let mut first = Vec::new();
    for session in &sessions {
        let whole = place(&kindred, "whole", session);
        let legs = place(&kindred, "legs", session);
        assert!(whole.starts_with("whole/aggregated-"), "{whole}");
        assert!(legs.starts_with("legs/generation-"), "{legs}");
        first.push((whole, legs));
    }
    let homes: HashSet<_> = first.iter().collect();
    assert!(homes.len() > 1, "the sessions are spread");
    for (session, (whole, legs)) in sessions.iter().zip(&first) {
        for (model, home) in [("w", whole), ("l", legs), ("L/2", legs), ("whole", whole)] {
            assert_eq!(&place(&kindred, model, session), home, "{model}");
        }
    }
    // One binding in each of the three fleets for each session, however it was called.
    let bindings = |fleet: &str| {
        let label = format!("fleet=\"{fleet}\"");
        kindred.metric("kindred_affinity_bindings", &[&label])
    };
    for fleet in ["aggregated", "context", "generation"] {
        assert_eq!(bindings(fleet), sessions.len() as f64, "{fleet}");
    }
}

#[test]
fn what_is_signed_for_an_alias_is_what_is_sent() {
    let models = TwoModels::start();
    let more = models.models() + "subagent_affinity_scope: both\n";
    let kindred = Kindred::serve(&yaml(&more));
    chat(&kindred, "l", &[("x-session-id", "child"), (PARENT, "p")]);
    for role in [Role::Context, Role::Generation] {
        let request = models.legs.requests(role).remove(0);
        assert_eq!(
            seen::signed_parent(&request, KEY, role).as_deref(),
            Some("p")
        );
    }
}

#[test]
fn a_reload_keeps_the_bindings_of_models_that_stay() {
    let models = TwoModels::start();
    let kindred = Kindred::serve(&yaml(&models.models()));
    let homes: Vec<_> = (0..6)
        .map(|number| place(&kindred, "whole", &format!("s{number}")))
        .collect();
    let only = format!("models:\n  whole:\n    {}\n", section(&models.whole));
    reload(&kindred, &yaml(&only), "applied");
    for (number, home) in homes.iter().enumerate() {
        assert_eq!(&place(&kindred, "whole", &format!("s{number}")), home);
    }
    let gone = raw::post(kindred.edge(), CHAT, &[], &body("legs", "x").to_string());
    assert_eq!(gone.status, 404, "{}", gone.text());
    reload(&kindred, &yaml(&models.models()), "applied");
    assert!(place(&kindred, "legs", "s0").starts_with("legs/generation-"));
    kindred.assert_idle();
}
