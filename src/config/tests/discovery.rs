//! `disagg_cluster`.

use std::{path::Path, time::Duration};

use secrecy::ExposeSecret;

use super::{KEY, bad, good, pair, warned};
use crate::config::{Config, DiscoveryConfig, StoreConfig};

fn cluster(text: &str) -> DiscoveryConfig {
    let text = format!("disagg_cluster: {{{text}}}");
    good(&text)
        .edge
        .expect("an edge")
        .discovery
        .expect("discovery")
}

#[test]
fn the_defaults_are_upstreams() {
    let config = cluster("cluster_uri: 'http://localhost:8000'");
    assert_eq!(config.store, StoreConfig::Hosted);
    assert_eq!(config.cluster_name, "");
    assert_eq!((config.minimal_context, config.minimal_generation), (1, 1));
    assert_eq!(config.heartbeat_interval, Duration::from_secs(5));
    assert_eq!(config.inactive_timeout, Duration::from_secs(10));
    assert!(config.auth_token.is_none());
    let nulls = "cluster_uri: 'https://h:8000/', cluster_name: null, minimal_instances: null, \
                 heartbeat_interval_sec: null, inactive_timeout_sec: null";
    assert_eq!(cluster(nulls).store, StoreConfig::Hosted);
}

#[test]
fn etcd_has_one_endpoint_or_several() {
    let store = |uri: &str| cluster(&format!("cluster_uri: '{uri}'")).store;
    assert_eq!(
        store("etcd://a:2379"),
        StoreConfig::Etcd(vec!["a:2379".to_owned()])
    );
    let both = StoreConfig::Etcd(vec!["a:1".to_owned(), "b:2".to_owned()]);
    assert_eq!(store("etcd://a:1, etcd://b:2"), both);
}

#[test]
fn everything_is_read() {
    let config = cluster(
        "cluster_uri: 'http://h:8000', cluster_name: c, minimal_instances: {context_servers: 2, \
         generation_servers: 0}, heartbeat_interval_sec: 0.5, inactive_timeout_sec: 3, \
         auth_token: '${KEY}'",
    );
    assert_eq!(config.cluster_name, "c");
    assert_eq!((config.minimal_context, config.minimal_generation), (2, 0));
    assert_eq!(config.heartbeat_interval, Duration::from_millis(500));
    assert_eq!(config.auth_token.expect("a token").expose_secret(), KEY);
}

#[test]
fn static_urls_are_not_read_and_not_needed() {
    let text = "disagg_cluster: {cluster_uri: 'etcd://a:1'}\ncontext_servers: {num_instances: 2, urls: ['x']}";
    let config = good(text).edge.expect("an edge");
    let pair = pair(&config);
    assert!(pair.context.announced && pair.context.urls.is_empty());
    assert!(pair.generation.announced);
    warned(
        text,
        "context_servers.urls: is not read beside disagg_cluster",
    );
    let router = "disagg_cluster: {cluster_uri: 'etcd://a:1'}\ncontext_servers: {router: {type: conversation}}";
    good(router);
    let models = "disagg_cluster: {cluster_uri: 'etcd://a:1'}\n\
                  models: {m: {aggregated_servers: {urls: ['a:1']}}}";
    let config = good(models).edge.expect("an edge");
    assert!(!config.models[0].fleets.all()[0].announced);
    assert!(config.fleets.is_some(), "the workers serve other models");
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |text: &str, parts: &[&str]| bad(&format!("disagg_cluster: {{{text}}}"), parts);
    wrong(
        "cluster_name: c",
        &["k.yaml:1: disagg_cluster.cluster_uri: is missing"],
    );
    wrong(
        "cluster_uri: 'redis://a:1'",
        &["disagg_cluster.cluster_uri: ", "etcd://"],
    );
    wrong(
        "cluster_uri: 'etcd://a:1,b:2'",
        &["disagg_cluster.cluster_uri: "],
    );
    wrong("cluster_uri: 'http://a'", &["has no port"]);
    wrong(
        "cluster_uri: 'http://u:p@a:1'",
        &["has a user or a password"],
    );
    wrong(
        "cluster_uri: 'http://a:8000', clustername: x",
        &[
            "disagg_cluster.clustername: ",
            "did you mean `cluster_name`?",
        ],
    );
    wrong(
        "cluster_uri: 'http://a:8000', minimal_instances: {context: 1}",
        &["disagg_cluster.minimal_instances.context: "],
    );
    wrong(
        "cluster_uri: 'http://a:8000', auth_token: ''",
        &["disagg_cluster.auth_token: is empty"],
    );
    bad(
        "disagg_cluster: {cluster_uri: 'http://a:8000'}\naggregated_servers: {urls: ['a:1']}",
        &["aggregated_servers: stands beside disagg_cluster"],
    );
}

#[test]
fn what_is_likely_wrong_is_warned_of() {
    let text = |more: &str| format!("disagg_cluster: {{cluster_uri: 'http://a:8000'{more}}}\n");
    warned(
        &text(", inactive_timeout_sec: 5"),
        "disagg_cluster.inactive_timeout_sec: is not longer",
    );
    let gateway = text("") + "gateway: {anonymous: owned}\n";
    warned(&gateway, "disagg_cluster: lets whoever reaches");
    warned(
        "port: 9000\ndisagg_cluster: {cluster_uri: 'http://a:8000'}",
        "disagg_cluster.cluster_uri: names another port",
    );
    let quiet = text(&format!(", auth_token: {KEY}")) + "gateway: {anonymous: owned}\n";
    assert!(
        good(&quiet)
            .warnings
            .iter()
            .all(|warning| !warning.contains("disagg_cluster"))
    );
}

#[test]
fn what_is_printed_reads_the_same() {
    let text = format!(
        "disagg_cluster: {{cluster_uri: 'etcd://a:1,etcd://b:2', cluster_name: c, auth_token: {KEY}}}"
    );
    let printed = good(&text).to_yaml_masked();
    assert!(!printed.contains(KEY));
    let again = printed.replace("********", KEY);
    let again = Config::from_yaml(&again, Path::new("again.yaml")).expect("good");
    assert_eq!(again.to_yaml_masked(), printed);
}
