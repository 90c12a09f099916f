//! The same instance for the same conversation (specification section 2.3).
//!
//! Decides by the affinity key where there is one, else by the prompt's prefix, and sends what is
//! new where the least content is in flight. One lock orders all decisions, so that a parent and
//! its sub-agents that arrive together still meet; it is held for the time of a table operation,
//! and of one look at every instance only when a key is new. Prompts are weighed and hashed outside
//! it.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{
    Decision, LeastLoaded, Pick, Query, RouteError, exhausted,
    prefix::{
        block_hashes,
        tree::{Leaf, PrefixTree},
    },
};
use crate::{
    affinity::{AffinityKey, SharedTable, shares::Owner},
    config::ConversationConfig,
    fleet::{Fleet, Instance, InstanceId},
    wire::prompt::{CHARACTERS_PER_TOKEN, Units},
};

/// Leading blocks of a prompt that are kept and compared.
const BLOCKS_PER_SESSION: usize = 8192;
/// Blocks that are kept of all prompts together; beyond, the least recently used sessions go.
const BLOCKS: usize = 1 << 22;

/// The `conversation` router.
#[derive(Debug)]
pub struct Conversation {
    config: RwLock<ConversationConfig>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: SharedTable<Binding>,
    prefixes: PrefixTree,
    /// Sessions made up for requests without a key.
    synthetic: u64,
    least_loaded: LeastLoaded,
    evictions: u64,
}

#[derive(Debug, Clone, Copy)]
struct Binding {
    instance: InstanceId,
    /// The place of the session's prompt in the tree, if it has one.
    leaf: Option<LeafNumber>,
}

/// A [`Leaf`] in four bytes, `Option` included.
type LeafNumber = std::num::NonZeroU32;

/// One binding, as seen by replays and explanations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub key: AffinityKey,
    pub instance: InstanceId,
    /// Blocks of the prompt by which requests without a key find the session.
    pub blocks: u32,
}

impl Conversation {
    pub fn new(config: &ConversationConfig) -> Self {
        let state = State {
            table: SharedTable::new(config.max_sessions),
            prefixes: PrefixTree::default(),
            synthetic: 0,
            least_loaded: LeastLoaded::default(),
            evictions: 0,
        };
        Self {
            config: RwLock::new(config.clone()),
            state: Mutex::new(state),
        }
    }

    /// Chooses an instance and binds the request's session to it.
    pub fn route(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        if fleet.is_empty() {
            return Err(exhausted(fleet));
        }
        match query.key.filter(|key| !key.is_empty()) {
            Some(key) => self.route_key(fleet, query, AffinityKey::new(key)),
            None => self.route_prompt(fleet, query),
        }
    }

    fn route_key(
        &self,
        fleet: &Fleet,
        query: &Query<'_>,
        key: AffinityKey,
    ) -> Result<Pick, RouteError> {
        let weight = query.prompt.weight();
        let mut state = self.state.lock();
        let mut bound = None;
        let mut decision = Decision::New;
        state.table.touch_if(query.scope, key, |binding| {
            decision = Decision::Failover;
            bound = valid(fleet, query, binding.instance);
            bound.is_some()
        });
        if let Some(instance) = bound {
            let (load, elsewhere) = match state.elsewhere(fleet, query, instance) {
                None => {
                    drop(state);
                    (instance.reserve(weight), Decision::Bound)
                }
                Some(other) => (other?.reserve(weight), Decision::Overflow),
            };
            return Ok(Pick {
                load,
                decision: elsewhere,
                kv: None,
            });
        }
        let load = state.pick(fleet, query)?.reserve(weight);
        state.bind((query.scope, key), load.instance().id, &[]);
        Ok(Pick {
            load,
            decision,
            kv: None,
        })
    }

    fn route_prompt(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        let (config, hashes, weight) = self.hash(query);
        let at_least = enough(hashes.len(), config.match_threshold);
        let mut state = self.state.lock();
        let table = &state.table;
        let bound = |key| valid(fleet, query, table.peek(query.scope, key)?.instance);
        let session = state
            .prefixes
            .find(&hashes, at_least, |key| bound(key).is_some());
        let session = session.and_then(|key| Some((key, bound(key)?)));
        if let Some((key, instance)) = session {
            let load = match state.elsewhere(fleet, query, instance) {
                None => {
                    state.bind((query.scope, key), instance.id, &hashes);
                    instance.reserve(weight)
                }
                Some(other) => other?.reserve(weight),
            };
            return Ok(Pick {
                load,
                decision: Decision::Unkeyed,
                kv: None,
            });
        }
        let load = state.pick(fleet, query)?.reserve(weight);
        state.synthetic += 1;
        let key = AffinityKey::synthetic(state.synthetic);
        state.bind((query.scope, key), load.instance().id, &hashes);
        Ok(Pick {
            load,
            decision: Decision::Unkeyed,
            kv: None,
        })
    }

    /// The hashes of a prompt's blocks, which no other scope's equal, and its weight.
    fn hash(&self, query: &Query<'_>) -> (ConversationConfig, Vec<u64>, u64) {
        let config = self.config.read().clone();
        let skip = u64::from(config.hash_skip_count);
        let (units, skip) = match query.prompt.units() {
            Units::Tokens(units) => (units, skip),
            Units::CodePoints(units) => (units, skip * CHARACTERS_PER_TOKEN),
        };
        let rest = units
            .get(usize::try_from(skip).unwrap_or(usize::MAX)..)
            .unwrap_or_default();
        let mut hashes = block_hashes(rest, config.tokens_per_block as usize);
        let weight = hashes.len() as u64 * u64::from(config.tokens_per_block);
        hashes.truncate(BLOCKS_PER_SESSION);
        for hash in &mut hashes {
            *hash ^= query.scope;
        }
        (config, hashes, weight)
    }

