//! Who may be whose child, from outside: where a claim may stand, what each policy wants, delegations
//! over two gateways that share a secret and nothing else, families of one level, and the access log.

mod support;

use std::path::Path;

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{Role, headers},
};
use serde_json::{Value, json};
use support::{
    Kindred, chat,
    clients::digest,
    eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
    seen,
};

const CHAT: &str = "/v1/chat/completions";
const DELEGATIONS: &str = "/v1/kindred/delegations";
const TOKEN: &str = "x-kindred-delegation";
const PARENT: &str = "X-Team-Parent";

/// A file in which every policy has a client whose name and key it is; `other` is a second `delegated`.
fn yaml(fleet: &Fleet, gateway: &str, more: &str) -> String {
    let mut text = format!(
        "internal_request_auth_key: internal-key-that-nobody-may-see\n\
         conversation_affinity_header_for_subagents: {PARENT}\n{more}\ngateway:\n{gateway}  session_isolation: shared\n  clients:\n"
    );
    for (name, policy) in [
        ("none", "none"),
        ("owned", "owned"),
        ("declared", "declared"),
        ("delegated", "delegated"),
        ("other", "delegated"),
    ] {
        text.push_str(&format!(
            "  - {{name: {name}, api_keys_sha256: ['{}'], subagents: {policy}}}\n",
            digest(name)
        ));
    }
    fleet.yaml(&text)
}

struct Site {
    fleet: Fleet,
    kindred: Kindred,
}

/// One request: its client, its session, and further header fields.
type Turn<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn ask(kindred: &Kindred, (client, session, more): Turn<'_>, body: &Value) -> Answer {
    let key = format!("Bearer {client}");
    let mut headers = vec![("authorization", key.as_str())];
    headers.extend((!session.is_empty()).then_some(("x-session-id", session)));
    headers.extend(more);
    raw::post(kindred.edge(), CHAT, &headers, &body.to_string())
}

fn delegation(kindred: &Kindred, client: &str, session: &str) -> Answer {
    let key = format!("Bearer {client}");
    let body = json!({"session_id": session}).to_string();
    raw::post(
        kindred.edge(),
        DELEGATIONS,
        &[("authorization", &key)],
        &body,
    )
}

fn token(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["token"].as_str().unwrap().to_owned()
}

impl Site {
    fn open(gateway: &str, more: &str) -> Self {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&yaml(&fleet, gateway, more));
        Self { fleet, kindred }
    }

    /// What a turn's claim came to, and the context request that the worker saw.
    fn outcome(&self, turn: Turn<'_>, body: &Value) -> (String, Recorded) {
        let counts = || -> Vec<(String, f64)> {
            let page = self.kindred.admin("/metrics").text();
            let lines = page.lines().filter_map(|line| {
                let rest = line.strip_prefix("kindred_parent_claims_total{outcome=\"")?;
                let (outcome, count) = rest.split_once("\"} ")?;
                Some((outcome.to_owned(), count.parse().unwrap()))
            });
            lines.collect()
        };
        let before = counts();
        let answer = ask(&self.kindred, turn, body);
        assert_eq!(answer.status, 200, "{turn:?}: {}", answer.text());
        let changed = counts().into_iter().zip(before);
        let mut changed = changed.filter(|(after, before)| after != before);
        let ((outcome, _), _) = changed.next().expect("an outcome");
        assert!(changed.next().is_none(), "one outcome");
        let seen = self.fleet.requests(Role::Context).pop().unwrap();
        (outcome, seen)
    }

    /// Asserts what a claim comes to, and whom the worker is told to follow.
    fn claims(&self, turn: Turn<'_>, outcome: &str, parent: Option<&str>) {
        let (found, seen) = self.outcome(turn, &chat("hi"));
        assert_eq!(found, outcome, "{turn:?}");
        let affinity = seen::header(&seen, headers::AFFINITY_ID);
        assert_eq!(affinity, parent, "{turn:?}");
        assert!(
            seen::header_names(&seen)
                .iter()
                .all(|name| !name.contains("parent") && !name.contains("kindred")),
            "{seen:?}"
        );
    }
}

