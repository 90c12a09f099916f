//! `gateway.parent_sources`, `gateway.delegation`: how a parent is named, and what lets it be.

use std::{ops::RangeInclusive, time::Duration};

use crate::config::{
    DelegationConfig, ParentSource,
    raw::{self, Field, Section, node::Value},
    report::Report,
    secret::{Forms, Secrets},
    upstream,
    words::shown,
};

/// Bounds of `owned_ttl`.
pub(super) const OWNED_TTL: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 3600);
/// Bounds of `delegation.ttl`: a token cannot be taken back, so it does not live long.
const TOKEN_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Sources at most, and names that lead to a field of the body.
const MOST_SOURCES: usize = 16;
const MOST_NAMES: usize = 3;

/// The places in which a parent may be named, in order.
pub(super) fn sources(field: Field, report: &mut Report) -> Vec<ParentSource> {
    let at = field.at.clone();
    let items = field.list(report);
    if items.len() > MOST_SOURCES {
        let what = format!(
            "has {} places; at most {MOST_SOURCES} are asked",
            items.len()
        );
        report.error(&at, what);
        return Vec::new();
    }
    let mut sources = Vec::new();
    for item in items {
        if let Some(source) = source(item, report)
            && !sources.contains(&source)
        {
            sources.push(source);
        }
    }
    sources
}

fn source(item: Field, report: &mut Report) -> Option<ParentSource> {
    if !matches!(item.value, Value::Map(_)) {
        return upstream::parent_header(&item, report).map(ParentSource::Header);
    }
    let at = item.at.clone();
    let Some(field) = raw::BodySource::closed(item, report).body else {
        report.error(
            &at.missing("body"),
            "is missing; write the name of a header, or {body: metadata.parent_session_id}",
        );
        return None;
    };
    let text = field.text(report)?;
    let names: Vec<String> = text.split('.').map(str::to_owned).collect();
    if names.len() <= MOST_NAMES && names.iter().all(|name| !name.trim().is_empty()) {
        return Some(ParentSource::Body(names));
    }
    let what = format!(
        "is {}; it must be 1 to {MOST_NAMES} names of members with dots between, such as \
         metadata.parent_session_id",
        shown(text)
    );
    report.error(&field.at, what);
    None
}

/// `delegation`.
pub(super) fn delegation(
    field: Option<Field>,
    secrets: &Secrets<'_>,
    report: &mut Report,
) -> DelegationConfig {
    let field = field.filter(|field| !field.is_null());
    let raw = field.map(|field| raw::Delegation::closed(field, report));
    let raw = raw.unwrap_or_default();
    let forms = Forms {
        inline: raw.key,
        file: raw.key_file,
        list: raw.keys,
    };
    let default = DelegationConfig::default();
    let ttl = raw.ttl.and_then(|field| field.duration(report, TOKEN_TTL));
    let on_answers = raw.on_answers.and_then(|field| field.boolean(report));
    DelegationConfig {
        keys: secrets.take(forms, report).given(),
        ttl: ttl.unwrap_or(default.ttl),
        on_answers: on_answers.unwrap_or(default.on_answers),
    }
}
