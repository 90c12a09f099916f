//! Who reaches a worker filter with no edge in front: whatever is sent, the worker sees of each
//! internal header the one copy that the filter verified, or none, and the body that was sent.
//!
//! `straight.jsonl` has a request a line, with what becomes of it. Besides, the headers and trailers
//! of `requests.jsonl` are sent alone, before and behind signatures that are genuine.

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{
        Role,
        disagg::Endpoint,
        headers::{AFFINITY_AUTH, AFFINITY_ID, DISAGG_AUTH},
        signature::{AffinityClaim, KvTransfer, SigningKey},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    KEY, RANKS,
    lines::{self, Line, Protocol, Request},
    support::{
        Kindred,
        fleet::{self, Fleet, Worker},
        guarded, raw,
        stand_in::Tap,
    },
    unclean::{self, Trusted},
};

const PARENT: &str = "parent";
const ROLES: [Role; 2] = [Role::Context, Role::Generation];

/// One line of `straight.jsonl`. In its headers `{auth}` and `{transfer}` stand for the signatures
/// that are genuine for its body and the parent `parent`, `{auth of another}` for one of another
/// session's request, `{auth of the other role}` for one of another kind of worker.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Straight {
    name: String,
    #[serde(default)]
    generation: bool,
    #[serde(default = "lines::chat_path")]
    path: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    trailers: Vec<(String, String)>,
    /// Members that are added to the body, and one that it loses for them.
    add: Option<String>,
    without: Option<String>,
    /// Cannot be written in HTTP/2.
    #[serde(default)]
    http1: bool,
    /// Whether the worker gets it, and if so whether with the parent.
    reaches: bool,
    #[serde(default)]
    parent: bool,
}

/// Filters of their own process before recording workers, and every byte on its way between them.
struct Site {
    fleet: Fleet,
    taps: Vec<Tap>,
    filters: Kindred,
    /// What a context worker hands over.
    hand_over: Value,
}

impl Site {
    fn open() -> Self {
        let fleet = fleet::start(1, 1, |config| config.engine.ranks = RANKS);
        let taps: Vec<_> = fleet
            .workers
            .iter()
            .map(|worker| Tap::before(worker.address))
            .collect();
        let tapped = fleet.workers.iter().zip(&taps);
        let tapped = tapped.map(|(worker, tap)| (worker.name.as_str(), tap.address, worker.role));
        let filters = guarded::filters_before(tapped, KEY, RANKS);
        let context = fleet.of(Role::Context).next().unwrap().address;
        let body = context_body().to_string();
        let answer = raw::post(context, "/v1/chat/completions", &[], &body).json();
        let hand_over = answer["choices"][0]["disaggregated_params"].clone();
        Self {
            fleet,
            taps,
            filters,
            hand_over,
        }
    }

    fn worker(&self, role: Role) -> (&Worker, &Tap) {
        let mut tapped = self.fleet.workers.iter().zip(&self.taps);
        tapped.find(|(worker, _)| worker.role == role).unwrap()
    }

    fn body(&self, role: Role) -> Value {
        let mut body = context_body();
        if role == Role::Generation {
            body["disaggregated_params"] = self.hand_over.clone();
            body["disaggregated_params"]["request_type"] = json!("generation_only");
        }
        body
    }

    /// Sends a request straight to the filter of a role; what is wrong with what became of it, and
    /// whether it reached the worker.
    fn send(&self, protocol: Protocol, request: &Request, trusted: Trusted) -> (Vec<String>, bool) {
        let (worker, tap) = self.worker(trusted.role);
        worker.recorder.clear();
        tap.take_bytes();
        let filter = guarded::addresses(&self.filters, trusted.role)[0];
        let answer = request.send(protocol, filter);
        let (seen, wire) = (worker.requests(), tap.take_bytes());
        let mut wrong = Vec::new();
        if wire.is_empty() && ![0, 400].contains(&answer.status) {
            wrong.push(format!("answered {}: {}", answer.status, answer.text()));
        }
        for seen in &seen {
            wrong.extend(misplaced(seen, request, trusted));
        }
        // A trailer is a line that the worker does not note, as is all on paths that it has not.
        let text = String::from_utf8_lossy(&wire);
        let lines = text.split("\r\n").filter_map(|line| line.split_once(':'));
        let written = lines.filter(|(name, _)| unclean::is_a_workers_secret(name));
        let written = written.count();
        let noted: usize = seen.iter().map(|seen| secrets(seen).count()).sum();
        let checked = Endpoint::of_path(&request.path).is_some();
        if written != noted || seen.len() > 1 || (checked && seen.is_empty() != wire.is_empty()) {
            wrong.push(format!("{seen:?} of {text}"));
        }
        (wrong, !wire.is_empty())
    }
}

/// What is wrong with a request that reached the worker.
fn misplaced(seen: &Recorded, sent: &Request, trusted: Trusted) -> Vec<String> {
    let mut wrong = unclean::unverified(seen, trusted);
    if seen.body_sha256 != hex(&Sha256::digest(&sent.body)) {
        wrong.push(format!("another body: {}", seen.body));
    }
    wrong
}

