//! Which client has used which session: the ground on which `owned` claims are decided.
//!
//! Sessions are remembered by a keyed hash of client and session, so that equal ids of two clients
//! are different entries and no client can make ids meet. Memory is bounded: sessions that were not
//! used for longest are forgotten, after which a claim to them is dropped. This file must never keep
//! an id's text, and never block on anything but its own short locks.

use parking_lot::Mutex;

use super::{Client, ClientId};
use crate::affinity::{AffinityKey, BindingTable};

const SHARDS: usize = 16;

/// The (client, session) pairs seen.
pub struct Lineage {
    shards: [Mutex<BindingTable<()>>; SHARDS],
}

impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lineage")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Lineage {
    /// Remembers at most `capacity` pairs, rounded up to a multiple of 16.
    pub fn new(capacity: usize) -> Self {
        let bound = capacity.div_ceil(SHARDS);
        Self {
            shards: std::array::from_fn(|_| Mutex::new(BindingTable::new(bound))),
        }
    }

    /// Changes the bound; what is above a smaller one is forgotten, least recently used first.
    pub fn set_capacity(&self, capacity: usize) {
        for shard in &self.shards {
            let mut pairs = shard.lock();
            pairs.set_bound(capacity.div_ceil(SHARDS));
            while pairs.len() > pairs.bound() {
                pairs.pop_oldest();
            }
        }
    }

    /// Notes that `client` uses `session`.
    pub fn record(&self, client: &Client, session: &str) {
        let key = key(client, session);
        self.shard(key).lock().insert(key, ());
    }

    /// Whether `client` has used `session`; being asked for counts as use.
    pub fn owns(&self, client: &Client, session: &str) -> bool {
        let key = key(client, session);
        self.shard(key).lock().get_touch(key).is_some()
    }

    /// How many pairs are remembered.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: AffinityKey) -> &Mutex<BindingTable<()>> {
        // Bits from the middle: the tables use the lowest and the highest ones.
        &self.shards[(key.table_hash() >> 32) as usize % SHARDS]
    }
}

/// By name, because positions change across reloads; nobody can call themselves anonymous.
fn key(client: &Client, session: &str) -> AffinityKey {
    match client.id {
        ClientId::Named(_) => AffinityKey::of_client(&client.name, session),
        ClientId::Anonymous | ClientId::Trusted => AffinityKey::new(session),
    }
}

#[cfg(test)]
mod tests;