    /// Takes new settings over; bindings stay, in a smaller table the most recently used ones.
    pub fn reconfigure(&self, config: &ConversationConfig) {
        let old = std::mem::replace(&mut *self.config.write(), config.clone());
        let mut state = self.state.lock();
        if (old.tokens_per_block, old.hash_skip_count)
            != (config.tokens_per_block, config.hash_skip_count)
        {
            state.prefixes = PrefixTree::default();
            state.table.for_each_mut(|binding| binding.leaf = None);
        }
        state.table.set_bound(config.max_sessions);
        while state.table.len() > state.table.bound() {
            state.evict_oldest();
        }
    }

    /// What one client's sessions may fill of the table at most, between 0 and 1.
    pub fn set_share(&self, share: f64) {
        self.state.lock().table.set_share(share);
    }

    /// See [`Router::forget`](super::Router::forget).
    pub fn forget(&self, removed: &[InstanceId]) {
        if removed.is_empty() {
            return;
        }
        let mut removed = removed.to_vec();
        removed.sort_unstable();
        let State {
            table, prefixes, ..
        } = &mut *self.state.lock();
        table.retain(|_, binding| {
            let gone = removed.binary_search(&binding.instance).is_ok();
            if gone && let Some(leaf) = binding.leaf() {
                prefixes.remove(leaf);
            }
            !gone
        });
    }

    /// Number of bindings held, made-up sessions included.
    pub fn bindings(&self) -> usize {
        self.state.lock().table.len()
    }

    /// Bindings dropped so far because the table was full.
    pub fn evictions(&self) -> u64 {
        self.state.lock().evictions
    }

    /// The instance that `key` is bound to.
    pub fn peek(&self, key: AffinityKey) -> Option<InstanceId> {
        Some(self.state.lock().table.find(key)?.instance)
    }

    /// Every binding, least recently used first. Linear.
    pub fn sessions(&self) -> Vec<Session> {
        let State {
            table, prefixes, ..
        } = &mut *self.state.lock();
        let blocks = |binding: Binding| binding.leaf().map_or(0, |leaf| prefixes.depth(leaf));
        let session = |(key, binding): (AffinityKey, Binding)| Session {
            key,
            instance: binding.instance,
            blocks: blocks(binding),
        };
        table.iter().map(session).collect()
    }

    /// Sessions made up so far for requests without a key; the last one's key is
    /// [`AffinityKey::synthetic`] of this number.
    pub fn synthetic_sessions(&self) -> u64 {
        self.state.lock().synthetic
    }

    /// Picks by load so far: upstream's round-robin counter.
    pub fn turn(&self) -> u64 {
        self.state.lock().least_loaded.turn
    }
}

impl State {
    /// The instance for something new.
    fn pick<'f>(
        &mut self,
        fleet: &'f Fleet,
        query: &Query<'_>,
    ) -> Result<&'f Arc<Instance>, RouteError> {
        let instance = self.least_loaded.pick(fleet, query, Instance::load);
        instance.ok_or_else(|| exhausted(fleet))
    }

    /// Where a request of a session that is bound to `bound` goes instead, for this once; `None` where
    /// it goes there. Where every instance is full the one with the session's cache serves it.
    fn elsewhere<'f>(
        &mut self,
        fleet: &'f Fleet,
        query: &Query<'_>,
        bound: &Instance,
    ) -> Option<Result<&'f Arc<Instance>, RouteError>> {
        if query.excludes(bound.id) {
            return Some(self.pick(fleet, query));
        }
        if !fleet.is_full(bound) {
            return None;
        }
        let below = |instance: &Instance| !fleet.is_full(instance);
        let least_loaded = &mut self.least_loaded;
        least_loaded
            .pick_if(fleet, query, Instance::load, below)
            .map(Ok)
    }

    fn bind(&mut self, (owner, key): (Owner, AffinityKey), instance: InstanceId, hashes: &[u64]) {
        let old = self.table.peek(owner, key).and_then(Binding::leaf);
        let leaf = self.prefixes.insert(key, hashes);
        if let Some(old) = old {
            self.prefixes.remove(old);
        }
        let binding = Binding {
            instance,
            leaf: leaf.and_then(Leaf::number),
        };
        if let Some((_, evicted)) = self.table.insert(owner, key, binding) {
            self.evicted(evicted);
        }
        while self.prefixes.blocks() > BLOCKS && self.table.len() > 1 {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&mut self) {
        if let Some((_, evicted)) = self.table.pop_oldest() {
            self.evicted(evicted);
        }
    }

    fn evicted(&mut self, binding: Binding) {
        self.evictions += 1;
        if let Some(leaf) = binding.leaf() {
            self.prefixes.remove(leaf);
        }
    }
}

impl Binding {
    fn leaf(self) -> Option<Leaf> {
        self.leaf.map(Leaf::from_number)
    }
}

/// The instance of a binding that stands, which may yet be one that this request avoids.
fn valid<'f>(
    fleet: &'f Fleet,
    query: &Query<'_>,
    instance: InstanceId,
) -> Option<&'f Arc<Instance>> {
    (!query.excludes(instance) || query.avoids_once(instance))
        .then(|| fleet.get(instance))
        .flatten()
        .filter(|instance| fleet.serves_bound(instance))
}

/// The least number of shared blocks that makes a prompt of `blocks` blocks belong to a session.
fn enough(blocks: usize, threshold: f64) -> usize {
    let about = (blocks as f64 * threshold).floor().max(0.0) as usize;
    let shares = |shared: usize| shared as f64 / blocks as f64 >= threshold;
    (about.saturating_sub(1)..=about + 1)
        .find(|&shared| shares(shared))
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
