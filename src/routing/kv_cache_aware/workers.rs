//! What the instances' workers say of their caches, and whether it fits.
//!
//! Decides the block size in force, which instances may be chosen, whose events can be read, and
//! which number an instance has among the holders of blocks. An instance of which nothing is known
//! yet is taken for one with upstream's defaults. The table holds the instances of the fleet: it is
//! cleaned when they are removed, and also when nobody says that they were.

use std::collections::HashMap;

use serde::Deserialize;

use super::blocks::Slot;
use crate::{
    fleet::{Fleet, InstanceId},
    routing::kv_hash::{Family, HashAlgo},
};

/// Upstream's block size where neither the file nor a worker names one.
const TOKENS_PER_BLOCK: u32 = 32;
/// Instances beyond those of the fleet before the table is cleaned.
const SPARE: usize = 64;

/// What a worker's `GET /server_info` says of its cache (specification section 6.3); it reads that
/// answer, the members that it has no use for included.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct WorkerFacts {
    /// `kv_cache_hash_algo`; a worker without it is taken for `v1_block_key`.
    #[serde(default, rename = "kv_cache_hash_algo")]
    pub hash_algo: Option<String>,
    #[serde(default)]
    pub tokens_per_block: Option<u32>,
}

/// Why an instance may not be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(
        "its kv_cache_hash_algo is {name:?}, which is none of {}; it gets no requests",
        HashAlgo::NAMES
    )]
    UnknownHash { name: String },
    #[error(
        "its blocks have {worker} tokens and the router's {router}, and neither divides the other; \
         it gets no requests: align kv_cache_config.tokens_per_block and the router's \
         tokens_per_block"
    )]
    BlockSize { router: u32, worker: u32 },
}

/// What has been made of a worker's facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// The worker did not name its `kv_cache_hash_algo`.
    pub assumed_hash: bool,
    /// The block size in force.
    pub tokens_per_block: u32,
    /// Whether the worker's events speak of the same blocks as the router; where they do not, there
    /// is no use in asking for them.
    pub events: bool,
}

/// One instance.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) slot: Slot,
    pub(super) algo: HashAlgo,
    tokens_per_block: Option<u32>,
    pub(super) unfit: Option<Unfit>,
}

impl Worker {
    fn unknown(slot: Slot) -> Self {
        Self {
            slot,
            algo: HashAlgo::default(),
            tokens_per_block: None,
            unfit: None,
        }
    }

    fn judge(&mut self, name: Option<&str>, router: u32) {
        self.unfit = match (name.map(HashAlgo::from_name), self.tokens_per_block) {
            (Some(None), _) => Some(Unfit::UnknownHash {
                name: name.unwrap_or_default().chars().take(64).collect(),
            }),
            (_, Some(worker)) if !divides(router, worker) => {
                Some(Unfit::BlockSize { router, worker })
            }
            _ => None,
        };
        self.algo = name.and_then(HashAlgo::from_name).unwrap_or_default();
    }
}

fn divides(a: u32, b: u32) -> bool {
    a.max(b).checked_rem(a.min(b)) == Some(0)
}

/// The instances of a fleet.
#[derive(Debug)]
pub(super) struct Workers {
    known: HashMap<InstanceId, Worker>,
    free: Vec<Slot>,
    slots: Slot,
    configured: Option<u32>,
    tokens_per_block: u32,
}

impl Workers {
    /// None yet; `configured` is the router's own `tokens_per_block`.
    pub(super) fn new(configured: Option<u32>) -> Self {
        Self {
            known: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            configured,
            tokens_per_block: configured.unwrap_or(TOKENS_PER_BLOCK),
        }
    }

    pub(super) fn get(&self, instance: InstanceId) -> Option<&Worker> {
        self.known.get(&instance)
    }

    /// Whether requests may be sent to it.
    pub(super) fn fit(&self, instance: InstanceId) -> bool {
        let worker = self.known.get(&instance);
        worker.is_none_or(|worker| worker.unfit.is_none())
    }

    pub(super) fn any_unfit(&self) -> bool {
        self.known.values().any(|worker| worker.unfit.is_some())
    }