#[test]
fn every_known_source_is_heard_in_its_order_and_reaches_no_worker() {
    let site = Site::open("", "");
    let order = [
        PARENT,
        "X-Dynamo-Parent-Session-ID",
        "X-Claude-Code-Parent-Agent-Id",
        "X-Codex-Parent-Thread-Id",
        "X-Parent-Session-Id",
    ];
    for (at, name) in order.iter().enumerate() {
        let named = format!("p{at}");
        let claim = [(*name, named.as_str())];
        site.claims(("declared", "child", &claim), "authorised", Some(&named));
        let mut all: Vec<_> = order[at..].iter().map(|name| (*name, "later")).collect();
        all[0].1 = &named;
        all.reverse();
        site.claims(("declared", "child", &all), "authorised", Some(&named));
        let blank = [(*name, " ")];
        site.claims(("declared", "child", &blank), "none", None);
        let differ = [(*name, "a"), (*name, "b")];
        site.claims(("declared", "child", &differ), "ambiguous", None);
    }
    let long = "x".repeat(513);
    for name in order {
        let answer = ask(
            &site.kindred,
            ("declared", "c", &[(name, &long)]),
            &chat("hi"),
        );
        assert_eq!(answer.status, 400, "{name}");
        let param = answer.json()["error"]["param"].clone();
        assert_eq!(param, name.to_lowercase());
    }
}

#[test]
fn configured_sources_take_the_place_of_the_known_ones() {
    let sources = "  parent_sources: [x-first, {body: metadata.agent.parent}, X-Last]\n";
    let site = Site::open(sources, "");
    let mut body = chat("hi");
    body["metadata"] = json!({"agent": {"parent": " in the body "}});
    let plain = |headers: &'static [(&'static str, &'static str)]| ("declared", "child", headers);
    for (headers, followed) in [
        (&[("x-last", "last"), ("x-first", "first")][..], "first"),
        (&[("x-last", "last")], "in the body"),
        (&[], "in the body"),
    ] {
        let (outcome, seen) = site.outcome(plain(headers), &body);
        assert_eq!(outcome, "authorised");
        let affinity = seen::header(&seen, headers::AFFINITY_ID);
        assert_eq!(affinity, Some(followed));
        // It is the client's own field.
        assert_eq!(seen::body(&seen)["metadata"], body["metadata"]);
    }
    site.claims(plain(&[("x-last", "last")]), "authorised", Some("last"));
    // What is no source any more is no claim, and is taken off all the same.
    site.claims(
        plain(&[(PARENT, "p"), ("x-parent-session-id", "p")]),
        "none",
        None,
    );
    body["metadata"]["agent"]["parent"] = "x".repeat(513).into();
    let answer = ask(&site.kindred, plain(&[]), &body);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "metadata.agent.parent");
}

#[test]
fn each_policy_wants_its_own_proof() {
    let site = Site::open("", "");
    let claim = [(PARENT, "p")];
    site.claims(("none", "child", &claim), "not_allowed", None);
    site.claims(("declared", "child", &claim), "authorised", Some("p"));
    site.claims(("owned", "child", &claim), "not_owned", None);
    site.claims(("owned", "p", &[]), "none", None);
    site.claims(("owned", "child", &claim), "authorised", Some("p"));
    site.claims(("owned", "p", &claim), "self_named", None);
    site.claims(("delegated", "p", &[]), "none", None);
    site.claims(("delegated", "child", &claim), "not_delegated", None);
    let token = token(&delegation(&site.kindred, "delegated", "p"));
    let with = [(PARENT, "p"), (TOKEN, &*token)];
    site.claims(("delegated", "child", &with), "authorised", Some("p"));
    let twice = [(PARENT, "p"), (TOKEN, &*token), (TOKEN, &*token)];
    site.claims(("delegated", "child", &twice), "not_delegated", None);
    let another = [(PARENT, "q"), (TOKEN, &*token)];
    site.claims(("delegated", "child", &another), "bad_delegation", None);
    site.claims(("other", "child", &with), "bad_delegation", None);
    // It proves nothing to a policy that wants something else.
    site.claims(("none", "child", &with), "not_allowed", None);
}

