//! `gateway`: who may come in, and what of theirs is removed.
//!
//! Leaving something out must never open a door: no policy for requests without a key means that
//! they are refused. A wrong digest may be the key itself, so it is never repeated.

use crate::config::words::shown;
use std::collections::HashSet;

use crate::config::{
    ClientConfig, GatewayConfig, InstanceNames, OwnRoute, SessionIsolation, SubagentPolicy,
    own::{
        claims, client_limits::client_limits, identity, name as own_name, places::places, sessions,
    },
    raw::{self, Field, Section, node::Value},
    report::{Place, Report},
    secret::{Secrets, Taken},
};

const POLICIES: [(&str, SubagentPolicy); 4] = [
    ("none", SubagentPolicy::None),
    ("owned", SubagentPolicy::Owned),
    ("declared", SubagentPolicy::Declared),
    ("delegated", SubagentPolicy::Delegated),
];

const ISOLATIONS: [(&str, SessionIsolation); 2] = [
    ("per_client", SessionIsolation::PerClient),
    ("shared", SessionIsolation::Shared),
];

const INSTANCE_NAMES: [(&str, InstanceNames); 2] = [
    ("aliases", InstanceNames::Aliases),
    ("addresses", InstanceNames::Addresses),
];

/// Headers that a request cannot be served, or its client known, without.
const NEEDED: [&str; 7] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
];

/// `gateway`.
pub(crate) fn gateway(
    field: Field,
    inherited: &Taken,
    secrets: &Secrets<'_>,
    report: &mut Report,
) -> GatewayConfig {
    let raw = raw::Gateway::closed(field, report);
    let at = raw.at.clone();
    let anonymous = raw
        .anonymous
        .and_then(|field| field.choice(report, &POLICIES));
    let clients = raw
        .clients
        .map(|field| clients(field, report))
        .unwrap_or_default();
    if clients.is_empty() && anonymous.is_none() {
        report.warn(
            &raw.at,
            "lets nobody in: every request is answered 401; name clients, or say with `anonymous` \
             what requests without a key may do",
        );
    }
    let own_ttl = raw.owned_ttl.filter(|field| !field.is_null());
    let delegation = claims::delegation(raw.delegation, secrets, report);
    let delegated = clients.iter().map(|client| client.subagents);
    let mut delegated = delegated.chain(anonymous);
    let has_key = !delegation.keys.is_empty() || !matches!(inherited, Taken::Absent);
    if delegated.any(|policy| policy == SubagentPolicy::Delegated) && !has_key {
        report.error(
            &raw.at.missing("delegation"),
            "is missing, and there is no internal_request_auth_key: `subagents: delegated` needs a \
             secret that its tokens are made with; give delegation.key",
        );
    }
    let default = GatewayConfig::default();
    let has_file = raw.keys_file.as_ref().is_some_and(|field| !field.is_null());
    let keys_file = identity::keys_file(raw.keys_file, &clients, secrets.folder, report);
    let tokens = raw.jwt.as_ref().is_some_and(|field| !field.is_null());
    let jwt = identity::jwt(raw.jwt, secrets.folder, report);
    credentials(&at, &clients, (has_file, tokens), report);
    if anonymous.is_some() {
        report.warn(
            &at.missing("anonymous"),
            "lets requests in that do not say who they are; remove it unless that is meant",
        );
    }
    let config = GatewayConfig {
        owned_ttl: own_ttl
            .and_then(|field| field.duration(report, claims::OWNED_TTL))
            .unwrap_or(default.owned_ttl),
        parent_sources: raw
            .parent_sources
            .filter(|field| !field.is_null())
            .map(|field| claims::sources(field, report)),
        delegation,
        session_isolation: raw
            .session_isolation
            .filter(|field| !field.is_null())
            .and_then(|field| field.choice(report, &ISOLATIONS)),
        namespace_conversation_ids: raw
            .namespace_conversation_ids
            .and_then(|field| field.boolean(report))
            .unwrap_or(false),
        max_table_share: share(raw.max_table_share, report),
        anonymous,
        anonymous_max_in_flight: places(raw.anonymous_max_in_flight, report),
        anonymous_limits: client_limits(raw.anonymous_limits, report),
        clients,
        prune_headers: raw
            .prune_headers
            .map(|field| prune_headers(field, report))
            .unwrap_or_default(),
        max_sessions: sessions(raw.max_sessions, default.max_sessions, report),
        keys_file,
        jwt,
        failed_attempts: identity::failed_attempts(raw.failed_attempts, report),
        open_routes: open_routes(raw.open_routes, report),
        cluster_info: raw
            .cluster_info
            .and_then(|field| field.choice(report, &INSTANCE_NAMES))
            .unwrap_or_default(),
    };
    if config.namespace_conversation_ids && !config.isolates() {
        report.warn(
            &at.missing("namespace_conversation_ids"),
            "has no effect where equal ids are one session; set session_isolation: per_client",
        );
    }
    config
}

