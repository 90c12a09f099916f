//! The instances of one role, as a snapshot that never changes.
//!
//! Decides which [`Instance`] objects a list of addresses stands for: those that stay keep theirs,
//! so that their counts survive a reload; those that are new get new ones, also when the address
//! was there before. It must never change a snapshot that requests may be using, and it must never
//! choose an instance: that is routing.

pub mod breaker;
pub mod discovery;
pub mod health;
pub mod instance;
pub mod queue;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    config::{Draining, HealthConfig, OverflowConfig},
    telemetry::labels::FleetLabel,
    wire::Role,
};
use health::{DrainedBy, FleetHealth};

pub use breaker::Observation;
pub use instance::{Instance, InstanceId, LoadGuard};

/// The instances of one role at one moment.
#[derive(Debug, Clone)]
pub struct Fleet {
    role: Role,
    /// What comes before the role in its instances' aliases.
    model: Option<Arc<str>>,
    instances: Arc<[Arc<Instance>]>,
    /// Positions in `instances`, ordered by id.
    by_id: Arc<[(InstanceId, u32)]>,
    /// Instances that were removed and may still have requests in flight.
    retired: Vec<Arc<Instance>>,
    health: Arc<FleetHealth>,
    rules: Rules,
}

/// What the configuration says of a fleet's instances, beside their addresses.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// When an instance is full.
    pub overflow: OverflowConfig,
    /// Instances that are being emptied.
    pub draining: Arc<Draining>,
}

impl Fleet {
    /// A fleet without instances, to build on. The aliases of a named model's instances begin with
    /// `model/`.
    pub fn empty(role: Role, model: Option<Arc<str>>) -> Fleet {
        Fleet {
            role,
            model,
            instances: Arc::default(),
            by_id: Arc::default(),
            retired: Vec::new(),
            health: Arc::new(FleetHealth::new(label(role))),
            rules: Rules::default(),
        }
    }

    /// The fleet of the instances at `urls` (`host:port`), in that order; an address given twice
    /// counts once.
    ///
    /// Instances of `previous` at the same address are kept as they are. A new instance takes the
    /// lowest number that is in no kept one's alias, nor in that of a removed one which may still be
    /// seen. Those that are no instances any more are told so.
    pub fn build<U: AsRef<str>>(role: Role, urls: &[U], previous: Option<&Fleet>) -> Fleet {
        let (health, rules) = match previous {
            Some(fleet) => (fleet.health.clone(), fleet.rules.clone()),
            None => (Arc::new(FleetHealth::new(label(role))), Rules::default()),
        };
        let old = previous.map_or(&[][..], Fleet::instances);
        let old: HashMap<&str, &Arc<Instance>> = old
            .iter()
            .map(|instance| (&*instance.address, instance))
            .collect();
        let mut seen = HashSet::new();
        let urls = urls.iter().map(AsRef::as_ref);
        let urls: Vec<&str> = urls.filter(|url| seen.insert(*url)).collect();
        let retired = previous.map_or_else(Vec::new, |fleet| fleet.retired_without(&seen));

        let kept = urls.iter().filter_map(|url| old.get(url).copied());
        let taken: HashSet<u32> = kept
            .chain(&retired)
            .map(|instance| instance.number)
            .collect();
        let mut free = (0..).filter(|number| !taken.contains(number));
        let model = previous.and_then(|fleet| fleet.model.clone());
        let group = match &model {
            Some(model) => format!("{model}/{}", role.label()),
            None => role.label().to_owned(),
        };
        let instances: Arc<[Arc<Instance>]> = urls
            .iter()
            .map(|url| match old.get(url) {
                Some(instance) => Arc::clone(instance),
                None => {
                    let number = free.next().unwrap_or(u32::MAX);
                    health.joined();
                    let instance = Instance::new(&group, number, url, &health);
                    let mode = rules.draining.get(*url).copied();
                    instance.health().drain(DrainedBy::Configuration, mode);
                    Arc::new(instance)
                }
            })
            .collect();
        for instance in &retired {
            instance.health().leave();
        }
        Fleet {
            role,
            model,
            by_id: by_id(&instances),
            instances,
            retired,
            health,
            rules,
        }
    }

    /// The same fleet by other rules.
    pub fn with_rules(mut self, health: &HealthConfig, rules: Rules) -> Fleet {
        self.health.set_rules(health);
        for instance in self.instances.iter() {
            let mode = rules.draining.get(&*instance.address).copied();
            instance.health().apply(health);
            instance.health().drain(DrainedBy::Configuration, mode);
        }
        self.rules = rules;
        self
    }

