//! Which client has used which session, and which sessions are sub-agents: the ground on which claims
//! are decided.
//!
//! Sessions are remembered by a keyed hash of client and session, so that equal ids of two clients
//! are different entries and no client can make ids meet. Memory is bounded: sessions that were not
//! used for longest are forgotten, after which a claim to them is dropped. This file must never keep
//! the id of a session that is no parent, and never block on anything but its own short locks.

mod roots;

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{Client, ClientId};
use crate::affinity::{AffinityKey, SharedTable, shares::Owner};
use roots::Roots;

const SHARDS: usize = 16;
/// Steps from a sub-agent to its root at most: each is a session that became a sub-agent later than
/// the one before named it.
const MOST_STEPS: usize = 8;

/// Whole seconds since this process began to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u32);

impl Seconds {
    pub fn now() -> Self {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Self(START.elapsed().as_secs().try_into().unwrap_or(u32::MAX))
    }

    /// Whether `ttl` has passed since.
    fn is_over(self, ttl: Duration, now: Self) -> bool {
        u64::from(now.0.saturating_sub(self.0)) > ttl.as_secs()
    }
}

/// The root of a family, as a claim to one of its sub-agents finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// What was named is no sub-agent.
    Itself,
    /// The session that the sub-agents of this family follow.
    Session(Box<str>),
    /// The sessions name each other.
    Circle,
}

/// The (client, session) pairs seen.
pub struct Lineage {
    shards: [Mutex<SharedTable<Seconds>>; SHARDS],
    roots: Mutex<Roots>,
}

impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lineage")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Lineage {
    /// Remembers at most `capacity` pairs, rounded up to a multiple of 16, and as many sub-agents.
    pub fn new(capacity: usize) -> Self {
        let bound = capacity.div_ceil(SHARDS);
        Self {
            shards: std::array::from_fn(|_| Mutex::new(SharedTable::new(bound))),
            roots: Mutex::new(Roots::new(capacity)),
        }
    }

    /// What one client's sessions may fill of the memory at most, between 0 and 1.
    pub fn set_share(&self, share: f64) {
        for shard in &self.shards {
            shard.lock().set_share(share);
        }
        self.roots.lock().set_share(share);
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
        self.roots.lock().set_bound(capacity);
    }

    /// Notes that `client` uses `session`, which follows `parent` where there is one.
    pub fn record(&self, client: &Client, session: &str, parent: Option<&str>, now: Seconds) {
        let key = key(client, session);
        self.shard(key).lock().insert(owner(client), key, now);
        let mut roots = self.roots.lock();
        match parent {
            Some(parent) => roots.set((owner(client), key), parent, now),
            None => roots.remove((owner(client), key)),
        }
    }

    /// Whether `client` has used `session` within `ttl`; if so, being asked for counts as use.
    pub fn owns(&self, client: &Client, session: &str, ttl: Duration, now: Seconds) -> bool {
        let key = key(client, session);
        let mut pairs = self.shard(key).lock();
        let owns = pairs
            .peek(owner(client), key)
            .is_some_and(|seen| !seen.is_over(ttl, now));
        if owns {
            pairs.insert(owner(client), key, now);
        }
        owns
    }

    /// Whom the sub-agents of `parent` follow, where that is a sub-agent itself and was so within
    /// `ttl`; `session` is the one that asks.
    pub fn root(
        &self,
        client: &Client,
        (session, parent): (Option<&str>, &str),
        ttl: Duration,
        now: Seconds,
    ) -> Root {
        let mut roots = self.roots.lock();
        let mut root = Root::Itself;
        for _ in 0..MOST_STEPS {
            let named = match &root {
                Root::Session(named) => named,
                _ => parent,
            };
            match roots.get((owner(client), key(client, named)), ttl, now) {
                Some(next) if Some(next) != session => root = Root::Session(next.into()),
                Some(_) => return Root::Circle,
                None => return root,
            }
        }
        Root::Circle
    }

    /// How many pairs are remembered.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: AffinityKey) -> &Mutex<SharedTable<Seconds>> {
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

/// Whose sessions push out each other only.
fn owner(client: &Client) -> Owner {
    super::Isolation::scope(client)
}

#[cfg(test)]
mod tests;
