//! `health`, `affinity` and `draining` as a file gives them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::put;
use crate::config::{AffinityConfig, Draining, HealthConfig, Nested};

pub(super) fn health(health: &HealthConfig) -> Value {
    let written = |duration: Duration| humantime::format_duration(duration).to_string();
    let ejection = &health.ejection;
    json!({
        "active": health.active,
        "path": health.path,
        "interval": written(health.interval),
        "timeout": written(health.timeout),
        "unhealthy_after": health.unhealthy_after,
        "healthy_after": health.healthy_after,
        "slow_start": written(health.slow_start),
        "passive": health.passive,
        "ejection": {
            "window": written(ejection.window),
            "min_requests": ejection.min_requests,
            "failure_share": ejection.failure_share,
            "time": written(ejection.time),
            "max_time": written(ejection.max_time),
            "max_ejected": ejection.max_ejected,
        },
    })
}

/// What is absent is unbounded.
pub(super) fn affinity(affinity: &AffinityConfig) -> Value {
    let overflow = &affinity.overflow;
    let nested = match affinity.nested {
        Nested::Refuse => "refuse",
        Nested::Root => "root",
    };
    let mut section = Map::new();
    if let Some(most) = overflow.max_in_flight {
        put(&mut section, "max_in_flight", most);
    }
    if let Some(most) = overflow.max_tokens {
        put(&mut section, "max_tokens", most);
    }
    json!({"nested": nested, "overflow": section})
}

pub(super) fn draining(draining: &Draining) -> Value {
    let modes = draining.iter();
    let modes = modes.map(|(address, mode)| (address.clone(), mode.name().into()));
    Value::Object(modes.collect())
}
