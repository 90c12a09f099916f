//! Sessions by the prefixes of their prompts.
//!
//! Decides which session's prompt shares the longest prefix with a new one. Equal prefixes are kept
//! once; a session is a leaf below its last block. Adding and removing cost a step for each block of
//! the session, finding one for each block of the question, plus a bounded search where the freshest
//! session below a block may not be used. It does not know instances, and it forgets nothing by
//! itself.

mod slab;

use std::{
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
};

use hashbrown::HashTable;

use crate::affinity::AffinityKey;
use slab::Slab;

const NONE: u32 = u32::MAX;
/// The blocks that the search for a usable session looks at, at most.
const SEARCH: usize = 4096;

/// A session's place in the tree, to be given back to [`PrefixTree::remove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf(u32);

impl Leaf {
    /// The place as a number that is never 0.
    pub fn number(self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.0 + 1)
    }

    /// The place with this number.
    pub fn from_number(number: NonZeroU32) -> Self {
        Self(number.get() - 1)
    }
}

/// Sessions, found by the block hashes of their prompts.
#[derive(Debug)]
pub struct PrefixTree {
    nodes: Slab<Node>,
    leaves: Slab<LeafData>,
    /// Nodes by parent and hash; seeded, since clients choose what is hashed.
    index: HashTable<u32>,
    seed: RandomState,
    clock: u64,
}

/// One block of a prompt.
#[derive(Debug, Clone, Copy)]
struct Node {
    hash: u64,
    parent: u32,
    first_child: u32,
    older: u32,
    newer: u32,
    depth: u32,
    /// Sessions at or below this block.
    sessions: u32,
    first_leaf: u32,
    /// The freshest of the sessions at or below this block.
    freshest: u32,
}

#[derive(Debug, Clone, Copy)]
struct LeafData {
    session: AffinityKey,
    added: u64,
    node: u32,
    older: u32,
    newer: u32,
}

impl Default for PrefixTree {
    fn default() -> Self {
        Self {
            nodes: Slab::default(),
            leaves: Slab::default(),
            index: HashTable::new(),
            seed: RandomState::new(),
            clock: 0,
        }
    }
}

impl PrefixTree {
    /// Number of blocks kept.
    pub fn blocks(&self) -> usize {
        self.index.len()
    }

    /// Adds a session; `None` if its prompt has no blocks and it can never be found.
    pub fn insert(&mut self, session: AffinityKey, hashes: &[u64]) -> Option<Leaf> {
        let mut node = NONE;
        for (&hash, depth) in hashes.iter().zip(1..) {
            node = self
                .child(node, hash)
                .unwrap_or_else(|| self.add_child(node, hash, depth));
        }
        if node == NONE {
            return None;
        }
        self.clock += 1;
        let older = self.nodes[node].first_leaf;
        let data = LeafData {
            session,
            added: self.clock,
            node,
            older,
            newer: NONE,
        };
        let leaf = self.leaves.add(data);
        if older != NONE {
            self.leaves[older].newer = leaf;
        }
        self.nodes[node].first_leaf = leaf;
        while node != NONE {
            let data = &mut self.nodes[node];
            data.sessions += 1;
            data.freshest = leaf;
            node = data.parent;
        }
        Some(Leaf(leaf))
    }

    /// Removes a session, and the blocks that only it had. To move a session, insert its new place
    /// first: then the blocks that stay need no new freshest session.
    pub fn remove(&mut self, leaf: Leaf) {
        let Leaf(leaf) = leaf;
        let LeafData {
            node, older, newer, ..
        } = self.leaves[leaf];
        match newer {
            NONE => self.nodes[node].first_leaf = older,
            newer => self.leaves[newer].older = older,
        }
        if older != NONE {
            self.leaves[older].newer = newer;
        }
        let mut at = node;
        while at != NONE {
            let parent = self.nodes[at].parent;
            self.nodes[at].sessions -= 1;
            if self.nodes[at].sessions == 0 {
                self.drop_node(at);
            } else if self.nodes[at].freshest == leaf {
                self.nodes[at].freshest = self.freshest_of(at);
            }
            at = parent;
        }
        self.leaves.free(leaf);
    }