/// Whoever watches the edge has no key, and health and version tell nothing of the fleets.
fn open_routes(field: Option<Field>, report: &mut Report) -> Vec<OwnRoute> {
    let Some(field) = field else {
        return vec![OwnRoute::Health, OwnRoute::Version];
    };
    let mut routes = Vec::new();
    for item in field.list(report) {
        if let Some(route) = item.choice(report, &OwnRoute::ALL)
            && !routes.contains(&route)
        {
            routes.push(route);
        }
    }
    routes
}

fn clients(field: Field, report: &mut Report) -> Vec<ClientConfig> {
    let mut names = HashSet::new();
    let mut digests = HashSet::new();
    let (mut subjects, mut certificates) = (HashSet::new(), HashSet::new());
    let mut clients = Vec::new();
    for item in field.list(report) {
        let raw = raw::Client::closed(item, report);
        let name = client_name(raw.name, &raw.at, &mut names, report);
        let api_keys = match raw.api_keys_sha256 {
            Some(field) => api_keys(field, &mut digests, report),
            None => Vec::new(),
        };
        let subagents = raw
            .subagents
            .and_then(|field| field.choice(report, &POLICIES));
        clients.push(ClientConfig {
            name,
            api_keys,
            subjects: identity::names(raw.subjects, &mut subjects, report),
            certificate_names: identity::names(raw.certificate_names, &mut certificates, report),
            subagents: subagents.unwrap_or_default(),
            max_in_flight: places(raw.max_in_flight, report),
            limits: client_limits(raw.limits, report),
        });
    }
    clients
}

/// `max_table_share`: above 0, at most 1.
fn share(field: Option<Field>, report: &mut Report) -> Option<f64> {
    let field = field.filter(|field| !field.is_null())?;
    let share = field.number(report, 0.0)?;
    if share > 0.0 && share <= 1.0 {
        return Some(share);
    }
    let what = format!("is {share}; it must be above 0 and at most 1, such as 0.5");
    report.error(&field.at, what);
    None
}

/// Whether every client can say who it is. Without a file of keys, one that cannot is a mistake; with
/// one, its keys may come later.
fn credentials(
    at: &Place,
    clients: &[ClientConfig],
    (keys_file, jwt): (bool, bool),
    report: &mut Report,
) {
    for (index, client) in clients.iter().enumerate() {
        let place = at.missing("clients").item(index, None);
        if !jwt && !client.subjects.is_empty() {
            let what = "has no effect without gateway.jwt, which says whose tokens are believed";
            report.error(&place.missing("subjects"), what);
        }
        let other = !client.subjects.is_empty() || !client.certificate_names.is_empty();
        if client.api_keys.is_empty() && !other && !keys_file {
            let what = format!(
                "is missing, as are subjects, certificate_names and gateway.keys_file: the client \
                 cannot say who it is; {DIGEST}"
            );
            report.error(&place.missing("api_keys_sha256"), what);
        }
    }
}

fn client_name(
    field: Option<Field>,
    at: &Place,
    names: &mut HashSet<String>,
    report: &mut Report,
) -> String {
    let Some(field) = field else {
        report.error(&at.missing("name"), "is missing; name the client");
        return String::new();
    };
    let name = own_name(&field, report).unwrap_or_default();
    if !name.is_empty() && !names.insert(name.clone()) {
        report.error(
            &field.at,
            "is the name of an earlier client too; rename one",
        );
    }
    name
}

const DIGEST: &str = "list the SHA-256 of each key as 64 hex digits: `printf %s KEY | sha256sum`";

fn api_keys(field: Field, seen: &mut HashSet<[u8; 32]>, report: &mut Report) -> Vec<[u8; 32]> {
    let at = field.at.clone();
    let before = report.errors();
    let items = field.list(report);
    if items.is_empty() && report.errors() == before {
        report.error(&at, format!("is empty; {DIGEST}"));
    }
    let mut digests = Vec::new();
    for item in items {
        // A wrong entry may be the key itself, so it is never repeated.
        let digest = match &item.value {
            Value::Text(text) => digest(text.trim()),
            _ => None,
        };
        match digest {
            Some(digest) if seen.insert(digest) => digests.push(digest),
            Some(_) => report.error(&item.at, "is listed twice; a key belongs to one client"),
            None => report.error(
                &item.at,
                format!("is not a SHA-256 digest; {DIGEST} (in quotes if it is all digits)"),
            ),
        }
    }
    digests
}

/// 64 hex digits.
pub(crate) fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect();
    let digits = digits.filter(|digits| digits.len() == 64)?;
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
    }
    Some(digest)
}

fn prune_headers(field: Field, report: &mut Report) -> Vec<String> {
    let mut headers: Vec<String> = Vec::new();
    for item in field.list(report) {
        let Some(text) = item.text(report) else {
            continue;
        };
        let header = text.trim().to_lowercase();
        if http::HeaderName::from_bytes(header.as_bytes()).is_err() {
            let what = format!(
                "is {}, no name of a header; write one such as x-team",
                shown(text)
            );
            report.error(&item.at, what);
        } else if NEEDED.contains(&header.as_str()) {
            let what = format!("is {header}, without which no request can be served; remove it");
            report.error(&item.at, what);
        } else if !headers.contains(&header) {
            headers.push(header);
        }
    }
    headers
}
