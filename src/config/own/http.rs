//! `http`: how clients' connections are treated.

use std::time::Duration;

use crate::config::{
    HalfClose, HttpConfig,
    raw::{self, Field, Section, node::Value},
    report::Report,
};

const HALF_CLOSE: [(&str, HalfClose); 2] =
    [("cancel", HalfClose::Cancel), ("serve", HalfClose::Serve)];
/// More often would be a flood, more seldom no sign of life.
const LEAST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(3600);

/// `http`.
pub(crate) fn http(field: Option<Field>, report: &mut Report) -> HttpConfig {
    let raw = field
        .map(|field| raw::Http::closed(field, report))
        .unwrap_or_default();
    let half_close = raw.half_close.filter(|field| !field.is_null());
    let half_close = half_close.and_then(|field| field.choice(report, &HALF_CLOSE));
    HttpConfig {
        half_close: half_close.unwrap_or_default(),
        heartbeat: raw.heartbeat.and_then(|field| heartbeat(&field, report)),
    }
}

/// `off`, which YAML may also read as false, or a duration.
fn heartbeat(field: &Field, report: &mut Report) -> Option<Duration> {
    match &field.value {
        Value::Null | Value::Bool(false) => None,
        Value::Text(text) if text.trim().eq_ignore_ascii_case("off") => None,
        _ => field.duration(report, LEAST..=MOST),
    }
}