    /// Blocks of a session's prompt.
    pub fn depth(&self, leaf: Leaf) -> u32 {
        self.nodes[self.leaves[leaf.0].node].depth
    }

    /// The session that shares the most leading blocks with `hashes`, at least `at_least` of them,
    /// among those that are `usable`; of several the freshest, or near it.
    pub fn find(
        &self,
        hashes: &[u64],
        at_least: usize,
        usable: impl Fn(AffinityKey) -> bool,
    ) -> Option<AffinityKey> {
        let mut path = Vec::new();
        for &hash in hashes {
            match self.child(path.last().copied().unwrap_or(NONE), hash) {
                Some(node) => path.push(node),
                None => break,
            }
        }
        let (mut searched, mut budget) = (NONE, SEARCH);
        while path.len() >= at_least.max(1) {
            let node = path.pop()?;
            if let Some(session) = self.search(node, searched, &mut budget, &usable) {
                return Some(session);
            }
            searched = node;
        }
        None
    }

    /// A usable session at or below `from`, leaving out the child `searched`.
    fn search(
        &self,
        from: u32,
        searched: u32,
        budget: &mut usize,
        usable: &impl Fn(AffinityKey) -> bool,
    ) -> Option<AffinityKey> {
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            *budget = budget.checked_sub(1)?;
            let data = &self.nodes[node];
            let freshest = self.leaves[data.freshest].session;
            if usable(freshest) {
                return Some(freshest);
            }
            if data.sessions == 1 {
                continue;
            }
            let mut leaf = data.first_leaf;
            while leaf != NONE {
                *budget = budget.checked_sub(1)?;
                let LeafData { session, older, .. } = self.leaves[leaf];
                if usable(session) {
                    return Some(session);
                }
                leaf = older;
            }
            let mut child = data.first_child;
            while child != NONE && open.len() < SEARCH {
                if child != searched {
                    open.push(child);
                }
                child = self.nodes[child].older;
            }
        }
        None
    }

    fn freshest_of(&self, node: u32) -> u32 {
        let mut best = self.nodes[node].first_leaf;
        let mut child = self.nodes[node].first_child;
        while child != NONE {
            let other = self.nodes[child].freshest;
            if best == NONE || self.leaves[other].added > self.leaves[best].added {
                best = other;
            }
            child = self.nodes[child].older;
        }
        best
    }

    fn child(&self, parent: u32, hash: u64) -> Option<u32> {
        let nodes = &self.nodes;
        let equal = |&at: &u32| nodes[at].hash == hash && nodes[at].parent == parent;
        self.index
            .find(self.seed.hash_one((parent, hash)), equal)
            .copied()
    }

    fn add_child(&mut self, parent: u32, hash: u64, depth: u32) -> u32 {
        let older = if parent == NONE {
            NONE
        } else {
            self.nodes[parent].first_child
        };
        let node = self.nodes.add(Node {
            hash,
            parent,
            first_child: NONE,
            older,
            newer: NONE,
            depth,
            sessions: 0,
            first_leaf: NONE,
            freshest: NONE,
        });
        if older != NONE {
            self.nodes[older].newer = node;
        }
        if parent != NONE {
            self.nodes[parent].first_child = node;
        }
        let (nodes, seed) = (&self.nodes, &self.seed);
        let hash_of = |&at: &u32| seed.hash_one((nodes[at].parent, nodes[at].hash));
        self.index
            .insert_unique(seed.hash_one((parent, hash)), node, hash_of);
        node
    }

    fn drop_node(&mut self, node: u32) {
        let Node {
            hash,
            parent,
            older,
            newer,
            ..
        } = self.nodes[node];
        if newer != NONE {
            self.nodes[newer].older = older;
        } else if parent != NONE {
            self.nodes[parent].first_child = older;
        }
        if older != NONE {
            self.nodes[older].newer = newer;
        }
        let hash = self.seed.hash_one((parent, hash));
        if let Ok(entry) = self.index.find_entry(hash, |&at| at == node) {
            entry.remove();
        }
        self.nodes.free(node);
    }
}

#[cfg(test)]
mod tests;
