//! The trust boundary from outside: who may come in, and which parents they may name.

#[path = "gateway/claims.rs"]
mod claims;
#[path = "gateway/keys.rs"]
mod keys;
mod support;

use std::path::Path;

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{Role, headers},
};
use serde_json::Value;
use support::{
    Kindred, chat,
    clients::digest,
    eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
    run,
};

const INTERNAL: &str = "internal-key-that-nobody-may-see";
const PARENT: &str = "X-Dynamo-Parent-Session-ID";
const CHAT: &str = "/v1/chat/completions";
/// One client of each policy, two of `owned`; `quiet` does not say and so is `owned` too.
const CLIENTS: [(&str, Option<&str>); 5] = [
    ("nobody", Some("none")),
    ("first", Some("owned")),
    ("second", Some("owned")),
    ("quiet", None),
    ("open", Some("declared")),
];
const WARNING: &str = "trusted as it arrives";

fn key(client: &str) -> String {
    format!("key-of-{client}-0123456789")
}

fn affinity() -> String {
    format!(
        "internal_request_auth_key: {INTERNAL}\nconversation_affinity_header_for_subagents: {PARENT}\n"
    )
}

/// The `gateway` section with all clients, and `more` of its members.
fn section(more: &str) -> String {
    let mut text = format!("gateway:\n{more}  session_isolation: shared\n  clients:\n");
    for (client, policy) in CLIENTS {
        text.push_str(&format!(
            "  - {{name: {client}, api_keys_sha256: ['{}']{}}}\n",
            digest(&key(client)),
            policy.map_or_else(String::new, |policy| format!(", subagents: {policy}")),
        ));
    }
    text
}

struct Site {
    fleet: Fleet,
    kindred: Kindred,
}

impl Site {
    fn open(more: &str) -> Self {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(more));
        Self { fleet, kindred }
    }

    fn guarded() -> Self {
        Self::open(&(affinity() + &section("")))
    }

    fn post(&self, headers: &[(&str, &str)]) -> Answer {
        raw::post(
            self.kindred.edge(),
            CHAT,
            headers,
            &chat("hello").to_string(),
        )
    }

    /// A turn of `session` that names `parent`; what the context worker saw of it.
    fn turn(&self, client: &str, session: &str, parent: Option<&str>) -> Recorded {
        let authorization = format!("Bearer {}", key(client));
        let mut headers = vec![("authorization", authorization.as_str())];
        headers.extend((!session.is_empty()).then_some(("x-session-id", session)));
        headers.extend(parent.map(|parent| (PARENT, parent)));
        let before = self.fleet.requests(Role::Context).len();
        let answer = self.post(&headers);
        assert_eq!(
            answer.status,
            200,
            "{client} {session} {parent:?}: {}",
            answer.text()
        );
        let mut seen = self.fleet.requests(Role::Context);
        assert_eq!(seen.len(), before + 1);
        seen.pop().unwrap()
    }

    /// Asserts that naming a parent ends in `outcome` and costs nothing else.
    fn claims(&self, client: &str, session: &str, parent: &str, outcome: &str) -> Recorded {
        let label = format!("outcome=\"{outcome}\"");
        let count = |labels: &[&str]| self.kindred.metric("kindred_parent_claims_total", labels);
        let (before, before_all) = (count(&[&label]), count(&[]));
        let seen = self.turn(client, session, Some(parent));
        assert_eq!(
            count(&[&label]),
            before + 1.0,
            "{client} {session} -> {parent}: {outcome}"
        );
        assert_eq!(count(&[]), before_all + 1.0);
        let followed = (outcome == "authorised").then(|| parent.to_owned());
        assert_eq!(
            affinity_id(&seen),
            followed,
            "{client} {session} -> {parent}"
        );
        seen
    }

    /// Asserts that a dropped claim was told in one line with everybody in it.
    fn told(&self, words: &[&str]) {
        let told = |log: String| {
            let mut lines = log.lines().map(str::to_owned);
            lines.find(|line| words.iter().all(|word| line.contains(word)))
        };
        eventually(&format!("a log line with {words:?}"), || {
            told(self.kindred.log())
        });
    }
}

fn affinity_id(seen: &Recorded) -> Option<String> {
    let mut pairs = seen.headers.iter();
    let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(headers::AFFINITY_ID));
    found.map(|(_, value)| value.clone())
}

fn conversation_id(seen: &Recorded) -> String {
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    let id = &body["conversation_params"]["conversation_id"];
    id.as_str().unwrap_or_default().to_owned()
}

#[test]
fn without_a_gateway_section_the_parent_is_trusted_and_one_warning_says_so() {
    let site = Site::open(&affinity());
    let headers = [
        ("x-session-id", "child"),
        (PARENT, "parent"),
        ("x-trtllm-subagent-affinity-id", "forged"),
    ];
    assert_eq!(site.post(&headers).status, 200);
    let seen = &site.fleet.requests(Role::Context)[0];
    assert_eq!(
        (affinity_id(seen).as_deref(), conversation_id(seen).as_str()),
        (Some("parent"), "child")
    );
    assert_eq!(
        site.kindred
            .metric("kindred_parent_claims_total", &["outcome=\"trusted\""]),
        1.0
    );
    assert_eq!(
        site.kindred.metric(
            "kindred_pruned_headers_total",
            &["x-trtllm-subagent-affinity-id"]
        ),
        1.0
    );
    let log = site.kindred.log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(
        warnings
            .iter()
            .filter(|line| line.contains(WARNING))
            .count(),
        1,
        "{warnings:?}"
    );
    assert_eq!(log.matches(WARNING).count(), 1);
}

#[test]
fn with_a_gateway_section_nothing_is_said_of_trust() {
    assert!(!Site::guarded().kindred.log().contains(WARNING));
}

#[test]
fn a_parent_header_without_a_key_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edge.yaml");
    let without = fleet::yaml(
        &["127.0.0.1:9".parse().unwrap()],
        &["127.0.0.1:10".parse().unwrap()],
        &format!("conversation_affinity_header_for_subagents: {PARENT}"),
    );
    for yaml in [
        without.clone(),
        format!("{without}internal_request_auth_key: null\n"),
        format!("{without}internal_request_auth_key: ''\n"),
        format!("{without}{}", section("")),
    ] {
        std::fs::write(&file, &yaml).unwrap();
        for verb in ["serve", "check"] {
            let (code, out, errors) = run(&[verb, "--config", file.to_str().unwrap()], "");
            assert_eq!(code, 2, "{verb}: {out}{errors}");
            assert_names(&errors, &file, "internal_request_auth_key");
        }
    }
    let named = "conversation_affinity_header_for_subagents";
    std::fs::write(&file, without).unwrap();
    let (_, _, errors) = run(&["serve", "--config", file.to_str().unwrap()], "");
    assert!(
        errors.contains("Subagent affinity requires internal_request_auth_key"),
        "{errors}"
    );
    assert_names(&errors, &file, named);
}

/// Asserts that a message names the file, a line and the key.
fn assert_names(message: &str, file: &Path, key: &str) {
    let place = message
        .split_once(file.to_str().unwrap())
        .map(|(_, rest)| rest);
    let rest = place.unwrap_or_else(|| panic!("no file in {message}"));
    assert!(
        rest.starts_with(':') && rest[1..].starts_with(|c: char| c.is_ascii_digit()),
        "{message}"
    );
    assert!(message.contains(key), "{message}");
}
