//! A fleet that a leg is sent to, with its router.
//!
//! Decides what becomes of instances and bindings when the configuration or the membership changes:
//! instances that stay keep their counts, bindings stay where the kind of router stays. The fleet may
//! change at any time; whoever chooses works on one snapshot of it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwap;

use crate::{
    config::{EdgeConfig, FleetConfig, Limits},
    fleet::{
        Fleet, Rules,
        queue::{Queue, QueueLimits},
    },
    routing::{KvCacheAware, Pick, Query, RouteError, Router},
    telemetry::{self, labels::FleetLabel},
    wire::signature::SigningProfile,
};

/// A fleet, its router, and how it is signed for.
pub struct Destination {
    fleet: ArcSwap<Fleet>,
    router: Arc<Router>,
    /// How affinity is signed for its instances.
    pub profile: SigningProfile,
    /// Who may send a leg there, and who waits.
    pub queue: Arc<Queue>,
    exported: Arc<Exported>,
}

/// What of a router's counts is in the metrics already.
#[derive(Default)]
struct Exported {
    evictions: AtomicU64,
    blocks_dropped: AtomicU64,
}

impl Destination {
    /// Builds what `settings` describe, taking over whatever of `previous` is still meant. `model` is
    /// the named model that it serves.
    pub fn build(
        (edge, limits): (&EdgeConfig, &Limits),
        settings: &FleetConfig,
        model: Option<&Arc<str>>,
        previous: Option<&Self>,
    ) -> Self {
        let before = previous.map_or_else(
            || Arc::new(Fleet::empty(settings.role, model.cloned())),
            Self::fleet,
        );
        let rules = Rules {
            overflow: edge.affinity.overflow,
            draining: Arc::new(settings.draining.clone()),
        };
        let fleet = if settings.announced {
            Fleet::clone(&before)
        } else {
            succeed(&before, &settings.urls)
        };
        let fleet = fleet.with_rules(&edge.health, rules);
        let router = match previous {
            // Bindings to removed instances stay: their keys then count as failed over, not as new.
            Some(previous) => previous.router.reconfigured(&settings.router),
            None => Arc::new(Router::new(&settings.router)),
        };
        forget_blocks(&router, &fleet, &before);
        let bounds = QueueLimits {
            places: limits.max_in_flight.of(settings.role),
            waiting: limits.max_waiting,
        };
        let queue = previous.map(|previous| previous.queue.clone());
        let queue = queue.unwrap_or_else(|| Arc::new(Queue::new(bounds)));
        queue.set_limits(bounds);
        let kept = previous.filter(|previous| Arc::ptr_eq(&previous.router, &router));
        Self {
            fleet: ArcSwap::from_pointee(fleet),
            profile: settings.signing_profile,
            queue,
            exported: kept.map_or_else(Arc::default, |previous| previous.exported.clone()),
            router,
        }
    }

    /// The fleet as it is now.
    pub fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// The router, if it goes by KV cache.
    pub fn kv_cache_aware(&self) -> Option<&KvCacheAware> {
        self.router.kv_cache_aware()
    }

    /// The role of its instances, as metrics call it.
    pub fn label(&self) -> FleetLabel {
        self.fleet.load().label()
    }

    /// Picks an instance, reserves its load and counts the decision. An exclusion that leaves nobody
    /// is lifted, of those that failed first before the last one: an excluded instance is better than
    /// none.
    ///
    /// # Errors
    /// [`RouteError`] when nobody can be picked.
    pub fn pick(&self, query: &Query<'_>) -> Result<Pick, RouteError> {
        let fleet = self.fleet.load();
        let mut query = *query;
        let pick = loop {
            match (self.router.route(&fleet, &query), query.with_fewer()) {
                (Err(RouteError::Excluded { .. }), Some(fewer)) => query = fewer,
                (other, _) => break other?,
            }
        };
        let decisions = &telemetry::metrics().affinity_decisions;
        decisions.inc((self.label(), pick.decision));
        Ok(pick)
    }

    /// From now on the fleet is the instances at these addresses, in this order; `false` where it is
    /// that already.
    pub fn set_members(&self, addresses: &[String]) -> bool {
        let before = self.fleet();
        let now = before.instances().iter().map(|instance| &*instance.address);
        if now.eq(addresses.iter().map(String::as_str)) {
            return false;
        }
        let fleet = succeed(&before, addresses);
        forget_blocks(&self.router, &fleet, &before);
        self.fleet.store(Arc::new(fleet));
        true
    }

    /// Brings the gauges of its instances up to date and adds what its router counted.
    pub fn export(&self) {
        let metrics = telemetry::metrics();
        let label = self.label();
        let fleet = self.fleet();
        for instance in fleet.gone() {
            metrics.forget_instance(label, &instance.alias);
        }
        for instance in fleet.visible() {
            let in_flight = i64::try_from(instance.in_flight()).unwrap_or(i64::MAX);
            metrics.in_flight(label, &instance.alias).set(in_flight);
            let usable = fleet.get(instance.id).is_some() && instance.health().is_usable();
            metrics.usable(label, &instance.alias).set(usable.into());
        }
        let evictions = metrics.affinity_evictions.get(label);
        evictions.inc_by(new(&self.exported.evictions, self.router.evictions()));
        let dropped = self
            .kv_cache_aware()
            .map_or(0, KvCacheAware::blocks_dropped);
        let counter = metrics.kv_blocks_dropped.get(label);
        counter.inc_by(new(&self.exported.blocks_dropped, dropped));
    }
}

/// The fleet at these addresses after `before`.
fn succeed<U: AsRef<str>>(before: &Fleet, addresses: &[U]) -> Fleet {
    let fleet = Fleet::build(before.role(), addresses, Some(before));
    // They are in no snapshot from now on, so nothing would come by to take their series away.
    for instance in before.gone() {
        telemetry::metrics().forget_instance(fleet.label(), &instance.alias);
    }
    fleet
}

/// The blocks that removed instances held are forgotten with them.
fn forget_blocks(router: &Router, fleet: &Fleet, before: &Fleet) {
    if router.kv_cache_aware().is_some() {
        router.forget(&fleet.removed_since(before));
    }
}

/// What came since the last time.
fn new(exported: &AtomicU64, now: u64) -> u64 {
    now.saturating_sub(exported.swap(now, Relaxed))
}
