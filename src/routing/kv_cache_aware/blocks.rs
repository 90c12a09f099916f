//! Which blocks of KV cache each instance holds.
//!
//! Decides how far an instance holds a prompt: up to the first block that it lacks. Blocks are kept
//! by hash with their holders, so that a prompt is looked up once for all instances, however many
//! hold it. The number of blocks is bounded: they are kept in two generations, and when the younger
//! one is full the older one goes, with all that has not been added again since. It is spread over
//! shards with a lock each, which is held for one block at a time.

mod holders;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use holders::Holders;
pub(super) use holders::{Slot, Slots};

const SHARDS: usize = 64;
/// Blocks that are kept at most: what fills tables of a power of two, about 100 MB of them.
const BLOCKS: usize = 7 << 19;

/// Blocks and their holders.
#[derive(Debug)]
pub(super) struct Blocks {
    shards: Box<[Mutex<Shard>]>,
    dropped: AtomicU64,
}

/// The two generations; no block is in both.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<u64, Holders>,
    old: HashMap<u64, Holders>,
    /// Blocks of one generation.
    bound: usize,
}

impl Default for Blocks {
    fn default() -> Self {
        Self::with_bound(BLOCKS)
    }
}

impl Blocks {
    /// An empty index of about `blocks` blocks at most, at least two in each shard.
    pub(super) fn with_bound(blocks: usize) -> Self {
        let bound = (blocks / SHARDS / 2).max(1);
        let shard = |_| {
            Mutex::new(Shard {
                bound,
                ..Shard::default()
            })
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            dropped: AtomicU64::new(0),
        }
    }

    /// The holder has these blocks, in use now.
    pub(super) fn add(&self, holder: Slot, hashes: &[u64]) {
        for &hash in hashes {
            let Some(shard) = self.shard(hash) else {
                continue;
            };
            let dropped = shard.lock().add(holder, hash);
            self.dropped.fetch_add(dropped as u64, Relaxed);
        }
    }

    /// The holder does not have these blocks any more.
    pub(super) fn remove(&self, holder: Slot, hashes: &[u64]) {
        for &hash in hashes {
            let Some(shard) = self.shard(hash) else {
                continue;
            };
            let mut shard = shard.lock();
            let Shard { young, old, .. } = &mut *shard;
            for generation in [young, old] {
                let left = generation
                    .get_mut(&hash)
                    .map(|holders| holders.remove(holder));
                if left == Some(false) {
                    generation.remove(&hash);
                }
            }
        }
    }

    /// These holders have nothing any more. Linear in the blocks.
    pub(super) fn forget(&self, gone: &[Slot]) {
        let keep = |holders: &mut Holders| gone.iter().all(|slot| holders.remove(*slot));
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.young.retain(|_, holders| keep(holders));
            shard.old.retain(|_, holders| keep(holders));
        }
    }

    /// How many of these blocks each of the first `slots` holders has without a gap, by slot.
    pub(super) fn depths(&self, hashes: &[u64], slots: usize) -> Vec<u32> {
        let mut depths = vec![0; slots];
        let mut set = |slot: Slot, depth: u32| {
            if let Some(place) = depths.get_mut(usize::from(slot)) {
                *place = depth;
            }
        };
        let mut following = Slots::all(slots);
        let mut depth = 0;
        for &hash in hashes {
            let Some(shard) = self.shard(hash) else { break };
            let shard = shard.lock();
            match shard.holders(hash) {
                Some(holders) => following.keep(holders, |lost| set(lost, depth)),
                None => break,
            }
            if following.is_empty() {
                break;
            }
            depth += 1;
        }
        following.for_each(|slot| set(slot, depth));
        depths
    }

    /// Blocks that are kept. Locks every shard in turn.
    pub(super) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(len).sum()
    }

    /// Blocks that the bound pushed out so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.get((hash ^ (hash >> 32)) as usize % SHARDS)
    }
}

impl Shard {
    fn holders(&self, hash: u64) -> Option<&Holders> {
        self.young.get(&hash).or_else(|| self.old.get(&hash))
    }

    /// Adds a holder and returns how many blocks had to go for it.
    fn add(&mut self, holder: Slot, hash: u64) -> usize {
        if let Some(holders) = self.young.get_mut(&hash) {
            holders.add(holder);
            return 0;
        }
        let mut holders = self.old.remove(&hash).unwrap_or_default();
        holders.add(holder);
        let mut dropped = 0;
        if self.young.len() >= self.bound {
            let full = std::mem::take(&mut self.young);
            dropped = std::mem::replace(&mut self.old, full).len();
        }
        self.young.insert(hash, holders);
        dropped
    }
}

#[cfg(test)]
mod tests;