fn secrets(seen: &Recorded) -> impl Iterator<Item = &str> {
    let names = seen.headers.iter().map(|(name, _)| name.as_str());
    names.filter(|name| unclean::is_a_workers_secret(name))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn context_body() -> Value {
    json!({
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "conversation_params": {"conversation_id": "child"},
        "disaggregated_params": {
            "request_type": "context_only",
            "disagg_request_id": (1_u64 << 40) + 7,
            "schedule_style": 0,
        },
    })
}

fn affinity(role: Role, session: &str, body: &Value) -> String {
    let params = &body["disaggregated_params"];
    let claim = AffinityClaim {
        role,
        model: "m",
        conversation_id: Some(session),
        affinity_id: PARENT,
        request_type: params["request_type"].as_str(),
        disagg_request_id: params["disagg_request_id"].as_u64().map(Into::into),
    };
    SigningKey::new(KEY).unwrap().sign_affinity(&claim)
}

fn transfer(body: &Value) -> String {
    let raw = |name: &str| body["disaggregated_params"][name].to_string();
    let (state, endpoint) = (raw("encoded_opaque_state"), raw("ctx_info_endpoint"));
    let transfer = KvTransfer::new(Some(&state), Some(&endpoint)).unwrap();
    SigningKey::new(KEY).unwrap().sign_disagg(&transfer)
}

impl Straight {
    fn role(&self) -> Role {
        if self.generation {
            Role::Generation
        } else {
            Role::Context
        }
    }

    fn request(&self, site: &Site) -> Request {
        let role = self.role();
        let other = if self.generation {
            Role::Context
        } else {
            Role::Generation
        };
        let mut body = site.body(role);
        let signed = [
            ("{auth}", affinity(role, "child", &body)),
            ("{transfer}", transfer(&body)),
            ("{auth of another}", affinity(role, "another", &body)),
            ("{auth of the other role}", affinity(other, "child", &body)),
        ];
        let filled = |text: &String| {
            let signed = signed.iter();
            signed.fold(text.clone(), |text, (name, value)| {
                text.replace(name, value)
            })
        };
        let headers = self.headers.iter();
        if let Some(name) = &self.without {
            body.as_object_mut().unwrap().remove(name);
        }
        let mut text = body.to_string();
        if let Some(add) = &self.add {
            text.insert_str(1, &format!("{add},"));
        }
        Request {
            path: self.path.clone(),
            headers: headers
                .map(|(name, value)| (name.clone(), filled(value)))
                .collect(),
            trailers: self.trailers.clone(),
            body: text,
        }
    }
}

fn assert_nothing(wrong: Vec<String>) {
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn only_what_was_verified_arrives(protocol: Protocol) {
    let site = Site::open();
    let mut wrong = Vec::new();
    for line in lines::parse::<Straight>(include_str!("straight.jsonl")) {
        if protocol == Protocol::H2c && line.http1 {
            continue;
        }
        let trusted = Trusted {
            role: line.role(),
            parent: line.parent.then_some(PARENT),
            handed_over: line.generation,
        };
        let (found, reached) = site.send(protocol, &line.request(&site), trusted);
        let all = found.into_iter();
        wrong.extend(all.map(|what| format!("{}: {what}", line.name)));
        if reached != line.reaches {
            wrong.push(format!("{}: reached {reached}", line.name));
        }
    }
    assert_nothing(wrong);
    site.filters.assert_idle();
}

#[test]
fn only_what_a_filter_verified_arrives_over_http1() {
    only_what_was_verified_arrives(Protocol::Http1);
}

#[test]
fn only_what_a_filter_verified_arrives_over_h2c() {
    only_what_was_verified_arrives(Protocol::H2c);
}

/// Where the genuine signatures stand among the hostile headers.
#[derive(Debug, Clone, Copy)]
enum Genuine {
    Absent,
    First,
    Last,
}

fn dressed(site: &Site, line: &Line, role: Role, genuine: Genuine) -> Request {
    let mut body = site.body(role);
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let mut signed = vec![
        pair(AFFINITY_ID, PARENT.to_owned()),
        pair(AFFINITY_AUTH, affinity(role, "child", &body)),
    ];
    if role == Role::Generation {
        signed.push(pair(DISAGG_AUTH, transfer(&body)));
    }
    let hostile = line.headers.clone();
    let headers = match genuine {
        Genuine::Absent => hostile,
        Genuine::First => [signed, hostile].concat(),
        Genuine::Last => [hostile, signed].concat(),
    };
    if matches!(genuine, Genuine::Absent) {
        let params = body["disaggregated_params"].as_object_mut().unwrap();
        params.retain(|name, _| name == "request_type" || name == "disagg_request_id");
    }
    Request {
        path: line.path.clone(),
        headers,
        trailers: line.trailers.clone(),
        body: body.to_string(),
    }
}

fn no_header_comes_beside_what_was_verified(protocol: Protocol) {
    let site = Site::open();
    let (mut wrong, mut sent, mut arrived) = (Vec::new(), 0, 0);
    let lines = Line::all().into_iter();
    let lines = lines.filter(|line| line.add.is_none() && line.body.is_none());
    for line in lines.filter(|line| protocol == Protocol::Http1 || !line.http1) {
        for role in ROLES {
            for genuine in [Genuine::Absent, Genuine::First, Genuine::Last] {
                let present = !matches!(genuine, Genuine::Absent);
                let trusted = Trusted {
                    role,
                    parent: present.then_some(PARENT),
                    handed_over: present && role == Role::Generation,
                };
                let request = dressed(&site, &line, role, genuine);
                let (found, reached) = site.send(protocol, &request, trusted);
                let found = found.into_iter();
                wrong.extend(found.map(|what| format!("{}, {genuine:?}: {what}", line.name)));
                sent += 1;
                arrived += usize::from(reached);
            }
        }
    }
    assert_nothing(wrong);
    assert!(
        arrived > sent / 2,
        "only {arrived} of {sent} were looked at"
    );
    site.filters.assert_idle();
}

#[test]
fn no_header_comes_beside_what_a_filter_verified_over_http1() {
    no_header_comes_beside_what_was_verified(Protocol::Http1);
}

#[test]
fn no_header_comes_beside_what_a_filter_verified_over_h2c() {
    no_header_comes_beside_what_was_verified(Protocol::H2c);
}
