//! One worker endpoint and what is in flight on it.
//!
//! Decides how requests are counted: a [`LoadGuard`] adds its request when it is made and takes it
//! back when it is dropped, exactly once, from the very instance it was added to. Counts can
//! therefore never go below zero, whatever happens to the fleet in between. Nothing else may change
//! them.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use super::health::{FleetHealth, Health};

/// An instance's id: unique in the process and never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(NonZeroU32);

impl InstanceId {
    fn next() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Relaxed).wrapping_add(1);
        Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }
}

/// One worker endpoint. `Display` is its alias, which may be shown to clients.
pub struct Instance {
    pub id: InstanceId,
    /// `context-0`, `generation-3`, or `MODEL/context-0` of a named model: the name that metrics and debug headers use.
    pub alias: Arc<str>,
    /// `host:port`; never shown to clients.
    pub address: Arc<str>,
    /// The number in the alias.
    pub(super) number: u32,
    counts: Counts,
    health: Health,
}

/// On a cache line of their own: they are written for every request.
#[derive(Default)]
#[repr(align(64))]
struct Counts {
    in_flight: AtomicU64,
    load: AtomicU64,
}

impl Instance {
    pub(super) fn new(group: &str, number: u32, address: &str, health: &Arc<FleetHealth>) -> Self {
        let (alias, address) = (format!("{group}-{number}").into(), address.into());
        Self {
            id: InstanceId::next(),
            health: Health::new(&alias, &address, health),
            alias,
            address,
            number,
            counts: Counts::default(),
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.counts.in_flight.load(Relaxed)
    }

    /// Sum of the weights of the requests in flight, in the unit of the fleet's router.
    pub fn load(&self) -> u64 {
        self.counts.load.load(Relaxed)
    }

    /// Whether it is usable.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Completes when the instance stops being usable, or leaves its fleet, from now on: when there
    /// is little hope for what was sent there. One that is emptied goes on with what it has.
    pub fn lost(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let seen = self.health.losses();
        let instance = Arc::clone(self);
        async move { instance.health.lost_since(seen).await }
    }

    /// Counts one request of this weight until the guard is dropped.
    pub fn reserve(self: &Arc<Self>, weight: u64) -> LoadGuard {
        self.counts.in_flight.fetch_add(1, Relaxed);
        self.counts.load.fetch_add(weight, Relaxed);
        LoadGuard {
            instance: Arc::clone(self),
            weight,
            losses: self.health.losses(),
        }
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.alias)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("id", &self.id)
            .field("alias", &self.alias)
            .field("address", &self.address)
            .field("in_flight", &self.in_flight())
            .field("load", &self.load())
            .finish()
    }
}

/// A request that is counted on an instance until this is dropped.
#[derive(Debug)]
#[must_use = "the request is only counted while the guard lives"]
pub struct LoadGuard {
    instance: Arc<Instance>,
    weight: u64,
    /// How often the instance was lost before.
    losses: u32,
}

impl LoadGuard {
    /// Where the request goes.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// As [`Instance::lost`], since the request was placed there: at once if it was lost meanwhile.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let (instance, seen) = (Arc::clone(&self.instance), self.losses);
        async move { instance.health.lost_since(seen).await }
    }

    /// What the request adds to its instance's load.
    pub fn weight(&self) -> u64 {
        self.weight
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.instance.counts.in_flight.fetch_sub(1, Relaxed);
        self.instance.counts.load.fetch_sub(self.weight, Relaxed);
    }
}
