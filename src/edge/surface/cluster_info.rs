//! `/cluster_info`: the fleets, in upstream's words (specification section 3.5).
//!
//! Upstream tells everybody the addresses of its workers. So does Kindred where there is no gateway;
//! with one, clients see aliases unless `gateway.cluster_info` says otherwise.

use serde_json::{Map, Value, json};

use crate::{
    config::InstanceNames,
    edge::{destination::Destination, live::Live},
    fleet::Instance,
    telemetry::labels::FleetLabel,
};

/// The whole answer. Fleets of several models are one list for each role.
pub fn of(live: &Live) -> Value {
    let gateway = live.config.gateway.as_ref();
    let names = gateway.map_or(InstanceNames::Addresses, |gateway| gateway.cluster_info);
    let mut servers = Map::new();
    let mut keys = Map::new();
    for label in [
        FleetLabel::Context,
        FleetLabel::Generation,
        FleetLabel::Aggregated,
    ] {
        let role = || live.destinations().filter(|fleet| fleet.label() == label);
        let list: Vec<_> = role().flat_map(|fleet| shown(fleet, names)).collect();
        // Upstream knows two roles only.
        if label != FleetLabel::Aggregated || role().next().is_some() {
            servers.insert(label.as_str().to_owned(), json!(list));
        }
        if let Some(config) = role().find_map(routing_key) {
            keys.insert(label.as_str().to_owned(), config);
        }
    }
    // `current_workers` and `minimal_instances` come with discovery; they obey `names` as well.
    json!({
        "is_ready": live.unready().is_none(),
        "server_lists": servers,
        "routing_key_configs": keys,
    })
}

fn shown(destination: &Destination, names: InstanceNames) -> Vec<String> {
    let name = |instance: &Instance| match names {
        InstanceNames::Aliases => instance.alias.to_string(),
        InstanceNames::Addresses => instance.address.to_string(),
    };
    let fleet = destination.fleet();
    fleet.instances().iter().map(|one| name(one)).collect()
}

/// How a router by KV cache makes its keys.
fn routing_key(destination: &Destination) -> Option<Value> {
    let by_cache = destination.kv_cache_aware()?;
    Some(json!({
        "tokens_per_block": by_cache.tokens_per_block(),
        "kv_cache_hash_algo": by_cache.hash_algo().name(),
    }))
}
