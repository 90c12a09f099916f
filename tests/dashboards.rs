//! The dashboards ask only for what is exported: every metric, label and label value that a query
//! names is in the program's own exposition.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use kindred::telemetry::{labels::FleetLabel, metrics};
use serde_json::Value;

/// What one query names.
#[derive(Debug, Default)]
struct Named {
    metrics: BTreeSet<String>,
    /// Labels of `by (…)` and the like.
    grouping: BTreeSet<String>,
    /// Metric, label, operator, value of each `metric{label="value"}`.
    matchers: Vec<(String, String, String, String)>,
}

/// Splits a query into identifiers, quoted strings (with their first quote) and single characters.
/// Ranges such as `[5m]` and numbers are left out.
fn tokens(query: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = query;
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:$".contains(c);
        let length = match c {
            '"' | '\'' | '`' => {
                let end = rest[1..].find(c).expect("strings end, and hold no quotes");
                tokens.push(rest[..=end].to_owned());
                end + 2
            }
            '[' => rest.find(']').expect("ranges end") + 1,
            c if c.is_ascii_digit() => rest.find(|c| c != '.' && !is_word(c)).unwrap_or(rest.len()),
            c if is_word(c) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                tokens.push(rest[..end].to_owned());
                end
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

fn is_identifier(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':')
}

fn named(query: &str) -> Named {
    const GROUPING: [&str; 6] = [
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
    ];
    const WORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "inf", "nan"];
    let tokens = tokens(query);
    let at = |position: usize| tokens.get(position).map_or("", String::as_str);
    let mut named = Named::default();
    let mut position = 0;
    let mut metric = String::new();
    while position < tokens.len() {
        let token = at(position);
        position += 1;
        if GROUPING.contains(&token) {
            while at(position) != ")" && position < tokens.len() {
                if is_identifier(at(position)) {
                    named.grouping.insert(at(position).to_owned());
                }
                position += 1;
            }
        } else if token == "{" {
            while at(position) != "}" && position < tokens.len() {
                let label = at(position).to_owned();
                let mut operator = String::new();
                position += 1;
                while !at(position).starts_with(['"', '\'', '`']) {
                    assert!(
                        position < tokens.len(),
                        "a matcher without value in {query}"
                    );
                    operator.push_str(at(position));
                    position += 1;
                }
                let value = at(position)[1..].to_owned();
                named
                    .matchers
                    .push((metric.clone(), label, operator, value));
                position += 1 + usize::from(at(position + 1) == ",");
            }
        } else if is_identifier(token)
            && !matches!(at(position), "(")
            && !GROUPING.contains(&at(position))
            && !WORDS.contains(&token)
        {
            metric = token.to_owned();
            named.metrics.insert(metric.clone());
        }
    }
    named
}

/// `label_values(metric, label)` of a template variable, as the query it stands for.
fn variable_query(query: &str) -> String {
    let inner = query
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.unwrap_or_else(|| panic!("a variable query of another kind: {query}"));
    match inner.rsplit_once(',') {
        Some((series, label)) => format!("group by ({label}) ({series})"),
        None => panic!("a variable query without a metric: {query}"),
    }
}

/// Every string under the key `expr`, and the metric queries of template variables.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(query) if key == "expr" => found.push(query.clone()),
                    Value::String(query) if key == "query" && query.contains('(') => {
                        found.push(variable_query(query));
                    }
                    other => queries(other, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

/// Metric -> label -> values, as exported.
type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn exported() -> Exported {
    // What exists only once its owner does.
    metrics().in_flight(FleetLabel::Context, "context-0");
    metrics().usable(FleetLabel::Context, "context-0");
    metrics().rank("context-0", 0);
    metrics()
        .certificates
        .set([("tls.cert_file", 0)].into_iter());
    let mut exported = Exported::new();
    let text = metrics().render();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value after each series");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let metric = exported.entry(name.to_owned()).or_default();
        let labels = labels.trim_end_matches('}').split("\",");
        for (label, value) in labels.filter_map(|pair| pair.split_once("=\"")) {
            let value = value.trim_end_matches('"').to_owned();
            metric.entry(label.to_owned()).or_default().insert(value);
        }
    }
    exported
}

/// What a query names that is not exported.
fn unknown(query: &str, exported: &Exported) -> Vec<String> {
    let named = named(query);
    let mut unknown = Vec::new();
    for metric in &named.metrics {
        if !exported.contains_key(metric) {
            unknown.push(format!("metric {metric}"));
        }
    }
    for label in &named.grouping {
        let mut metrics = named.metrics.iter().filter_map(|name| exported.get(name));
        if !metrics.any(|metric| metric.contains_key(label)) {
            unknown.push(format!("label {label}"));
        }
    }
    for (metric, label, operator, value) in &named.matchers {
        let known = exported.get(metric).and_then(|metric| metric.get(label));
        let values: Vec<&str> = match operator.as_str() {
            "=" | "!=" => vec![value],
            _ => value.split('|').collect(),
        };
        for value in values {
            if !known.is_some_and(|known| known.contains(value)) {
                unknown.push(format!("{metric}{{{label}{operator}\"{value}\"}}"));
            }
        }
    }
    unknown
}

