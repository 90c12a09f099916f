//! One rank's prefix cache: which blocks of earlier prompts are still there.
//!
//! A block is known by the hash of its tokens chained to the block before it, so a hit means that
//! the whole prefix is the same. The least recently used block goes first, and of one prompt the
//! last block before the first. It must never count a block that is not there.

use std::collections::{BTreeMap, HashMap};

use crate::routing::kv_hash::v1_block_keys;

/// Hash of a block and of everything before it.
pub type BlockHash = u64;

/// The hashes of a prompt's whole blocks, by upstream's `v1_block_key` (specification section 2.5).
///
/// The last token is never part of a block: a real engine has to compute at least one token to
/// have something to sample from, so a prompt never hits completely.
pub fn chain(tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    let block_size = block_size.max(1);
    let size = u32::try_from(block_size).unwrap_or(u32::MAX);
    let mut chain = v1_block_keys(tokens, size, None);
    chain.truncate(tokens.len().saturating_sub(1) / block_size);
    chain
}

/// The finaliser of SplitMix64: a bijection in which every input bit moves every output bit.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What storing a prompt changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Blocks that were not there before, in the prompt's order.
    pub added: Vec<BlockHash>,
    /// Blocks that had to go, the oldest first.
    pub evicted: Vec<BlockHash>,
}

/// A least-recently-used set of blocks with a bound.
#[derive(Debug)]
pub struct BlockCache {
    capacity: usize,
    clock: u64,
    used: HashMap<BlockHash, u64>,
    by_age: BTreeMap<u64, BlockHash>,
}

impl BlockCache {
    /// A cache of at most `capacity` blocks; 0 caches nothing.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            clock: 0,
            used: HashMap::new(),
            by_age: BTreeMap::new(),
        }
    }

    /// How many leading blocks of `chain` are here. Those become the most recently used.
    pub fn matched(&mut self, chain: &[BlockHash]) -> usize {
        let matched = chain
            .iter()
            .take_while(|hash| self.used.contains_key(hash))
            .count();
        for hash in chain.iter().take(matched).rev() {
            self.touch(*hash);
        }
        matched
    }

    /// Stores the blocks of `chain`, making room for them; what of them exceeds the capacity is left
    /// out at the end.
    pub fn store(&mut self, chain: &[BlockHash]) -> Stored {
        let mut stored = Stored::default();
        let kept = chain.get(..self.capacity).unwrap_or(chain);
        stored.added = kept
            .iter()
            .copied()
            .filter(|hash| !self.used.contains_key(hash))
            .collect();
        for hash in kept.iter().rev() {
            self.touch(*hash);
        }
        while self.used.len() > self.capacity {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                break;
            };
            self.used.remove(&oldest);
            stored.evicted.push(oldest);
        }
        stored
    }

    /// Number of blocks here.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    fn touch(&mut self, hash: BlockHash) {
        self.clock += 1;
        if let Some(before) = self.used.insert(hash, self.clock) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.clock, hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
        range.collect()
    }

    #[test]
    fn a_longer_prompt_shares_the_blocks_of_its_prefix() {
        let parent = chain(&tokens(0..65), 32);
        let child = chain(&tokens(0..129), 32);
        assert_eq!(parent.len(), 2);
        assert_eq!(child.len(), 4);
        assert_eq!(parent[..], child[..2]);
    }

    #[test]
    fn the_last_token_is_never_in_a_block() {
        assert_eq!(chain(&tokens(0..32), 32).len(), 0);
        assert_eq!(chain(&tokens(0..33), 32).len(), 1);
        assert!(chain(&[], 32).is_empty());
    }

    #[test]
    fn the_same_block_after_another_prefix_is_another_block() {
        let mut other = tokens(0..65);
        other[0] = 99;
        let first = chain(&tokens(0..65), 32);
        let second = chain(&other, 32);
        assert_ne!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
    }

    #[test]
    fn a_gap_ends_the_match() {
        let mut cache = BlockCache::new(8);
        let long = chain(&tokens(0..129), 32);
        cache.store(&long[1..]);
        assert_eq!(cache.matched(&long), 0);
        cache.store(&long[..1]);
        assert_eq!(cache.matched(&long), 4);
    }

    #[test]
    fn the_oldest_prompt_goes_first_and_its_last_block_before_its_first() {
        let mut cache = BlockCache::new(4);
        let old = chain(&tokens(0..65), 32);
        let middle = chain(&tokens(1000..1065), 32);
        cache.store(&old);
        cache.store(&middle);
        assert_eq!(
            cache.matched(&old),
            2,
            "used again, so no longer the oldest"
        );
        let stored = cache.store(&chain(&tokens(2000..2033), 32));
        assert_eq!(stored.evicted, [middle[1]]);
        assert_eq!(cache.matched(&old), 2);
        assert_eq!(cache.matched(&middle), 1);
        assert_eq!(cache.len(), 4);
    }

    #[test]
    fn a_prompt_larger_than_the_cache_keeps_its_beginning() {
        let mut cache = BlockCache::new(2);
        let long = chain(&tokens(0..129), 32);
        let stored = cache.store(&long);
        assert_eq!(stored.added, long[..2]);
        assert_eq!(cache.matched(&long), 2);
        let mut none = BlockCache::new(0);
        none.store(&long);
        assert_eq!(none.matched(&long), 0);
    }
}
