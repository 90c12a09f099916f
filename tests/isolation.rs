//! Equal session ids of two clients: two sessions on the edge and on the ranks, though the workers are
//! told the same conversation id; one family all the same for each of them.

mod support;

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{Role, headers},
};
use serde_json::{Value, json};
use support::{
    Kindred, chat,
    clients::digest,
    fleet,
    guarded::Guarded,
    raw, run,
    seen::{self, conversation_id, signed_parent},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
const PARENT: &str = "X-Dynamo-Parent-Session-ID";
const CHAT: &str = "/v1/chat/completions";
const CLIENTS: [&str; 2] = ["ada", "ben"];

fn gateway(more: &str) -> String {
    let mut yaml = format!("gateway:\n{more}  clients:\n");
    for client in CLIENTS {
        let digest = digest(client);
        yaml.push_str(&format!(
            "  - {{name: {client}, api_keys_sha256: ['{digest}']}}\n"
        ));
    }
    yaml
}

/// An edge before two filters with four ranks each, and the workers behind.
struct House(Guarded);

impl House {
    fn open(more: &str) -> Self {
        let fleet = fleet::start(1, 1, |config| config.engine.ranks = 4);
        let more = format!(
            "conversation_affinity_header_for_subagents: {PARENT}\n\
             telemetry: {{debug_headers: true}}\n{more}"
        );
        Self(Guarded::open(fleet, KEY, 4, &more))
    }

    /// One turn: the rank that served it, and the context request as the worker saw it.
    fn turn(&self, client: &str, session: &str, parent: Option<&str>) -> (String, Recorded) {
        let key = format!("Bearer {client}");
        let mut headers = vec![("authorization", &*key), ("x-session-id", session)];
        headers.extend(parent.map(|parent| (PARENT, parent)));
        let answer = raw::post(self.0.edge.edge(), CHAT, &headers, &chat("hi").to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.0.edge.assert_idle();
        let rank = answer.header("x-kindred-rank").unwrap().to_owned();
        (rank, self.0.fleet.requests(Role::Context).pop().unwrap())
    }

    fn bindings(&self, fleet: &str) -> f64 {
        let label = format!("fleet=\"{fleet}\"");
        self.0.edge.metric("kindred_affinity_bindings", &[&label])
    }
}

fn affinity(seen: &Recorded) -> String {
    signed_parent(seen, KEY, Role::Context).expect("a signed affinity id")
}

#[test]
fn equal_ids_are_apart_and_the_worker_is_told_the_same_id() {
    let house = House::open(&gateway(""));
    let places = CLIENTS.map(|client| {
        let (rank, seen) = house.turn(client, "main", None);
        assert_eq!(conversation_id(&seen).as_deref(), Some("main"));
        (rank, affinity(&seen))
    });
    assert_ne!(places[0], places[1]);
    assert_ne!(places[0].0, places[1].0, "their ranks");
    assert_eq!(house.bindings("context"), 2.0);
    assert_eq!(house.bindings("generation"), 2.0);
    for (client, (rank, id)) in CLIENTS.into_iter().zip(&places) {
        // A family stays together: its parent, its sub-agents, again and again.
        for (session, parent) in [
            ("child", Some("main")),
            ("main", None),
            ("other", Some("main")),
        ] {
            let (there, seen) = house.turn(client, session, parent);
            assert_eq!(&there, rank, "{client} {session}");
            assert_eq!(&affinity(&seen), id, "{client} {session}");
            assert_eq!(conversation_id(&seen).as_deref(), Some(session));
            assert!(!id.contains(client) && !id.contains("main"), "{id}");
        }
    }
    assert_eq!(house.bindings("context"), 2.0, "families");
}

#[test]
fn where_sessions_are_shared_equal_ids_are_one() {
    let house = House::open(&gateway("  session_isolation: shared\n"));
    let places = CLIENTS.map(|client| house.turn(client, "main", None));
    assert_eq!(places[0].0, places[1].0);
    assert_eq!(house.bindings("context"), 1.0);
    for (_, seen) in &places {
        assert_eq!(seen::header(seen, headers::AFFINITY_ID), None);
    }
    let (_, seen) = house.turn("ada", "child", Some("main"));
    assert_eq!(affinity(&seen), "main");
}

#[test]
fn nobody_lands_on_anothers_place_by_naming_what_stands_for_it() {
    let house = House::open(&gateway(""));
    let (rank, seen) = house.turn("ada", "main", None);
    let id = affinity(&seen);
    // The opaque id itself, and texts that look like what the tables hold.
    // (With each new session round robin goes on by a rank, so no more than three.)
    for guess in [id.as_str(), "client:ada:main", "main"] {
        let (there, seen) = house.turn("ben", guess, None);
        assert_ne!(affinity(&seen), id, "{guess}");
        assert_ne!(there, rank, "{guess}");
        house.turn("ada", "main", None);
    }
}

#[test]
fn requests_without_a_session_join_only_those_of_their_own_client() {
    let fleet = fleet::start(2, 1, |_| {});
    let key = format!("internal_request_auth_key: {KEY}\ntelemetry: {{debug_headers: true}}\n");
    let kindred = Kindred::serve(&fleet.yaml(&(key + &gateway(""))));
    let words = "the same long words for everybody ".repeat(200);
    let ask = |client: &str| {
        let key = format!("Bearer {client}");
        let body = chat(&words).to_string();
        let answer = raw::post(kindred.edge(), CHAT, &[("authorization", &key)], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        kindred.assert_idle();
        answer.header("x-kindred-context").unwrap().to_owned()
    };
    let first = ask("ada");
    assert_eq!(ask("ada"), first);
    let bindings = || kindred.metric("kindred_affinity_bindings", &["fleet=\"context\""]);
    assert_eq!(bindings(), 1.0);
    ask("ben");
    assert_eq!(bindings(), 2.0, "a session of ben's own");
    assert_eq!(ask("ada"), first);
}

#[test]
fn namespaced_conversation_ids_are_told_in_place_of_the_clients() {
    let house = House::open(&gateway("  namespace_conversation_ids: true\n"));
    let mut told = Vec::new();
    for client in CLIENTS {
        let (_, seen) = house.turn(client, "main", None);
        let id = conversation_id(&seen).unwrap();
        assert!(
            id.starts_with("kindred:") && !seen.body.contains("main"),
            "{}",
            seen.body
        );
        let (_, child) = house.turn(client, "child", Some("main"));
        let again = house.turn(client, "main", None).1;
        assert_eq!(conversation_id(&again).as_ref(), Some(&id));
        assert_eq!(affinity(&child), affinity(&seen));
        told.extend([id, conversation_id(&child).unwrap()]);
    }
    // In the body as well, where a client sends its id there.
    let mut body = chat("hi");
    body["conversation_params"] = json!({"conversation_id": "main"});
    let headers = [("authorization", "Bearer ada")];
    let answer = raw::post(house.0.edge.edge(), CHAT, &headers, &body.to_string());
    assert_eq!(answer.status, 200);
    let seen = house.0.fleet.requests(Role::Context).pop().unwrap();
    assert_eq!(conversation_id(&seen).as_ref(), told.first());
    for role in [Role::Context, Role::Generation] {
        for seen in house.0.fleet.requests(role) {
            let params: Value = seen::body(&seen)["conversation_params"].clone();
            assert!(!params.to_string().contains("main"), "{params}");
        }
    }
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 4);
}

#[test]
fn the_printed_configuration_says_what_is_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kindred.yaml");
    let printed = |gateway: &str| {
        let fleet = "context_servers: {urls: ['localhost:1']}\ngeneration_servers: {urls: ['localhost:2']}\n";
        std::fs::write(&file, format!("{fleet}{gateway}")).unwrap();
        let (code, out, err) = run(
            &["check", "--print", "--config", file.to_str().unwrap()],
            "",
        );
        assert_eq!(code, 0, "{err}");
        out
    };
    assert!(printed(&gateway("")).contains("session_isolation: per_client"));
    let one = "gateway: {anonymous: owned}\n";
    assert!(printed(one).contains("session_isolation: shared"));
    let one = "gateway: {anonymous: owned, session_isolation: per_client}\n";
    assert!(printed(one).contains("session_isolation: per_client"));
}

#[test]
fn a_flood_of_sessions_pushes_out_its_own() {
    let fleet = fleet::start(2, 1, |_| {});
    let file = fleet
        .yaml(&gateway(""))
        .replace("type: conversation", "type: conversation, max_sessions: 20");
    assert!(file.contains("max_sessions"), "{file}");
    let kindred = Kindred::serve(&file);
    let ask = |client: &str, session: &str| {
        let key = format!("Bearer {client}");
        let headers = [("authorization", &*key), ("x-session-id", session)];
        let answer = raw::post(kindred.edge(), CHAT, &headers, &chat("hi").to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let decided = |decision: &str| {
        let label = format!("decision=\"{decision}\"");
        let labels = ["fleet=\"context\"", label.as_str()];
        kindred.metric("kindred_affinity_decisions_total", &labels)
    };
    let bens = ["one", "two", "three"];
    bens.iter().for_each(|session| ask("ben", session));
    (0..60).for_each(|number| ask("ada", &format!("s{number}")));
    let bindings = kindred.metric("kindred_affinity_bindings", &["fleet=\"context\""]);
    assert_eq!(bindings, 13.0, "half the table is ada's, and ben's three");
    assert_eq!((decided("new"), decided("bound")), (63.0, 0.0));
    bens.iter().for_each(|session| ask("ben", session));
    assert_eq!((decided("new"), decided("bound")), (63.0, 3.0));
    ask("ada", "s59");
    assert_eq!(decided("bound"), 4.0);
    ask("ada", "s0");
    assert_eq!(
        decided("new"),
        64.0,
        "it was pushed out by its own client's"
    );
}
