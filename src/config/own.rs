//! Kindred's own sections, but for the worker filters.
//!
//! Gives every bound and deadline its default and its sensible range. An unknown key in one of
//! these sections is an error, so that a misspelt protection is never quietly absent.

mod body_limits;
mod claims;
mod client_limits;
mod cors;
mod gateway;
mod health;
mod http;
mod identity;
mod places;
mod timeouts;
mod tls;

use crate::config::words::shown;
use std::{net::SocketAddr, path::Path};

use super::{
    AdminConfig, Compatibility, Limits, TelemetryConfig, TlsConfig,
    address::Listener,
    raw::{self, Field, Section, node::Value},
    report::Report,
};
use crate::{
    telemetry::{self, access_log::Target},
    wire::signature::SigningProfile,
};

pub(crate) use cors::cors;
pub(crate) use gateway::{digest, gateway};
pub(crate) use health::health;
pub(crate) use http::http;
pub(crate) use timeouts::timeouts;
pub(crate) use tls::tls;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The most table entries that can be asked for.
pub(crate) const MOST_SESSIONS: u32 = 100_000_000;

/// A bound of a table.
pub(crate) fn sessions(field: Option<Field>, default: usize, report: &mut Report) -> usize {
    field
        .and_then(|field| field.integer(report, 1..=MOST_SESSIONS))
        .and_then(|most| usize::try_from(most).ok())
        .unwrap_or(default)
}

/// A name that is safe as a label and in a log.
pub(crate) fn name(field: &Field, report: &mut Report) -> Option<String> {
    let text = field.text(report)?;
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if (1..=64).contains(&text.len()) && text.bytes().all(word) {
        return Some(text.to_owned());
    }
    report.error(
        &field.at,
        "must be 1 to 64 letters, digits, dots, dashes or underscores",
    );
    None
}

/// `signing_profile` of a fleet or of a worker filter.
pub(crate) fn signing_profile(field: Option<Field>, report: &mut Report) -> SigningProfile {
    const PROFILES: [(&str, SigningProfile); 2] = [
        (SigningProfile::Trtllm.name(), SigningProfile::Trtllm),
        (SigningProfile::Dynamo.name(), SigningProfile::Dynamo),
    ];
    field
        .filter(|field| !field.is_null())
        .and_then(|field| field.choice(report, &PROFILES))
        .unwrap_or_default()
}

/// `admin`.
pub(crate) fn admin(field: Field, folder: &Path, report: &mut Report) -> AdminConfig {
    let raw = raw::Admin::closed(field, report);
    let default = SocketAddr::from(([127, 0, 0, 1], 9464));
    let at = raw.listen.as_ref().map_or(raw.at, |field| field.at.clone());
    let listen = raw.listen.and_then(|field| {
        let text = field.text(report)?;
        let listen = text.trim().parse().ok();
        if listen.is_none() {
            let what = format!(
                "is {}; it must be an IP address and a port, such as 127.0.0.1:9464",
                shown(text)
            );
            report.error(&field.at, what);
        }
        listen
    });
    let listen = listen.unwrap_or(default);
    let tls = tls::port_only(raw.tls, folder, report);
    let asks = tls.as_ref().and_then(TlsConfig::client_auth);
    if !listen.ip().is_loopback() && asks != Some(true) {
        report.warn(
            &at,
            "opens the operator's port, which asks for no password, to the network; 127.0.0.1 keeps \
             it on this machine; so does admin.tls with client_auth: required",
        );
    }
    report.listens(&at, Listener::new(&listen.ip().to_string(), listen.port()));
    AdminConfig { listen, tls }
}

