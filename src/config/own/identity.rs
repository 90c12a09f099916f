//! `gateway.keys_file`, `gateway.jwt`, `gateway.failed_attempts`, and by what tokens and certificates
//! the clients go.
//!
//! Files are read here, so that a start or a reload with a bad one fails as a whole. A name belongs to
//! one client: two that claim the same subject are an error, never a matter of order.

use std::{collections::HashSet, ops::RangeInclusive, path::Path, sync::Arc, time::Duration};

use jsonwebtoken::Algorithm;

use crate::{
    config::{
        ClientConfig,
        identity::{FailedAttempts, FileKeys, JwksSource, JwksUrl, JwtConfig, KeysFile},
        keys_file,
        raw::{self, Field, Section, node::Value},
        report::{Place, Report},
        words::shown,
    },
    wire::jwks::{ALGORITHMS, KeySet},
};

const LEEWAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(600);
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
const MIN_REFRESH: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
const PER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// `keys_file`.
pub(super) fn keys_file(
    field: Option<Field>,
    clients: &[ClientConfig],
    folder: &Path,
    report: &mut Report,
) -> Option<KeysFile> {
    let field = field.filter(|field| !field.is_null())?;
    let path = folder.join(field.text(report)?);
    let read = keys_file::read(&path).and_then(|bytes| FileKeys::parse(&bytes, clients));
    match read {
        Ok(keys) => Some(KeysFile { path, keys }),
        Err(what) => {
            report.error(
                &field.at,
                format!("names a file that cannot be used: it {what}"),
            );
            None
        }
    }
}

/// `failed_attempts`: on unless it is `off`.
pub(super) fn failed_attempts(field: Option<Field>, report: &mut Report) -> Option<FailedAttempts> {
    let default = FailedAttempts::default();
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return Some(default);
    };
    // YAML 1.1 reads the word `off` as false.
    match &field.value {
        Value::Text(text) if text.as_str() == "off" => return None,
        Value::Bool(false) => return None,
        _ => {}
    }
    let raw = raw::FailedAttempts::closed(field, report);
    Some(FailedAttempts {
        max: raw
            .max
            .and_then(|field| field.integer(report, 1..=1_000_000))
            .unwrap_or(default.max),
        per: raw
            .per
            .and_then(|field| field.duration(report, PER))
            .unwrap_or(default.per),
    })
}

/// A client's names in tokens or certificates. `seen` are those of the clients before it.
pub(super) fn names(
    field: Option<Field>,
    seen: &mut HashSet<String>,
    report: &mut Report,
) -> Vec<String> {
    let mut names = Vec::new();
    for item in list(field, report) {
        let Some(text) = item.text(report) else {
            continue;
        };
        if text.is_empty() {
            report.error(&item.at, "is empty; write the name as it is presented");
        } else if !seen.insert(text.to_owned()) {
            report.error(&item.at, "is listed twice; a name belongs to one client");
        } else {
            names.push(text.to_owned());
        }
    }
    names
}

fn list(field: Option<Field>, report: &mut Report) -> Vec<Field> {
    let field = field.filter(|field| !field.is_null());
    field.map(|field| field.list(report)).unwrap_or_default()
}

