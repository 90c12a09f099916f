//! `health`: how instances are judged.
//!
//! Every time has a bound, so that no value makes an instance sit out for good or be probed without
//! pause.

use std::{ops::RangeInclusive, time::Duration};

use crate::config::{
    EjectionConfig, HealthConfig,
    raw::{self, Field, Section},
    report::Report,
    words::shown,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Reads the section.
pub(crate) fn health(field: Option<Field>, report: &mut Report) -> HealthConfig {
    let raw = field
        .map(|field| raw::Health::closed(field, report))
        .unwrap_or_default();
    let default = HealthConfig::default();
    let times = Duration::from_millis(10)..=DAY;
    let interval = duration(raw.interval, times.clone(), default.interval, report);
    let timeout_at = raw.timeout.as_ref().map(|field| field.at.clone());
    let timeout = duration(raw.timeout, times, default.timeout, report);
    if let Some(at) = timeout_at.filter(|_| timeout > interval * 4) {
        report.warn(
            &at,
            "is more than four times health.interval: an instance that does not answer is noticed late",
        );
    }
    HealthConfig {
        active: switch(raw.active, default.active, report),
        path: raw
            .path
            .and_then(|field| path(&field, report))
            .unwrap_or(default.path),
        interval,
        timeout,
        unhealthy_after: count(raw.unhealthy_after, 1000, default.unhealthy_after, report),
        healthy_after: count(raw.healthy_after, 1000, default.healthy_after, report),
        slow_start: duration(
            raw.slow_start,
            Duration::ZERO..=DAY,
            default.slow_start,
            report,
        ),
        passive: switch(raw.passive, default.passive, report),
        ejection: ejection(raw.ejection, report),
    }
}

fn ejection(field: Option<Field>, report: &mut Report) -> EjectionConfig {
    let raw = field
        .map(|field| raw::Ejection::closed(field, report))
        .unwrap_or_default();
    let default = EjectionConfig::default();
    let times = Duration::from_millis(10)..=DAY;
    let time_at = raw.time.as_ref().or(raw.max_time.as_ref());
    let time_at = time_at.map(|field| field.at.clone());
    let config = EjectionConfig {
        window: duration(
            raw.window,
            Duration::from_millis(100)..=DAY,
            default.window,
            report,
        ),
        min_requests: count(raw.min_requests, 1_000_000, default.min_requests, report),
        failure_share: share(raw.failure_share, default.failure_share, report),
        time: duration(raw.time, times.clone(), default.time, report),
        max_time: duration(raw.max_time, times, default.max_time, report),
        max_ejected: share(raw.max_ejected, default.max_ejected, report),
    };
    if let Some(at) = time_at.filter(|_| config.time > config.max_time) {
        report.error(
            &at,
            "health.ejection.time is longer than max_time, which bounds it; lower the one or raise \
             the other",
        );
    }
    config
}

fn path(field: &Field, report: &mut Report) -> Option<String> {
    let text = field.text(report)?;
    let good = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if text.starts_with('/') && text.len() <= 256 && text.bytes().all(good) {
        return Some(text.to_owned());
    }
    let what = format!(
        "is {}; it must be a path that begins with a slash, such as /health",
        shown(text)
    );
    report.error(&field.at, what);
    None
}

fn switch(field: Option<Field>, default: bool, report: &mut Report) -> bool {
    let field = field.and_then(|field| field.boolean(report));
    field.unwrap_or(default)
}

fn duration(
    field: Option<Field>,
    range: RangeInclusive<Duration>,
    default: Duration,
    report: &mut Report,
) -> Duration {
    let field = field.and_then(|field| field.duration(report, range));
    field.unwrap_or(default)
}

fn count(field: Option<Field>, most: u32, default: u32, report: &mut Report) -> u32 {
    let field = field.and_then(|field| field.integer(report, 1..=most));
    field.unwrap_or(default)
}

/// A part of a whole, above 0.
fn share(field: Option<Field>, default: f64, report: &mut Report) -> f64 {
    let Some(field) = field else { return default };
    let Some(share) = field.number(report, 0.01) else {
        return default;
    };
    if share <= 1.0 {
        return share;
    }
    let what = format!("is {share}; it is a share and must be between 0.01 and 1");
    report.error(&field.at, what);
    default
}
