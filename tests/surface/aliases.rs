//! Upstream's metrics: the names, and that each counts what Kindred's own do.

use std::collections::BTreeMap;

use super::*;
use crate::support::exposition::{Sample, parse};

const SERVER: [&str; 7] = [
    "total_requests",
    "stream_requests",
    "nonstream_requests",
    "validation_exceptions",
    "http_exceptions",
    "internal_errors",
    "total_responses",
];
const ROLE: [&str; 4] = [
    "total_requests",
    "error_requests",
    "retry_requests",
    "completed_requests",
];
const ROLE_HISTOGRAMS: [&str; 3] = [
    "first_token_latency_seconds",
    "complete_latency_seconds",
    "per_token_latency_seconds",
];

fn page(kindred: &Kindred) -> Vec<Sample> {
    let answer = ask(kindred.edge(), "GET", "/prometheus/metrics", &[]);
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    parse(&answer.text())
}

/// The samples without buckets, by name.
fn values(samples: &[Sample]) -> BTreeMap<String, f64> {
    let plain = samples.iter().filter(|sample| sample.labels.is_empty());
    plain
        .map(|sample| (sample.name.clone(), sample.value))
        .collect()
}

#[test]
fn the_names_are_upstreams_and_no_others() {
    let (_fleet, kindred) = start("");
    let mut expected: Vec<String> = SERVER.map(|name| format!("{name}_total")).to_vec();
    let mut histograms = vec!["queue_latency_seconds".to_owned()];
    for prefix in ["ctx_", "gen_"] {
        expected.extend(ROLE.map(|name| format!("{prefix}{name}_total")));
        histograms.extend(ROLE_HISTOGRAMS.map(|name| format!("{prefix}{name}")));
    }
    for name in &histograms {
        expected.extend([format!("{name}_sum"), format!("{name}_count")]);
    }
    expected.sort();
    let samples = page(&kindred);
    let names: Vec<_> = values(&samples).into_keys().collect();
    assert_eq!(names, expected);
    let others = samples.iter().filter(|sample| !sample.labels.is_empty());
    for sample in others {
        let name = sample.name.strip_suffix("_bucket").unwrap();
        assert!(histograms.iter().any(|known| known == name), "{name}");
        assert_eq!(sample.labels.len(), 1, "{sample:?}");
        assert_eq!(sample.labels[0].0, "le");
    }
}

#[test]
fn they_count_what_kindreds_own_count() {
    let (fleet, kindred) = start("max_retries: 1");
    let edge = kindred.edge();
    let post = |body: &str, status: u16| {
        let answer = raw::post(edge, CHAT, &[], body);
        assert_eq!(answer.status, status, "{}", answer.text());
    };
    let mut streamed = chat("hello");
    streamed["stream"] = true.into();
    // Two whole answers and one stream.
    post(&body(), 200);
    post(&body(), 200);
    post(&streamed.to_string(), 200);
    // Refused for what is in it, and not understood.
    post("{}", 400);
    post("[", 400);
    // The context leg is repeated once, and the second time it does well.
    let context = fleet.of(kindred::wire::Role::Context).next().unwrap();
    context.fault(1, "status=503");
    post(&body(), 200);
    // It fails for good.
    context.fault(2, "status=503");
    post(&body(), 503);
    // The generation worker refuses, and again.
    let generation = fleet.of(kindred::wire::Role::Generation).next().unwrap();
    generation.fault(2, "status=429");
    post(&body(), 429);
    kindred.assert_idle();

    let expected = [
        ("total_requests_total", 6.0),
        ("stream_requests_total", 1.0),
        ("nonstream_requests_total", 5.0),
        ("validation_exceptions_total", 2.0),
        ("http_exceptions_total", 1.0),
        ("internal_errors_total", 1.0),
        ("total_responses_total", 4.0),
        ("queue_latency_seconds_count", 6.0),
        ("ctx_total_requests_total", 6.0),
        ("ctx_error_requests_total", 1.0),
        ("ctx_retry_requests_total", 2.0),
        ("ctx_completed_requests_total", 6.0),
        ("gen_total_requests_total", 5.0),
        ("gen_error_requests_total", 1.0),
        ("gen_retry_requests_total", 1.0),
        ("gen_completed_requests_total", 5.0),
    ];
    // A request is counted at its end, and its legs after it.
    let route = [r#"route="chat_completions""#];
    kindred.assert_metric("kindred_requests_total", &route, 8.0);
    for (fleet, legs) in [("context", 6.0), ("generation", 5.0)] {
        let label = format!("fleet=\"{fleet}\"");
        kindred.assert_metric("kindred_legs_ended_total", &[&label], legs);
    }
    let told = values(&page(&kindred));
    for (name, value) in expected {
        assert_eq!(told[name], value, "{name}");
    }
    // The same numbers under Kindred's own names.
    let own = |name: &str, labels: &[&str]| kindred.metric(name, labels);
    let context = r#"fleet="context""#;
    for (alias, own) in [
        (
            "stream_requests_total",
            own("kindred_requests_understood_total", &[r#"mode="stream""#]),
        ),
        (
            "total_responses_total",
            own(
                "kindred_requests_total",
                &[r#"route="chat_completions""#, r#"outcome="ok""#],
            ),
        ),
        (
            "ctx_total_requests_total",
            own("kindred_legs_begun_total", &[context]),
        ),
        (
            "ctx_retry_requests_total",
            own("kindred_leg_retries_total", &[context]),
        ),
        (
            "ctx_complete_latency_seconds_count",
            own("kindred_leg_duration_seconds_count", &[context]),
        ),
        (
            "gen_first_token_latency_seconds_count",
            own(
                "kindred_leg_first_byte_seconds_count",
                &[r#"fleet="generation""#],
            ),
        ),
        (
            "gen_per_token_latency_seconds_count",
            own(
                "kindred_stream_interval_seconds_count",
                &[r#"fleet="generation""#],
            ),
        ),
        (
            "queue_latency_seconds_count",
            own("kindred_request_wait_seconds_count", &[]),
        ),
    ] {
        assert_eq!(told[alias], own, "{alias}");
        assert!(own > 0.0, "{alias}");
    }
}
