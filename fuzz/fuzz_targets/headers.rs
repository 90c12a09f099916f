//! Requests of one client, one header field a line, an empty line between two of them; a line that
//! begins with `{` is a body. After pruning nothing internal is left, and whoever is followed may be.
#![no_main]

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::LazyLock,
};

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use kindred::{
    config::Config,
    gateway::{Gateway, Presented, delegation},
    wire::{
        body::BodyView,
        conversation,
        headers::{self, PARENT_HEADERS},
    },
};
use libfuzzer_sys::fuzz_target;

/// The configured parent header, and what is pruned besides where there is a `gateway` section.
const OWN: [&str; 2] = ["x-team-parent", "x-team"];
/// The bound of the boundaries' session ids.
const LONGEST: usize = 24;

const EDGE: &str = "
context_servers: {urls: [localhost:1]}
generation_servers: {urls: [localhost:2]}
internal_request_auth_key: the-key-of-the-fuzzed-boundary
conversation_affinity_header_for_subagents: X-Team-Parent
limits: {max_session_id: 24}
";
/// Small tables are made fast, and no input fills them.
const GATEWAY: &str = "prune_headers: [x-team], max_sessions: 2048";
const SOURCES: &str =
    "[x-parent-session-id, {body: metadata.parent}, x-team-parent, {body: parent}]";

/// What the claims of a boundary are held against.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    /// No `gateway` section.
    Trusting,
    Owned,
    Declared,
    Delegated,
}

static BOUNDARIES: LazyLock<[(Policy, Config); 5]> = LazyLock::new(|| {
    let gateway = |policy: &str, more: &str| {
        boundary(&format!(
            "gateway: {{anonymous: {policy}, {GATEWAY}, {more}}}"
        ))
    };
    let nested = "affinity: {nested: root}\n";
    let root = format!("{nested}gateway: {{anonymous: owned, {GATEWAY}}}");
    let sources = format!("parent_sources: {SOURCES}");
    [
        (Policy::Trusting, boundary("")),
        (Policy::Owned, boundary(&root)),
        (Policy::Owned, gateway("owned", &sources)),
        (Policy::Declared, gateway("declared", &sources)),
        (
            Policy::Delegated,
            gateway("delegated", "delegation: {on_answers: true}"),
        ),
    ]
});

fn boundary(more: &str) -> Config {
    let text = format!("{EDGE}{more}");
    Config::from_yaml(&text, Path::new("/fuzzed.yaml")).expect("a configuration")
}

fuzz_target!(|bytes: &[u8]| {
    let requests = requests(bytes);
    for (policy, config) in BOUNDARIES.iter() {
        let mut boundary = Boundary {
            policy: *policy,
            gateway: Gateway::new(config),
            seen: HashSet::new(),
            parents: HashMap::new(),
            tokens: HashMap::new(),
        };
        for (headers, body) in &requests {
            boundary.ask(headers.clone(), body);
        }
    }
});

fn requests(bytes: &[u8]) -> Vec<(HeaderMap, &[u8])> {
    let mut requests = vec![(HeaderMap::new(), &b"{}"[..])];
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let Some((headers, body)) = requests.last_mut() else {
            break;
        };
        if line.is_empty() {
            requests.push((HeaderMap::new(), b"{}"));
        } else if line.starts_with(b"{") {
            *body = line;
        } else {
            let at = line.iter().position(|byte| *byte == b':');
            let (name, value) = line.split_at(at.unwrap_or(line.len()));
            let value = value.get(1..).unwrap_or_default();
            let name = HeaderName::from_bytes(name.trim_ascii());
            let value = HeaderValue::from_bytes(value.trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
    }
    requests
}

/// A boundary, and what has gone through it.
struct Boundary {
    policy: Policy,
    gateway: Gateway,
    /// Sessions that were let through, as a claim to them is written.
    seen: HashSet<String>,
    /// Whom each sub-agent follows.
    parents: HashMap<String, String>,
    /// The last token of each session.
    tokens: HashMap<String, String>,
}

impl Boundary {
    fn ask(&mut self, mut map: HeaderMap, body: &[u8]) {
        let presented = self.present_token(&mut map);
        let Ok(admission) = self.gateway.admit(&Presented::headers(&map)) else {
            return;
        };
        for name in &admission.remove {
            map.remove(name);
        }
        if let Some(connection) = &admission.connection {
            map.insert(CONNECTION, connection.clone());
        }
        nothing_internal(&map, self.policy);

        let Ok(view) = BodyView::parse(body) else {
            return;
        };
        let Ok(session) = conversation::resolve(&map, &view) else {
            return;
        };
        let in_body = view.present(conversation::PARAMS).is_some();
        if let Some(id) = &session {
            assert_eq!(headers::strip(id), id);
            assert!(!id.is_empty());
            if in_body && self.gateway.check_session_id(id, "body").is_err() {
                return;
            }
        }
        let Ok(family) = self
            .gateway
            .authorise(&admission, &view, session.as_deref())
        else {
            return;
        };
        let session = session.map(|id| if in_body { as_header(&id) } else { id });
        if let Some(parent) = &family.parent {
            self.may_be_followed(parent, session.as_deref(), presented.as_deref());
        }
        if let Some(session) = session {
            match family.parent {
                Some(parent) => self.parents.insert(session.clone(), parent),
                None => self.parents.remove(&session),
            };
            if let Some(token) = family.delegation {
                self.tokens.insert(session.clone(), token);
            }
            self.seen.insert(session);
        }
    }

    /// Who fuzzes cannot make tokens: a session's id stands for its token, and is the answer.
    fn present_token(&self, map: &mut HeaderMap) -> Option<String> {
        let named = headers::latin1(map.get(delegation::HEADER)?.as_bytes());
        let token = self.tokens.get(&named)?;
        map.insert(delegation::HEADER, token.parse().expect("a header value"));
        Some(named)
    }

    fn may_be_followed(&self, parent: &str, session: Option<&str>, presented: Option<&str>) {
        assert!(!parent.is_empty());
        assert_eq!(headers::strip(parent), parent);
        assert!(!parent.chars().any(|c| c.is_ascii_control()));
        let bytes = headers::latin1_bytes(parent).expect("latin-1 text");
        assert!(bytes.len() <= LONGEST);
        HeaderValue::from_bytes(&bytes).expect("the one trusted header");
        if self.policy == Policy::Trusting {
            return;
        }
        assert_ne!(session, Some(parent));
        assert!(
            !self.parents.contains_key(parent),
            "{parent} is a sub-agent"
        );
        let is_root = || self.parents.values().any(|root| root == parent);
        match self.policy {
            Policy::Owned => assert!(self.seen.contains(parent) || is_root(), "{parent}"),
            Policy::Delegated => assert_eq!(presented, Some(parent)),
            Policy::Declared | Policy::Trusting => {}
        }
    }
}

/// An id of a body, as a header says it.
fn as_header(id: &str) -> String {
    headers::strip(&headers::latin1(id.as_bytes())).to_owned()
}

fn nothing_internal(map: &HeaderMap, policy: Policy) {
    let own = OWN
        .iter()
        .take(if policy == Policy::Trusting { 1 } else { 2 });
    let internal = |name: &[u8]| {
        let mut named = PARENT_HEADERS.iter().chain(own.clone());
        headers::is_internal(name) || named.any(|known| headers::is_alike(name, known.as_bytes()))
    };
    assert!(!map.keys().any(|name| internal(name.as_str().as_bytes())));
    let options = map.get_all(CONNECTION).iter();
    let mut options = options.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    assert!(!options.any(|option| internal(option.trim_ascii())));
}