#[test]
fn owned_sessions_are_forgotten_after_their_time() {
    let site = Site::open("  owned_ttl: 1s\n", "");
    site.claims(("owned", "p", &[]), "none", None);
    // It is the time itself that is tested, and any more of it changes nothing.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    site.claims(("owned", "child", &[(PARENT, "p")]), "not_owned", None);
}

#[test]
fn a_delegation_is_good_on_every_replica_that_has_the_secret() {
    let one = Site::open("", "");
    let gateway = "  delegation: {key: a-secret-of-its-own-0123456789}\n";
    let same = Kindred::serve(&yaml(&one.fleet, "", ""));
    let stranger = Kindred::serve(&yaml(&one.fleet, gateway, ""));
    one.claims(("delegated", "p", &[]), "none", None);
    let token = token(&delegation(&one.kindred, "delegated", "p"));
    let with = [(PARENT, "p"), (TOKEN, &*token)];
    for (replica, outcome) in [(&same, "authorised"), (&stranger, "bad_delegation")] {
        let answer = ask(replica, ("delegated", "child", &with), &chat("hi"));
        assert_eq!(answer.status, 200);
        let label = format!("outcome=\"{outcome}\"");
        replica.assert_metric("kindred_parent_claims_total", &[&label], 1.0);
    }
}

#[test]
fn answers_carry_a_delegation_where_they_are_to() {
    let site = Site::open("  delegation: {on_answers: true, ttl: 1h}\n", "");
    let mut streamed = chat("hi");
    streamed["stream"] = true.into();
    for body in [chat("hi"), streamed] {
        let answer = ask(&site.kindred, ("delegated", "p", &[]), &body);
        let token = answer.header(TOKEN).expect("a token").to_owned();
        let with = [(PARENT, "p"), (TOKEN, &*token)];
        site.claims(("delegated", "child", &with), "authorised", Some("p"));
        // A sub-agent gets none, nor does who needs none, nor a request without a session.
        for turn in [
            ("delegated", "child", &with[..]),
            ("owned", "p", &[]),
            ("delegated", "", &[]),
        ] {
            assert_eq!(
                ask(&site.kindred, turn, &body).header(TOKEN),
                None,
                "{turn:?}"
            );
        }
    }
}

