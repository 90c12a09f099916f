//! What one configuration means to the edge: the part that a reload swaps.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{destination::Destination, pool::Pools, tokenizer::Tokenizer};
use crate::{
    config::{Config, EdgeConfig, GatewayConfig},
    gateway::Gateway,
    routing::KvCacheAware,
    telemetry::{self, labels::FleetLabel},
    wire::{request_id::RequestIds, signature::SigningKeys},
};

/// How long a request waits for the first answers of workers about their caches.
const PATIENCE: Duration = Duration::from_secs(2);

/// One configuration at work. A request keeps the one it began with.
pub struct Live {
    pub config: Arc<Config>,
    pub edge: EdgeConfig,
    pub gateway: Gateway,
    /// The fleets, by model.
    pub pools: Pools,
    pub keys: Option<SigningKeys>,
    pub ids: Arc<RequestIds>,
    /// Whether every instance that a router by KV cache chooses from was asked about its cache once.
    asked: watch::Sender<bool>,
}

/// Why the edge is not ready. `Display` is a phrase for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unready {
    fleet: &'static str,
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} fleet has too few usable instances", self.fleet)
    }
}

impl Live {
    /// Builds what `config` describes, taking over whatever of `previous` is still meant; `None` if
    /// it describes no edge.
    pub fn build(
        config: &Arc<Config>,
        previous: Option<&Self>,
        tokenizers: Vec<Option<Arc<Tokenizer>>>,
    ) -> Option<Self> {
        let edge = config.edge.clone()?;
        let numbers = |edge: &EdgeConfig| (edge.node_id, edge.process_id);
        let ids = match previous {
            Some(previous) if numbers(&previous.edge) == numbers(&edge) => previous.ids.clone(),
            _ => Arc::new(RequestIds::new(edge.node_id, edge.process_id)),
        };
        let share = config
            .gateway
            .as_ref()
            .map_or(1.0, GatewayConfig::table_share);
        let live = Self {
            gateway: Gateway::rebuild(config, previous.map(|previous| &previous.gateway)),
            pools: Pools::build(
                (&edge, &config.limits),
                tokenizers,
                previous.map(|previous| &previous.pools),
            ),
            config: config.clone(),
            keys: SigningKeys::of(&edge.internal_request_auth_keys),
            ids,
            edge,
            asked: watch::Sender::new(false),
        };
        live.destinations()
            .for_each(|destination| destination.router().set_share(share));
        Some(live)
    }

    /// Tells the instances of whole fleets that are no more; those of fleets that stay know it.
    pub fn succeeds(&self, previous: &Self) {
        let stays: Vec<_> = self.destinations().map(Destination::fleet).collect();
        for fleet in previous.destinations().map(Destination::fleet) {
            let instances = fleet.instances().iter();
            let gone = instances
                .filter(|instance| !stays.iter().any(|fleet| fleet.get(instance.id).is_some()));
            gone.for_each(|instance| instance.health().leave());
        }
    }

    /// Every fleet with its router.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.pools.destinations()
    }

    /// The tokenizers in use.
    pub fn tokenizers(&self) -> Vec<Arc<Tokenizer>> {
        let pools = self.pools.iter();
        pools.filter_map(|pool| pool.tokenizer.clone()).collect()
    }

    /// Every instance was asked about its cache once, whatever it answered.
    pub fn asked(&self) {
        self.asked.send_replace(true);
    }

    /// Waits until every instance was asked about its cache, for a short while at most.
    pub async fn wait_until_asked(&self) {
        if *self.asked.borrow() {
            return;
        }
        let mut asked = self.asked.subscribe();
        // What was not answered in time is learnt later.
        let _ = tokio::time::timeout(PATIENCE, asked.wait_for(|asked| *asked)).await;
    }

    /// Why requests cannot be served as configured: a needed fleet without a usable instance. `None`
    /// where every fleet of every model has one. `/health`, `/readyz` and `/cluster_info` all go by
    /// this.
    pub fn unready(&self) -> Option<Unready> {
        for pool in self.pools.iter() {
            let discovery = self.edge.discovery.as_ref();
            let discovery = discovery.filter(|_| pool.model.is_none());
            for destination in pool.destinations() {
                let fleet = destination.fleet();
                let minimal = discovery.map_or(1, |discovery| discovery.minimal(fleet.role()));
                if fleet.usable() < minimal {
                    let fleet = fleet.role().label();
                    return Some(Unready { fleet });
                }
            }
        }
        None
    }

    /// Brings the metrics that follow from state up to date.
    pub fn export(&self) {
        let metrics = telemetry::metrics();
        for label in [
            FleetLabel::Context,
            FleetLabel::Generation,
            FleetLabel::Aggregated,
        ] {
            let of_label = || self.destinations().filter(|fleet| fleet.label() == label);
            let bindings = of_label().map(|fleet| fleet.router().bindings());
            metrics.affinity_bindings.get(label).set(gauge(bindings));
            let by_cache = of_label().filter_map(Destination::kv_cache_aware);
            let blocks = by_cache.map(KvCacheAware::blocks);
            metrics.kv_blocks.get(label).set(gauge(blocks));
            let waiting = of_label().map(|fleet| fleet.queue.waiting());
            metrics.legs.waiting.get(label).set(gauge(waiting));
        }
        for destination in self.destinations() {
            destination.export();
        }
    }
}

fn gauge(parts: impl Iterator<Item = usize>) -> i64 {
    i64::try_from(parts.sum::<usize>()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::wire::Role;

    #[test]
    fn a_needed_fleet_without_an_instance_is_named() {
        let yaml = "context_servers: {num_instances: 1, urls: ['c:1']}\n\
                    generation_servers: {num_instances: 1, urls: ['g:1']}\n\
                    models: {m: {aggregated_servers: {num_instances: 1, urls: ['a:1']}}}\n";
        let config = Config::from_yaml(yaml, Path::new("test.yaml")).unwrap();
        let live = Live::build(&Arc::new(config), None, Vec::new()).unwrap();
        assert_eq!(live.unready(), None);
        for (role, name) in [
            (Role::Context, "context"),
            (Role::Generation, "generation"),
            (Role::Aggregated, "aggregated"),
        ] {
            let of_role = |fleet: &&Destination| fleet.fleet().role() == role;
            let fleet = live.destinations().find(of_role).unwrap();
            let members = fleet.fleet();
            let address = members.instances()[0].address.clone();
            fleet.set_members(&[]);
            let told = live.unready().map(|unready| unready.to_string());
            assert_eq!(
                told,
                Some(format!("the {name} fleet has too few usable instances"))
            );
            fleet.set_members(&[address.to_string()]);
            assert_eq!(live.unready(), None);
        }
    }
}
