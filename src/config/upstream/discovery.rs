//! `disagg_cluster`: workers that announce themselves (specification section 7.2).
//!
//! Upstream then reads no static urls at all, and fails at a key it does not know. Kindred's own key is
//! `auth_token`, which only a store that is hosted here has a use for.

use std::time::Duration;

use crate::config::{
    address,
    discovery::{DiscoveryConfig, StoreConfig},
    raw::{self, Field, Section},
    report::{Place, Report},
    secret::Secrets,
    words::shown,
};

/// Reads the section; `port` is the edge's own, `gateway` says whether the file has that section.
pub(super) fn read(
    field: Option<Field>,
    secrets: &Secrets<'_>,
    port: u16,
    gateway: bool,
    report: &mut Report,
) -> Option<DiscoveryConfig> {
    let field = field.filter(|field| !field.is_null())?;
    let mut raw = raw::DisaggCluster::closed(field, report);
    let store = match raw.cluster_uri.take().filter(|field| !field.is_null()) {
        Some(field) => store(&field, port, report),
        None => {
            report.error(
                &raw.at.missing("cluster_uri"),
                "is missing; write http://HOST:PORT of this edge to have it keep the announcements, \
                 or etcd://HOST:PORT",
            );
            None
        }
    };
    let name = raw.cluster_name.take().filter(|field| !field.is_null());
    let name = name.and_then(|field| field.text(report).map(str::to_owned));
    let minimal = raw
        .minimal_instances
        .take()
        .filter(|field| !field.is_null());
    let minimal = minimal.map(|field| raw::MinimalInstances::closed(field, report));
    let (context, generation) = minimal.map_or((None, None), |minimal| {
        (minimal.context_servers, minimal.generation_servers)
    });
    let count = |field: Option<Field>, report: &mut Report| {
        let field = field.filter(|field| !field.is_null());
        let count = field.map(|field| field.integer(report, 0..=1_000_000_u32));
        count.flatten().unwrap_or(1)
    };
    let inactive_at = raw
        .inactive_timeout_sec
        .as_ref()
        .map(|field| field.at.clone());
    let heartbeat_interval = seconds(raw.heartbeat_interval_sec.take(), 5, report);
    let inactive_timeout = seconds(raw.inactive_timeout_sec.take(), 10, report);
    if inactive_timeout <= heartbeat_interval {
        report.warn(
            &inactive_at.unwrap_or_else(|| raw.at.missing("inactive_timeout_sec")),
            "is not longer than heartbeat_interval_sec: workers are forgotten between two of their \
             heartbeats",
        );
    }
    let token = secrets.one(raw.auth_token.take(), raw.auth_token_file.take(), report);
    if let Some(StoreConfig::Hosted) = store {
        unguarded(&raw.at, token.is_some(), gateway, report);
    }
    Some(DiscoveryConfig {
        store: store.unwrap_or(StoreConfig::Hosted),
        cluster_name: name.unwrap_or_default(),
        minimal_context: count(context, report),
        minimal_generation: count(generation, report),
        heartbeat_interval,
        inactive_timeout,
        auth_token: token,
    })
}

/// Whoever announces a worker decides where prompts go.
fn unguarded(at: &Place, token: bool, gateway: bool, report: &mut Report) {
    if gateway && !token {
        report.warn(
            at,
            "lets whoever reaches the clients' port announce a worker, and workers are sent prompts; \
             set auth_token here and for the workers, or let only trusted callers reach the port",
        );
    }
}

fn store(field: &Field, port: u16, report: &mut Report) -> Option<StoreConfig> {
    let text = field.text(report)?.trim();
    let http = text
        .strip_prefix("http://")
        .or(text.strip_prefix("https://"));
    if let Some(authority) = http {
        let address = authority.trim_end_matches('/');
        if let Err(what) = address::worker(address) {
            report.error(&field.at, format!("has an address that {what}"));
            return None;
        }
        let other = address.rsplit_once(':').map(|(_, port)| port);
        if port != 0 && other.is_some_and(|other| other != port.to_string()) {
            let what = format!(
                "names another port than this edge's own {port}; workers that announce themselves \
                 there are not seen here"
            );
            report.warn(&field.at, what);
        }
        return Some(StoreConfig::Hosted);
    }
    let mut endpoints = Vec::new();
    for endpoint in text.split(',').map(str::trim) {
        let Some(address) = endpoint.strip_prefix("etcd://") else {
            let what = format!(
                "is {}; write http://HOST:PORT or etcd://HOST:PORT[,etcd://HOST:PORT]",
                shown(text)
            );
            report.error(&field.at, what);
            return None;
        };
        if let Err(what) = address::worker(address.trim_end_matches('/')) {
            report.error(&field.at, format!("has an address that {what}"));
            return None;
        }
        endpoints.push(address.trim_end_matches('/').to_owned());
    }
    Some(StoreConfig::Etcd(endpoints))
}

fn seconds(field: Option<Field>, default: u64, report: &mut Report) -> Duration {
    let field = field.filter(|field| !field.is_null());
    let number = field.and_then(|field| field.number(report, 0.1));
    let bounded = number.map(|number| Duration::from_secs_f64(number.min(86_400.0)));
    bounded.unwrap_or(Duration::from_secs(default))
}