fn grafana() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/grafana"))
}

fn files(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(grafana().join(folder)).expect("a folder");
    let read = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).expect("a text file");
        (path.display().to_string(), text)
    };
    entries
        .map(|entry| read(entry.expect("an entry").path()))
        .collect()
}

#[test]
fn every_query_names_only_what_is_exported() {
    let exported = exported();
    let mut all = BTreeSet::new();
    for (path, text) in files("dashboards") {
        let dashboard: Value = serde_json::from_str(&text).expect("a dashboard in JSON");
        let mut found = Vec::new();
        queries(&dashboard, &mut found);
        assert!(found.len() >= 20, "only {} queries in {path}", found.len());
        for query in found {
            let unknown = unknown(&query, &exported);
            assert!(unknown.is_empty(), "{path}: {unknown:?} in {query}");
            all.extend(named(&query).metrics);
        }
    }
    assert!(all.len() >= 20, "only {} metrics found: {all:?}", all.len());
}

#[test]
fn the_check_notices_what_is_not_exported() {
    let exported = exported();
    let unknown = |query: &str| unknown(query, &exported).join("; ");
    let variable = variable_query("label_values(kindred_in_flight, alias)");
    for (query, expected) in [
        ("rate(kindred_requests[5m])", "metric kindred_requests"),
        (
            "sum by (le) (kindred_requests_total_bucket)",
            "metric kindred_requests_total_bucket; label le",
        ),
        (
            "kindred_leg_duration_seconds",
            "metric kindred_leg_duration_seconds",
        ),
        ("up == 0 and kindred_body_budget_bytes > 1e3", "metric up"),
        ("sum(kindred_requests_total) by (session)", "label session"),
        (
            r#"kindred_requests_total{outcome="okay"}"#,
            r#"kindred_requests_total{outcome="okay"}"#,
        ),
        (
            r#"kindred_requests_total{route="other", outcome=~"ok|bad"} / 2"#,
            r#"kindred_requests_total{outcome=~"bad"}"#,
        ),
        (
            r#"kindred_requests_total{model="m"}"#,
            r#"kindred_requests_total{model="m"}"#,
        ),
        (&variable, "label alias"),
    ] {
        assert_eq!(unknown(query), expected, "{query}");
    }
    for query in [
        "histogram_quantile(0.99, sum by (le, fleet) (rate(kindred_leg_duration_seconds_bucket[$__rate_interval])))",
        "sum without (outcome) (kindred_requests_total offset 5m) > bool 0",
        r#"label_replace(kindred_in_flight, "instance", "$1", "exported_instance", "(.+)")"#,
        "time() - kindred_config_last_success_timestamp_seconds",
    ] {
        assert_eq!(unknown(query), "", "{query}");
    }
}

#[test]
fn every_metric_is_on_a_dashboard() {
    let mut shown = BTreeSet::new();
    for (_, text) in files("dashboards") {
        let dashboard: Value = serde_json::from_str(&text).expect("a dashboard in JSON");
        let mut found = Vec::new();
        queries(&dashboard, &mut found);
        shown.extend(found.iter().flat_map(|query| named(query).metrics));
    }
    for metric in exported().into_keys() {
        let family = metric.trim_end_matches("_sum").trim_end_matches("_count");
        let bucket = format!("{family}_bucket");
        assert!(
            shown.contains(&metric) || shown.contains(&bucket),
            "{metric} is on no dashboard"
        );
    }
}

#[test]
fn panels_do_not_overlap_and_have_ids_of_their_own() {
    for (path, text) in files("dashboards") {
        let dashboard: Value = serde_json::from_str(&text).expect("a dashboard in JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for panel in panels {
            assert!(ids.insert(panel["id"].as_u64()), "{path}: a repeated id");
            let side = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
            assert!(side("x") + side("w") <= 24, "{path}: {}", panel["title"]);
            for x in side("x")..side("x") + side("w") {
                for y in side("y")..side("y") + side("h") {
                    assert!(places.insert((x, y)), "{path}: {} overlaps", panel["title"]);
                }
            }
        }
    }
}

#[test]
fn provisioning_is_readable_and_finds_the_dashboards() {
    let read = |folder: &str| -> Value {
        let (path, text) = files(folder).pop().expect("a provisioning file");
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let sources = read("provisioning/datasources");
    assert_eq!(sources["datasources"][0]["type"], "prometheus");
    let providers = read("provisioning/dashboards");
    assert_eq!(providers["providers"][0]["type"], "file");
}
