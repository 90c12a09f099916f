//! Affinity: the parent header of sub-agents, its scope, what they need, and when a place is full.
//!
//! The header's name must be one that the gateway can take from clients without taking something
//! else that a request needs, and it is never accepted without the key that signs what it says.

use crate::config::words::shown;
use crate::config::{
    AffinityConfig, AffinityScope, Nested, OverflowConfig,
    raw::{self, Field, Section},
    report::{Place, Report},
    secret::Taken,
};
use crate::wire::headers::{CONVERSATION_ID_HEADERS, is_internal};

const SCOPES: [(&str, AffinityScope); 2] = [
    ("context", AffinityScope::Context),
    ("both", AffinityScope::Both),
];

const NESTED: [(&str, Nested); 2] = [("refuse", Nested::Refuse), ("root", Nested::Root)];

/// Headers that belong to the connection or to the request as such.
const HTTP: [&str; 18] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Reads the two keys; `gateway` says whether the file has that section.
pub(super) fn read(
    file: &mut raw::File,
    key: &Taken,
    gateway: bool,
    report: &mut Report,
) -> AffinityConfig {
    let header = file.conversation_affinity_header_for_subagents.take();
    let header = header.filter(|field| !field.is_null());
    let at = header.as_ref().map(|field| field.at.clone());
    let parent_header = header.and_then(|field| parent_header(&field, report));
    let scope = file.subagent_affinity_scope.take();
    let scope_at = scope.as_ref().map(|field| field.at.clone());
    let scope = scope
        .and_then(|field| field.choice(report, &SCOPES))
        .unwrap_or_default();
    if let (Some(at), Some(_)) = (&at, &parent_header) {
        needs(at, key, gateway, report);
    } else if let Some(scope_at) = scope_at.filter(|_| scope != AffinityScope::Context) {
        report.warn(
            &scope_at,
            "has no effect without conversation_affinity_header_for_subagents",
        );
    }
    let own = file.affinity.take();
    let own = own.map(|field| raw::Affinity::closed(field, report));
    let own = own.unwrap_or_default();
    let nested = own.nested.filter(|field| !field.is_null());
    AffinityConfig {
        parent_header,
        scope,
        nested: nested
            .and_then(|field| field.choice(report, &NESTED))
            .unwrap_or_default(),
        overflow: overflow(own.overflow, report),
    }
}

/// `affinity.overflow`.
fn overflow(field: Option<Field>, report: &mut Report) -> OverflowConfig {
    let raw = field
        .map(|field| raw::Overflow::closed(field, report))
        .unwrap_or_default();
    let mut most = |field: Option<Field>| {
        let field = field.filter(|field| !field.is_null())?;
        field.integer(report, 1..=i64::MAX)?.try_into().ok()
    };
    OverflowConfig {
        max_in_flight: most(raw.max_in_flight),
        max_tokens: most(raw.max_tokens),
    }
}

/// What the header at `at` needs: a key, and somebody who vouches for it.
fn needs(at: &Place, key: &Taken, gateway: bool, report: &mut Report) {
    if matches!(key, Taken::Absent) {
        report.error(
            at,
            "Subagent affinity requires internal_request_auth_key: without it a worker cannot tell \
             an edge's affinity header from a forged one; set internal_request_auth_key here and in \
             every worker, or remove this key",
        );
    }
    if !gateway {
        report.warn(
            &Place::file(),
            "has no `gateway` section: the parent header is trusted as it arrives, so whoever \
             reaches this port may name any parent; add `gateway`, or let only trusted callers \
             reach it",
        );
    }
}

/// The name of a header in which a parent is named, lower-case.
pub(crate) fn parent_header(field: &Field, report: &mut Report) -> Option<String> {
    let text = field.text(report)?;
    let name = text.trim().to_lowercase();
    if name.is_empty() {
        return None;
    }
    let why = if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        "which is no name of a header (letters, digits and dashes)"
    } else if is_internal(name.as_bytes()) {
        "an internal header that no client may send"
    } else if CONVERSATION_ID_HEADERS.contains(&name.as_str()) {
        "a header that names the session itself, not its parent"
    } else if HTTP.contains(&name.as_str()) {
        "a header that HTTP itself needs"
    } else {
        return Some(name);
    };
    let what = format!(
        "is {}, {why}; use a name of its own, such as X-Dynamo-Parent-Session-ID",
        shown(text)
    );
    report.error(&field.at, what);
    None
}
