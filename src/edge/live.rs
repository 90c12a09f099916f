//! What one configuration means to the edge: the part that a reload swaps.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::tokenizer::Tokenizer;
use crate::{
    config::{Config, EdgeConfig, FleetConfig},
    fleet::Fleet,
    gateway::Gateway,
    routing::{KvCacheAware, Pick, Query, RouteError, Router},
    telemetry::{self, labels::FleetLabel},
    wire::{
        Role,
        request_id::RequestIds,
        signature::{SigningKeys, SigningProfile},
    },
};

/// How long a request waits for the first answers of workers about their caches.
const PATIENCE: Duration = Duration::from_secs(2);

/// One configuration at work. A request keeps the one it began with.
pub struct Live {
    pub config: Arc<Config>,
    pub edge: EdgeConfig,
    pub gateway: Gateway,
    pub context: Destination,
    pub generation: Destination,
    pub keys: Option<SigningKeys>,
    pub ids: Arc<RequestIds>,
    /// Turns prompts into token ids; `None` where no folder is named.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Whether every instance that a router by KV cache chooses from was asked about its cache once.
    asked: watch::Sender<bool>,
}

/// A fleet and the router that chooses in it.
pub struct Destination {
    pub fleet: Fleet,
    router: Arc<Router>,
}

impl Live {
    /// Builds what `config` describes, taking over whatever of `previous` is still meant; `None` if
    /// it describes no edge.
    pub fn build(
        config: &Arc<Config>,
        previous: Option<&Self>,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Option<Self> {
        let edge = config.edge.clone()?;
        let numbers = |edge: &EdgeConfig| (edge.node_id, edge.process_id);
        let ids = match previous {
            Some(previous) if numbers(&previous.edge) == numbers(&edge) => previous.ids.clone(),
            _ => Arc::new(RequestIds::new(edge.node_id, edge.process_id)),
        };
        Some(Self {
            gateway: Gateway::rebuild(config, previous.map(|previous| &previous.gateway)),
            context: Destination::build(&edge.context, previous.map(|previous| &previous.context)),
            generation: Destination::build(
                &edge.generation,
                previous.map(|previous| &previous.generation),
            ),
            config: config.clone(),
            keys: SigningKeys::of(&edge.internal_request_auth_keys),
            ids,
            edge,
            tokenizer,
            asked: watch::Sender::new(false),
        })
    }

    /// The fleet of `role` and its router.
    pub fn destination(&self, role: Role) -> &Destination {
        match role {
            Role::Generation => &self.generation,
            Role::Context | Role::Aggregated => &self.context,
        }
    }

    /// The first fleet whose router goes by KV cache.
    pub fn kv_cache_aware(&self) -> Option<&Destination> {
        let by_cache = |fleet: &&Destination| fleet.kv_cache_aware().is_some();
        [&self.context, &self.generation].into_iter().find(by_cache)
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

    /// How the fleet of `role` signs affinity.
    pub fn profile(&self, role: Role) -> SigningProfile {
        match role {
            Role::Generation => self.edge.generation.signing_profile,
            Role::Context | Role::Aggregated => self.edge.context.signing_profile,
        }
    }

    /// The label of a fleet without instances.
    pub fn empty_fleet(&self) -> Option<&'static str> {
        [&self.context, &self.generation]
            .into_iter()
            .find(|destination| destination.fleet.is_empty())
            .map(|destination| destination.fleet.role().label())
    }

    pub fn export(&self) {
        self.context.export();
        self.generation.export();
    }
}

impl Destination {
    fn build(settings: &FleetConfig, previous: Option<&Self>) -> Self {
        let fleet = Fleet::build(
            settings.role,
            &settings.urls,
            previous.map(|previous| &previous.fleet),
        );
        // They are in no snapshot from now on, so nothing would come by to take their series away.
        for instance in previous.iter().flat_map(|previous| previous.fleet.gone()) {
            telemetry::metrics().forget_instance(label(settings.role), &instance.alias);
        }
        let router = match previous {
            // Bindings to removed instances stay: their keys then count as failed over, not as new.
            // The blocks that they held are forgotten with them.
            Some(previous) => {
                let router = previous.router.reconfigured(&settings.router);
                if router.kv_cache_aware().is_some() {
                    router.forget(&fleet.removed_since(&previous.fleet));
                }
                router
            }
            None => Arc::new(Router::new(&settings.router)),
        };
        Self { fleet, router }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// The router, if it goes by KV cache.
    pub fn kv_cache_aware(&self) -> Option<&KvCacheAware> {
        self.router.kv_cache_aware()
    }

    /// Picks an instance and reserves its load. An exclusion that leaves nobody is lifted: the
    /// excluded instance is better than none.
    pub fn pick(&self, query: &Query<'_>) -> Result<Pick, RouteError> {
        match self.router.route(&self.fleet, query) {
            Err(RouteError::Excluded { .. }) => self.router.route(
                &self.fleet,
                &Query {
                    exclude: None,
                    ..*query
                },
            ),
            other => other,
        }
    }

    fn export(&self) {
        let metrics = telemetry::metrics();
        let label = label(self.fleet.role());
        for instance in self.fleet.gone() {
            metrics.forget_instance(label, &instance.alias);
        }
        for instance in self.fleet.visible() {
            let in_flight = i64::try_from(instance.in_flight()).unwrap_or(i64::MAX);
            metrics.in_flight(label, &instance.alias).set(in_flight);
        }
        let bindings = i64::try_from(self.router.bindings()).unwrap_or(i64::MAX);
        metrics.affinity_bindings.get(label).set(bindings);
        let evictions = metrics.affinity_evictions.get(label);
        evictions.inc_by(self.router.evictions().saturating_sub(evictions.get()));
        let by_cache = self.kv_cache_aware();
        let blocks = by_cache.map_or(0, KvCacheAware::blocks);
        let blocks = i64::try_from(blocks).unwrap_or(i64::MAX);
        metrics.kv_blocks.get(label).set(blocks);
        let dropped = metrics.kv_blocks_dropped.get(label);
        let so_far = by_cache.map_or(0, KvCacheAware::blocks_dropped);
        dropped.inc_by(so_far.saturating_sub(dropped.get()));
    }
}

fn label(role: Role) -> FleetLabel {
    match role {
        Role::Context => FleetLabel::Context,
        Role::Generation => FleetLabel::Generation,
        Role::Aggregated => FleetLabel::Aggregated,
    }
}