    /// One more than the largest slot given so far.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.slots)
    }

    pub(super) fn tokens_per_block(&self) -> u32 {
        self.tokens_per_block
    }

    /// The algorithm of the instance that has been known for longest.
    pub(super) fn hash_algo(&self) -> HashAlgo {
        let first = self.known.iter().min_by_key(|(id, _)| **id);
        first.map_or_else(HashAlgo::default, |(_, worker)| worker.algo)
    }

    /// Whether any worker names its blocks by this family; of none at all, upstream's default.
    pub(super) fn use_family(&self, family: Family) -> bool {
        let mut families = self.known.values().map(|worker| worker.algo.family());
        if self.known.is_empty() {
            return family == HashAlgo::default().family();
        }
        families.any(|used| used == family)
    }

    /// Whether the worker's events can be read.
    pub(super) fn aligned(&self, worker: &Worker) -> bool {
        let same = |own| own == self.tokens_per_block;
        worker.unfit.is_none() && worker.tokens_per_block.is_none_or(same)
    }

    /// Enters the instances of `fleet` that are new, as unknown, and returns the slots of instances
    /// that had to be cleaned away, which are free again once their blocks are forgotten.
    pub(super) fn admit(&mut self, fleet: &Fleet) -> Vec<Slot> {
        let mut gone = Vec::new();
        if self.known.len() > fleet.instances().len() * 2 + SPARE {
            let away = |id: &&InstanceId| fleet.get(**id).is_none();
            let away: Vec<InstanceId> = self.known.keys().filter(away).copied().collect();
            gone = self.remove(&away);
        }
        for instance in fleet.instances() {
            self.enter(instance.id);
        }
        gone
    }

    fn enter(&mut self, instance: InstanceId) -> Option<&mut Worker> {
        if !self.known.contains_key(&instance) {
            let slot = self.free.pop().or_else(|| self.next_slot())?;
            self.known.insert(instance, Worker::unknown(slot));
        }
        self.known.get_mut(&instance)
    }

    /// A new slot; the last number means none.
    fn next_slot(&mut self) -> Option<Slot> {
        let slot = self.slots;
        self.slots = slot.checked_add(1).filter(|slots| *slots < Slot::MAX)?;
        Some(slot)
    }

    /// Removes instances and returns their slots.
    pub(super) fn remove(&mut self, removed: &[InstanceId]) -> Vec<Slot> {
        let removed = removed.iter().filter_map(|id| self.known.remove(id));
        removed.map(|worker| worker.slot).collect()
    }

    /// Slots whose blocks are forgotten may be given again.
    pub(super) fn release(&mut self, slots: Vec<Slot>) {
        self.free.extend(slots);
    }

    /// Takes over what a worker says. A router without a block size of its own adopts the first one
    /// that a worker has, and another one when no other worker has any.
    pub(super) fn learn(
        &mut self,
        instance: InstanceId,
        facts: &WorkerFacts,
    ) -> Result<Learned, Unfit> {
        let size = facts.tokens_per_block.filter(|size| *size > 0);
        if let (None, Some(size)) = (self.configured, size) {
            let sized = |(id, worker): (&InstanceId, &Worker)| {
                *id != instance && worker.unfit.is_none() && worker.tokens_per_block.is_some()
            };
            if !self.known.iter().any(sized) {
                self.tokens_per_block = size;
            }
        }
        let router = self.tokens_per_block;
        let assumed_hash = facts.hash_algo.is_none();
        let learned = |events| Learned {
            assumed_hash,
            tokens_per_block: router,
            events,
        };
        let Some(worker) = self.enter(instance) else {
            return Ok(learned(false));
        };
        worker.tokens_per_block = size;
        worker.judge(facts.hash_algo.as_deref(), router);
        if let Some(unfit) = &worker.unfit {
            return Err(unfit.clone());
        }
        Ok(learned(size.is_none_or(|size| size == router)))
    }

    /// An event names another algorithm than was known.
    pub(super) fn switch(&mut self, instance: InstanceId, algo: HashAlgo) {
        if let Some(worker) = self.known.get_mut(&instance) {
            worker.algo = algo;
        }
    }

    /// Takes over another block size, or none, from the configuration.
    pub(super) fn configure(&mut self, configured: Option<u32>) {
        if configured == self.configured {
            return;
        }
        self.configured = configured;
        let sizes = self
            .known
            .values()
            .filter_map(|worker| worker.tokens_per_block);
        let adopted = configured.or_else(|| sizes.min());
        self.tokens_per_block = adopted.unwrap_or(TOKENS_PER_BLOCK);
        let router = self.tokens_per_block;
        for worker in self.known.values_mut() {
            if matches!(worker.unfit, Some(Unfit::UnknownHash { .. })) {
                continue;
            }
            let unfit = worker
                .tokens_per_block
                .filter(|size| !divides(router, *size));
            worker.unfit = unfit.map(|worker| Unfit::BlockSize { router, worker });
        }
    }
}