/// `limits`.
pub(crate) fn limits(field: Option<Field>, report: &mut Report) -> Limits {
    let mut raw = field
        .map(|field| raw::LimitsSection::closed(field, report))
        .unwrap_or_default();
    let before = report.errors();
    let max_body = raw.max_body.take();
    let max_in_flight = places::by_role(raw.max_in_flight.take(), report);
    let at = raw.body_budget.as_ref().or(max_body.as_ref());
    let at = at.map_or(&raw.at, |field| &field.at).clone();
    let max_body = max_body.map_or_else(body_limits::default, |field| {
        body_limits::max_body(field, report)
    });
    let mut size = |field: &Option<Field>, low, high, default: usize| {
        let field = field.as_ref();
        field
            .and_then(|field| field.size(report, low..=high))
            .unwrap_or(default)
    };
    let limits = Limits {
        max_body,
        body_budget: size(&raw.body_budget, MIB, 1 << 40, 1 << 30),
        max_answer: size(&raw.max_answer, KIB, 4 * GIB, 64 << 20),
        max_header_bytes: size(&raw.max_header_bytes, KIB, MIB - 1, 32 << 10),
        min_body_rate: size(&raw.min_body_rate, 1, GIB, 1 << 10),
        max_connections: 20_000,
        max_connections_per_address: None,
        max_headers: 100,
        max_session_id: 512,
        max_in_flight,
        max_waiting: 1024,
    };
    let by_address = raw.max_connections_per_address.as_ref();
    let by_address = by_address.filter(|field| !field.is_null());
    let by_address = by_address.and_then(|field| field.integer(report, 1..=10_000_000u32));
    let mut count = |field: &Option<Field>, high: u32, default: usize| {
        let field = field.as_ref();
        let count = field.and_then(|field| field.integer(report, 1..=high));
        count
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(default)
    };
    let limits = Limits {
        // Pingora reads no more than 256 header fields of a request.
        max_headers: count(&raw.max_headers, 256, limits.max_headers),
        max_connections: count(&raw.max_connections, 10_000_000, limits.max_connections),
        max_session_id: count(&raw.max_session_id, 8192, limits.max_session_id),
        max_connections_per_address: by_address.and_then(|most| usize::try_from(most).ok()),
        max_waiting: count(&raw.max_waiting, 1_000_000, limits.max_waiting),
        ..limits
    };
    if report.errors() == before && limits.body_budget < limits.max_body.largest() {
        let what = "limits.body_budget is smaller than limits.max_body, so the largest body could \
                    never be read; raise the budget or lower max_body";
        report.error(&at, what);
    }
    limits
}

/// `compatibility`.
pub(crate) fn compatibility(field: Option<Field>, report: &mut Report) -> Compatibility {
    const WHOSE: [(&str, Compatibility); 2] = [
        ("openai", Compatibility::OpenAi),
        ("trtllm", Compatibility::Trtllm),
    ];
    let field = field.filter(|field| !field.is_null());
    let whose = field.and_then(|field| field.choice(report, &WHOSE));
    whose.unwrap_or_default()
}

/// `telemetry`.
pub(crate) fn telemetry(
    field: Option<Field>,
    folder: &Path,
    report: &mut Report,
) -> TelemetryConfig {
    let raw = field
        .map(|field| raw::Telemetry::closed(field, report))
        .unwrap_or_default();
    let log = raw.log.and_then(|field| {
        let text = field.text(report)?.trim().to_owned();
        let Err(error) = telemetry::log::parse(&text) else {
            return Some(text);
        };
        let what = format!("is no log filter: {error}");
        report.error(&field.at, what);
        None
    });
    let internal_fields = raw.internal_fields;
    let internal_fields = internal_fields.and_then(|field| field.boolean(report));
    let debug_headers = raw.debug_headers.and_then(|field| field.boolean(report));
    let access_log = raw.access_log.filter(|field| !field.is_null());
    TelemetryConfig {
        access_log: access_log.and_then(|field| access_log_target(&field, folder, report)),
        debug_headers: debug_headers.unwrap_or(false),
        internal_fields: internal_fields.unwrap_or(false),
        log: log.unwrap_or_else(|| "info".to_owned()),
    }
}

/// `telemetry.access_log`: where it is written, unless it is off.
fn access_log_target(field: &Field, folder: &Path, report: &mut Report) -> Option<Target> {
    if matches!(field.value, Value::Bool(false)) {
        return None;
    }
    match field.text(report)?.trim() {
        "off" => None,
        "stderr" => Some(Target::Stderr),
        "" => {
            report.error(
                &field.at,
                "is empty; write off, stderr or the path of a file",
            );
            None
        }
        path => Some(Target::File(folder.join(path))),
    }
}
