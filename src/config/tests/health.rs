//! `health`, `affinity.overflow` and `draining`.

use std::time::Duration;

use super::{bad, edge, good, load, warned};
use crate::config::{DrainMode, EjectionConfig, HealthConfig, OverflowConfig};

fn health(text: &str) -> HealthConfig {
    good(&edge(text)).edge.expect("an edge").health
}

#[test]
fn every_key_is_read_and_printed() {
    let text = "health: {active: false, path: /ping, interval: 1s, timeout: 250ms,
  unhealthy_after: 2, healthy_after: 1, slow_start: 0s, passive: false,
  ejection: {window: 1m, min_requests: 5, failure_share: 0.25, time: 1s, max_time: 2s, max_ejected: 1}}
affinity: {overflow: {max_in_flight: 8, max_tokens: 1000}}";
    let config = good(&edge(text));
    let printed = good(&config.to_yaml_masked());
    for config in [config, printed] {
        let edge = config.edge.expect("an edge");
        let seconds = Duration::from_secs;
        let expected = HealthConfig {
            active: false,
            path: "/ping".to_owned(),
            interval: seconds(1),
            timeout: Duration::from_millis(250),
            unhealthy_after: 2,
            healthy_after: 1,
            slow_start: Duration::ZERO,
            passive: false,
            ejection: EjectionConfig {
                window: seconds(60),
                min_requests: 5,
                failure_share: 0.25,
                time: seconds(1),
                max_time: seconds(2),
                max_ejected: 1.0,
            },
        };
        assert_eq!(edge.health, expected);
        let overflow = OverflowConfig {
            max_in_flight: Some(8),
            max_tokens: Some(1000),
        };
        assert_eq!(edge.affinity.overflow, overflow);
    }
}

#[test]
fn without_the_sections_instances_are_judged_and_never_full() {
    for text in [
        "",
        "health:\naffinity:",
        "health: {}\naffinity: {overflow: }",
    ] {
        assert_eq!(health(text), HealthConfig::default());
        let edge = good(&edge(text)).edge.expect("an edge");
        assert_eq!(edge.affinity.overflow, OverflowConfig::default());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (text, parts) in [
        ("health: {interval: 5}", ["health.interval", "unit"]),
        (
            "health: {interval: 0s}",
            ["health.interval", "between 10ms"],
        ),
        ("health: {path: health}", ["health.path", "slash"]),
        ("health: {path: '/a b'}", ["health.path", "slash"]),
        (
            "health: {unhealthy_after: 0}",
            ["health.unhealthy_after", "between 1"],
        ),
        ("health: {activ: true}", ["health.activ", "`active`"]),
        (
            "health: {ejection: {max_ejected: 2}}",
            ["max_ejected", "share"],
        ),
        (
            "health: {ejection: {failure_share: 0}}",
            ["failure_share", "at least 0.01"],
        ),
        (
            "health: {ejection: {time: 10m}}",
            ["ejection.time", "max_time"],
        ),
        (
            "affinity: {overflow: {max_in_flight: 0}}",
            ["max_in_flight", "between 1"],
        ),
        (
            "affinity: {overflw: {}}",
            ["affinity.overflw", "`overflow`"],
        ),
    ] {
        bad(&edge(text), &parts);
    }
    warned(&edge("health: {interval: 1s, timeout: 5s}"), "noticed late");
}

#[test]
fn an_instance_is_emptied_by_its_address() {
    let text = |draining: &str| {
        format!(
            "context_servers: {{urls: ['c:1'], draining: {draining}}}\n\
             generation_servers: {{urls: ['g:1']}}\n"
        )
    };
    let config = good(&text("{'c:1': new_requests}"));
    let printed = good(&config.to_yaml_masked());
    for config in [config, printed] {
        let edge = config.edge.expect("an edge");
        let draining = &super::pair(&edge).context.draining;
        assert_eq!(draining.get("c:1"), Some(&DrainMode::NewRequests));
    }
    bad(&text("{'d:1': new_requests}"), &["draining.d:1", "none of"]);
    bad(&text("{'c:1': soon}"), &["draining.c:1", "new_bindings"]);
    bad(
        &text("['c:1']"),
        &["context_servers.draining", "group of keys"],
    );
    assert!(load(&text("")).is_ok());
}