#[test]
fn delegations_are_handed_out_to_whom_they_belong() {
    let site = Site::open("", "");
    let refused = |client: &str, session: &str| {
        let answer = delegation(&site.kindred, client, session);
        let error = answer.json()["error"].clone();
        (answer.status, error["code"].as_str().unwrap().to_owned())
    };
    let code = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(refused("nobody", "p"), code(401, "invalid_api_key"));
    assert_eq!(refused("owned", "p"), code(403, "no_delegation"));
    assert_eq!(refused("delegated", "p"), code(404, "unknown_session"));
    site.claims(("other", "p", &[]), "none", None);
    assert_eq!(refused("delegated", "p"), code(404, "unknown_session"));
    assert_eq!(refused("delegated", " "), code(400, "invalid_body"));
    assert_eq!(
        refused("delegated", &"x".repeat(513)),
        code(400, "invalid_session_id")
    );
    let answer = delegation(&site.kindred, "other", "p");
    assert_eq!(answer.json()["session_id"], "p");
    assert!(answer.json()["expires_at"].as_u64().unwrap() > 1_700_000_000);
    let get = raw::get(site.kindred.edge(), DELEGATIONS);
    assert_eq!(
        (get.status, get.header("allow")),
        (405, Some("OPTIONS, POST"))
    );
    for body in [
        "",
        "[]",
        "{\"session_id\": 1}",
        "{\"session_id\":\"a\",\"session_id\":\"b\"}",
    ] {
        let headers = [("authorization", "Bearer other")];
        let answer = raw::post(site.kindred.edge(), DELEGATIONS, &headers, body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
    }
    let open = Kindred::serve(&site.fleet.yaml(""));
    assert_eq!(delegation(&open, "any", "p").status, 403);
}

#[test]
fn a_family_has_one_level() {
    for (nested, outcome, parent) in [("refuse", "nested", None), ("root", "root", Some("top"))] {
        let site = Site::open("", &format!("affinity: {{nested: {nested}}}"));
        for client in ["owned", "declared"] {
            let turn = |session, parent: &'static [(&str, &str)]| (client, session, parent);
            let of_top = &[(PARENT, "top")];
            let of_middle = &[(PARENT, "middle")];
            let of_leaf = &[(PARENT, "leaf")];
            site.claims(turn("top", &[]), "none", None);
            site.claims(turn("middle", of_top), "authorised", Some("top"));
            site.claims(turn("leaf", of_middle), outcome, parent);
            // One's own sub-agent is nobody's parent, and least of all one's own.
            site.claims(turn("top", of_middle), "nested", None);
            if nested == "root" {
                site.claims(turn("lowest", of_leaf), "root", Some("top"));
            }
            // Once it comes on its own it is a root.
            site.claims(turn("middle", &[]), "none", None);
            site.claims(turn("leaf", of_middle), "authorised", Some("middle"));
        }
    }
}

fn entries(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn entry(path: &Path, id: &str) -> Value {
    eventually(&format!("{id} is logged"), || {
        let mut all = entries(path)
            .into_iter()
            .filter(|entry| entry["request_id"] == id);
        let entry = all.next();
        assert!(all.next().is_none(), "{id} is logged once");
        entry
    })
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let more = format!(
        "telemetry: {{access_log: {}, debug_headers: true}}",
        path.display()
    );
    let site = Site::open("", &more);
    let id = |id: &'static str| ("x-request-id", id);
    let owned = |more: &[(&'static str, &'static str)], session| {
        ask(
            &site.kindred,
            ("owned", session, more),
            &chat("secret words"),
        )
    };
    owned(&[id("first")], "p");
    let answer = owned(&[id("second"), (PARENT, "p")], "child");
    owned(&[id("third"), (PARENT, "q")], "child");
    let unknown = ask(&site.kindred, ("nobody", "s", &[id("fourth")]), &chat("hi"));
    assert_eq!(unknown.status, 401);
    let first = entry(&path, "first");
    assert_eq!(first["parent_claim"], "none");
    assert_eq!(first["session"], "p");
    let second = entry(&path, "second");
    for (field, value) in [
        ("client", "owned"),
        ("route", "chat_completions"),
        ("fleet", "generation"),
        ("outcome", "ok"),
        ("session", "child"),
        ("parent", "p"),
        ("parent_claim", "authorised"),
    ] {
        assert_eq!(second[field], value, "{second}");
    }
    assert_eq!(second["status"], 200);
    assert_eq!(second["stream"], false);
    assert_eq!(
        second["context"],
        answer.header("x-kindred-context").unwrap()
    );
    assert_eq!(
        second["generation"],
        answer.header("x-kindred-generation").unwrap()
    );
    assert!(second["duration_ms"].as_f64().unwrap() > 0.0);
    let third = entry(&path, "third");
    assert_eq!(third["parent_claim"], "not_owned");
    assert!(third.get("parent").is_none());
    let fourth = entry(&path, "fourth");
    assert_eq!(
        (&fourth["status"], &fourth["outcome"]),
        (&json!(401), &json!("unauthenticated"))
    );
    assert!(fourth.get("client").is_none() && fourth.get("parent_claim").is_none());
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("Bearer") && !text.contains("secret words"),
        "{text}"
    );

    // Rotation: the file is moved away, and a reload opens it anew.
    let kept = folder.path().join("access.log.1");
    std::fs::rename(&path, &kept).unwrap();
    let file = site.kindred.file.clone().unwrap();
    let yaml = std::fs::read_to_string(&file).unwrap();
    support::reload::reload(&site.kindred, &yaml, "applied");
    owned(&[id("fifth")], "p");
    entry(&path, "fifth");
    assert!(
        entries(&kept)
            .iter()
            .all(|entry| entry["request_id"] != "fifth")
    );
    let nowhere = yaml.replace(path.to_str().unwrap(), "/nowhere/access.log");
    support::reload::reload(&site.kindred, &nowhere, "rejected");
    owned(&[id("sixth")], "p");
    entry(&path, "sixth");
}