/// `jwt`.
pub(super) fn jwt(field: Option<Field>, folder: &Path, report: &mut Report) -> Option<JwtConfig> {
    let field = field.filter(|field| !field.is_null())?;
    let raw = raw::Jwt::closed(field, report);
    let at = raw.at.clone();
    let algorithms = algorithms(raw.algorithms, report);
    let refresh = raw
        .refresh
        .and_then(|field| field.duration(report, REFRESH));
    let at_least = raw
        .min_refresh
        .and_then(|field| field.duration(report, MIN_REFRESH));
    let file = raw.jwks_file.filter(|field| !field.is_null());
    let url = raw.jwks_url.filter(|field| !field.is_null());
    let keys = match (file, url) {
        (Some(file), None) => key_set(&file, folder, &algorithms, report),
        (None, Some(url)) => self::url(&url, refresh, at_least, report).map(JwksSource::Url),
        (Some(_), Some(url)) => {
            report.error(&url.at, "is given besides jwks_file; keep one");
            None
        }
        (None, None) => {
            let what = "is missing; say where the issuer's public keys are: jwks_file or jwks_url";
            report.error(&at.missing("jwks_file"), what);
            None
        }
    };
    let issuers = needed(raw.issuer, &at, "issuer", report);
    let audiences = needed(raw.audience, &at, "audience", report);
    let leeway = raw.leeway.and_then(|field| field.duration(report, LEEWAY));
    let claim = raw.client_claim.filter(|field| !field.is_null());
    let claim = claim.and_then(|field| field.text(report).map(str::to_owned));
    Some(JwtConfig {
        issuers,
        audiences,
        algorithms,
        leeway: leeway.unwrap_or(Duration::from_secs(60)),
        client_claim: claim.unwrap_or_else(|| "sub".to_owned()),
        keys: keys?,
    })
}

/// One text or a list of them, of which there must be one.
fn needed(field: Option<Field>, at: &Place, name: &str, report: &mut Report) -> Vec<String> {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        let what = "is missing; a token for somebody else must not be good here";
        report.error(&at.missing(name), what);
        return Vec::new();
    };
    if let Value::Text(text) = &field.value
        && !text.is_empty()
    {
        return vec![text.to_string()];
    }
    let place = field.at.clone();
    let items = names(Some(field), &mut HashSet::new(), report);
    if items.is_empty() {
        report.error(
            &place,
            "is empty; a token for somebody else must not be good here",
        );
    }
    items
}

fn algorithms(field: Option<Field>, report: &mut Report) -> Vec<Algorithm> {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec();
    };
    let at = field.at.clone();
    let mut algorithms = Vec::new();
    for item in field.list(report) {
        if let Some(algorithm) = item.choice(report, &ALGORITHMS)
            && !algorithms.contains(&algorithm)
        {
            algorithms.push(algorithm);
        }
    }
    if algorithms.is_empty() {
        report.error(
            &at,
            "names no algorithm; leave it out for all that there are",
        );
    }
    algorithms
}

fn key_set(
    field: &Field,
    folder: &Path,
    algorithms: &[Algorithm],
    report: &mut Report,
) -> Option<JwksSource> {
    let path = folder.join(field.text(report)?);
    let set = keys_file::read(&path).and_then(|bytes| KeySet::parse(&bytes, algorithms));
    match set {
        Ok(set) => Some(JwksSource::File {
            path,
            set: Arc::new(set),
        }),
        Err(what) => {
            report.error(
                &field.at,
                format!("names a file that cannot be used: it {what}"),
            );
            None
        }
    }
}

fn url(
    field: &Field,
    refresh: Option<Duration>,
    min_refresh: Option<Duration>,
    report: &mut Report,
) -> Option<JwksUrl> {
    const HOW: &str = "write http://HOST:PORT/PATH; the key set is fetched without TLS, so it must be \
                       served on this host or a network that is trusted (see docs/clients.md)";
    let text = field.text(report)?;
    let uri: Option<http::Uri> = text.parse().ok();
    let uri = uri.filter(|uri| uri.scheme_str() == Some("http"));
    let plain = uri.as_ref().and_then(http::Uri::authority);
    let plain = plain.filter(|authority| !authority.as_str().contains('@'));
    let Some((uri, authority)) = uri.as_ref().zip(plain) else {
        report.error(&field.at, format!("is {}; {HOW}", shown(text)));
        return None;
    };
    let port = authority.port_u16().unwrap_or(80);
    Some(JwksUrl {
        address: format!("{}:{port}", authority.host()),
        path: uri
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .to_owned(),
        refresh: refresh.unwrap_or(Duration::from_secs(600)),
        min_refresh: min_refresh.unwrap_or(Duration::from_secs(10)),
    })
}
