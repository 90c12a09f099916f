use super::*;

fn fresh() -> Metrics {
    Metrics::new().expect("constant names")
}

#[test]
fn what_dashboards_ask_for_is_there_from_the_start() {
    let text = fresh().render();
    for line in [
        r#"kindred_requests_total{fleet="none",outcome="ok",route="chat_completions"} 0"#,
        r#"kindred_affinity_decisions_total{decision="overflow",fleet="context"} 0"#,
        r#"kindred_leg_duration_seconds_count{fleet="generation"} 0"#,
        r#"kindred_pruned_headers_total{header="x-kindred-*"} 0"#,
        r#"kindred_verifications_total{check="affinity",outcome="forged"} 0"#,
        r#"kindred_config_reloads_total{result="rejected"} 0"#,
        "kindred_body_budget_bytes 0",
        concat!(
            "kindred_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
    ] {
        assert!(
            text.lines().any(|own| own == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains(r#"decision="bound",fleet="none""#), "{text}");
}

#[test]
fn an_unexpected_combination_is_counted_all_the_same() {
    let metrics = fresh();
    let labels = (FleetLabel::None, RetryReason::Reset);
    metrics.leg_retries.inc(labels);
    let line = r#"kindred_leg_retries_total{fleet="none",reason="reset"} 1"#;
    assert!(metrics.render().contains(line));
}

#[test]
fn each_combination_has_a_series_of_its_own() {
    let metrics = fresh();
    let all = <(Route, FleetLabel, Outcome)>::all();
    assert_eq!(all.len(), <(Route, FleetLabel, Outcome)>::COMBINATIONS);
    for (count, labels) in (1..).zip(&all) {
        metrics.requests.get(*labels).inc_by(count);
    }
    for (count, labels) in (1..).zip(&all) {
        assert_eq!(metrics.requests.get(*labels).get(), count, "{labels:?}");
    }
}

#[test]
fn an_instance_that_is_gone_takes_its_series_along() {
    let metrics = fresh();
    let handle = metrics.in_flight(FleetLabel::Context, "context-0");
    metrics.usable(FleetLabel::Context, "context-0").set(1);
    handle.inc();
    let line = r#"kindred_in_flight{fleet="context",instance="context-0"} 1"#;
    assert!(metrics.render().contains(line));
    metrics.forget_instance(FleetLabel::Context, "context-0");
    metrics.forget_instance(FleetLabel::Context, "context-0");
    assert!(!metrics.render().contains("context-0"));
    handle.dec();
    assert!(!metrics.render().contains("context-0"));
}

#[test]
fn a_rank_that_is_gone_takes_its_series_along() {
    let metrics = fresh();
    let rank = metrics.rank("filter-0", 3);
    rank.placed(PlacementReason::Sticky);
    rank.in_flight.inc();
    rank.tokens.add(17);
    let text = metrics.render();
    for line in [
        r#"kindred_adp_placements_total{rank="3",reason="sticky",worker="filter-0"} 1"#,
        r#"kindred_adp_placements_total{rank="3",reason="overflow",worker="filter-0"} 0"#,
        r#"kindred_rank_in_flight{rank="3",worker="filter-0"} 1"#,
        r#"kindred_rank_tokens{rank="3",worker="filter-0"} 17"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    metrics.forget_rank("filter-0", 3);
    assert!(!metrics.render().contains("filter-0"));
}

#[test]
fn configured_header_names_are_bounded() {
    let metrics = fresh();
    for name in 0..10 * MAX_CONFIGURED_HEADERS {
        metrics.pruned_configured_header(&format!("x-{name}")).inc();
    }
    metrics.pruned_configured_header("x-0").inc();
    let text = metrics.render();
    let lines = text.lines();
    let series = lines.filter(|line| line.starts_with("kindred_pruned_headers_total{"));
    assert_eq!(
        series.count(),
        PrunedHeader::ALL.len() + MAX_CONFIGURED_HEADERS + 1
    );
    assert!(text.contains(r#"kindred_pruned_headers_total{header="x-0"} 2"#));
    let rest = 9 * MAX_CONFIGURED_HEADERS;
    assert!(
        text.contains(&format!(r#"{{header="other"}} {rest}"#)),
        "{text}"
    );
}

#[test]
fn durations_are_in_seconds() {
    let metrics = fresh();
    let duration = std::time::Duration::from_millis(1500);
    metrics
        .request_duration
        .observe(Route::Completions, duration);
    let line = r#"kindred_request_duration_seconds_sum{route="completions"} 1.5"#;
    assert!(metrics.render().contains(line));
}

#[test]
fn the_time_of_a_good_configuration_is_now() {
    let metrics = fresh();
    metrics.config_applied();
    assert!(metrics.config_last_success.get() > 1_700_000_000);
}
