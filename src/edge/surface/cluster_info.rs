//! `/cluster_info`: the fleets, in upstream's words (specification section 3.5).
//!
//! Upstream tells everybody the addresses of its workers. So does Kindred where there is no gateway;
//! with one, clients see aliases unless `gateway.cluster_info` says otherwise.

use serde_json::{Map, Value, json};

use crate::{
    config::InstanceNames,
    edge::{destination::Destination, discovery::Discovery, live::Live},
    fleet::Instance,
    telemetry::labels::FleetLabel,
    wire::Role,
};

/// The whole answer. Fleets of several models are one list for each role.
pub fn of(live: &Live, discovery: &Discovery) -> Value {
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
    let mut info = json!({
        "is_ready": live.unready().is_none(),
        "server_lists": servers,
        "routing_key_configs": keys,
    });
    if let Some(config) = &live.edge.discovery {
        info["current_workers"] = json!({
            "context_servers": announced(live, discovery, Role::Context, names),
            "generation_servers": announced(live, discovery, Role::Generation, names),
        });
        info["minimal_instances"] = json!({
            "context_servers": config.minimal_context,
            "generation_servers": config.minimal_generation,
        });
    }
    info
}

/// The workers of a role that announced themselves, served or not. Those whose addresses are not
/// shown go by their aliases; one that does not serve yet has none.
fn announced(live: &Live, discovery: &Discovery, role: Role, names: InstanceNames) -> Vec<Value> {
    let fleets: Vec<_> = live.destinations().map(Destination::fleet).collect();
    let alias = |address: &str| {
        let mut of_role = fleets.iter().filter(|fleet| fleet.role() == role);
        of_role.find_map(|fleet| Some(fleet.at(address)?.alias.to_string()))
    };
    let workers = discovery.workers(role).into_iter();
    let shown = workers.map(|worker| match names {
        InstanceNames::Addresses => json!({
            "worker_id": worker.worker_id,
            "host": worker.host,
            "port": worker.port,
            "role": worker.role_number(),
        }),
        InstanceNames::Aliases => json!({
            "worker_id": alias(&worker.address()),
            "role": worker.role_number(),
        }),
    });
    shown.collect()
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