    /// What is removed when only the addresses `stay` stay: what leaves now, idle or not, since a
    /// request with an older snapshot may still come to it, and what left before and is busy.
    fn retired_without(&self, stay: &HashSet<&str>) -> Vec<Arc<Instance>> {
        let busy = self
            .retired
            .iter()
            .filter(|instance| instance.in_flight() > 0);
        let leaving = self.instances.iter();
        let leaving = leaving.filter(|instance| !stay.contains(&*instance.address));
        busy.chain(leaving).cloned().collect()
    }

    /// The role that all its instances have.
    pub fn role(&self) -> Role {
        self.role
    }

    /// What it is called in metrics.
    pub fn label(&self) -> FleetLabel {
        self.health.label()
    }

    /// How many instances take new requests. Linear.
    pub fn usable(&self) -> usize {
        let instances = self.instances.iter();
        instances
            .filter(|instance| instance.health().is_usable())
            .count()
    }

    /// Whether its instances' health is to be ignored, because none of them is usable: a request is
    /// better off at one that may be ill than nowhere. Looks no further than the first usable one.
    pub fn ignores_health(&self) -> bool {
        let mut instances = self.instances.iter();
        !instances.any(|instance| instance.health().is_usable())
    }

    /// Whether a session that is bound to `instance` stays there.
    pub fn serves_bound(&self, instance: &Instance) -> bool {
        let health = instance.health();
        health.takes_bound(false) || health.takes_bound(true) && self.ignores_health()
    }

    /// Whether a session that is bound to `instance` has to go elsewhere for once.
    pub fn is_full(&self, instance: &Instance) -> bool {
        let OverflowConfig {
            max_in_flight,
            max_tokens,
        } = self.rules.overflow;
        max_in_flight.is_some_and(|most| instance.in_flight() >= most)
            || max_tokens.is_some_and(|most| instance.load() >= most)
    }

    /// The instances that requests may be sent to, in the configuration's order.
    pub fn instances(&self) -> &[Arc<Instance>] {
        &self.instances
    }

    /// The instance with this id, if requests may be sent to it.
    pub fn get(&self, id: InstanceId) -> Option<&Arc<Instance>> {
        let at = self.by_id.binary_search_by_key(&id, |entry| entry.0).ok()?;
        self.instances.get(self.by_id.get(at)?.1 as usize)
    }

    /// The instance at `address`, if requests may be sent to it.
    pub fn at(&self, address: &str) -> Option<&Arc<Instance>> {
        self.instances
            .iter()
            .find(|instance| &*instance.address == address)
    }

    /// The same fleet with only the instances that `keep` accepts, for choosing among them. Linear.
    pub fn only(&self, keep: impl Fn(&Instance) -> bool) -> Fleet {
        let kept = self.instances.iter().filter(|instance| keep(instance));
        let instances: Arc<[Arc<Instance>]> = kept.cloned().collect();
        Fleet {
            role: self.role,
            model: self.model.clone(),
            by_id: by_id(&instances),
            instances,
            retired: Vec::new(),
            health: self.health.clone(),
            rules: self.rules.clone(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// The instances an operator should see: all of them, and the removed ones until their last
    /// request is over.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Instance>> {
        let busy = self
            .retired
            .iter()
            .filter(|instance| instance.in_flight() > 0);
        self.instances.iter().chain(busy)
    }

    /// The removed ones that nobody needs to see any more.
    pub fn gone(&self) -> impl Iterator<Item = &Arc<Instance>> {
        let retired = self.retired.iter();
        retired.filter(|instance| instance.in_flight() == 0)
    }

    /// Ids of `previous` that are not instances any more.
    pub fn removed_since(&self, previous: &Fleet) -> Vec<InstanceId> {
        let ids = previous.instances.iter().map(|instance| instance.id);
        ids.filter(|id| self.get(*id).is_none()).collect()
    }
}

fn label(role: Role) -> FleetLabel {
    match role {
        Role::Context => FleetLabel::Context,
        Role::Generation => FleetLabel::Generation,
        Role::Aggregated => FleetLabel::Aggregated,
    }
}

fn by_id(instances: &[Arc<Instance>]) -> Arc<[(InstanceId, u32)]> {
    let mut by_id: Vec<_> = instances
        .iter()
        .zip(0..)
        .map(|(instance, at)| (instance.id, at))
        .collect();
    by_id.sort_unstable();
    by_id.into()
}

#[cfg(test)]
mod tests;
