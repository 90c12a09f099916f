//! Bindings, bounded and in exact order of use.
//!
//! Decides which binding goes when the table is full: always the least recently used. Every
//! operation but `retain` and `iter` takes constant time, and an entry costs at most 64 bytes
//! whatever its id was. It holds no lock and must never block.

mod index;

use super::AffinityKey;
use index::Index;

/// No slot: the end of a list.
const NONE: u32 = u32::MAX;
/// Touches that are put off at most.
const TOUCHES: usize = 64;
/// Room that is set aside at once; larger tables grow as they fill.
const RESERVED: usize = 1 << 20;

/// A map from [`AffinityKey`] to a small value that forgets the least recently used entry when it
/// is full.
#[derive(Debug)]
pub struct BindingTable<V> {
    index: Index<V>,
    slots: Vec<Slot>,
    oldest: u32,
    newest: u32,
    free: u32,
    bound: usize,
    /// Slots used since the list was last put in order. A touch moves three slots that lie far apart
    /// in memory; many at once wait for memory together.
    touched: Vec<u32>,
}

/// An entry's place in the order of use.
#[derive(Debug, Clone, Copy)]
struct Slot {
    key: AffinityKey,
    older: u32,
    newer: u32,
}

impl<V: Copy> BindingTable<V> {
    /// An empty table that holds at most `bound` entries, at least one.
    pub fn new(bound: usize) -> Self {
        let bound = bound.clamp(1, NONE as usize - 1);
        Self {
            slots: Vec::with_capacity(bound.min(RESERVED)),
            index: Index::with_capacity(bound.min(RESERVED)),
            oldest: NONE,
            newest: NONE,
            free: NONE,
            bound,
            touched: Vec::with_capacity(TOUCHES),
        }
    }

    /// As [`BindingTable::new`], but room is taken only as it is needed: for tables that are empty
    /// more often than not.
    pub fn growing(bound: usize) -> Self {
        Self {
            slots: Vec::new(),
            index: Index::with_capacity(0),
            bound: bound.clamp(1, NONE as usize - 1),
            ..Self::new(1)
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Most entries it will hold.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The value of `key`, which becomes the most recently used.
    pub fn get_touch(&mut self, key: AffinityKey) -> Option<V> {
        let (value, slot) = self.index.get(self.index.find(key)?)?;
        self.touch(slot);
        Some(value)
    }

    /// Shows the value of `key` to `accept`; if that takes it, it becomes the most recently used.
    pub fn touch_if(&mut self, key: AffinityKey, accept: impl FnOnce(V) -> bool) {
        let found = self.index.find(key).and_then(|at| self.index.get(at));
        if let Some((value, slot)) = found
            && accept(value)
        {
            self.touch(slot);
        }
    }

    /// The value of `key`, leaving the order of use as it is.
    pub fn peek(&self, key: AffinityKey) -> Option<V> {
        Some(self.index.get(self.index.find(key)?)?.0)
    }

    /// Sets the value of `key`, which becomes the most recently used, and returns the entry that
    /// had to go for it.
    pub fn insert(&mut self, key: AffinityKey, value: V) -> Option<(AffinityKey, V)> {
        if let Some(at) = self.index.find(key) {
            self.index.set(at, value);
            if let Some((_, slot)) = self.index.get(at) {
                self.touch(slot);
            }
            return None;
        }
        let full = self.len() >= self.bound;
        let evicted = full.then(|| self.pop_oldest()).flatten();
        self.settle();
        let slot = self.take_slot(key);
        self.link_newest(slot);
        self.index.insert(key, slot, value);
        evicted
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: AffinityKey) -> Option<V> {
        self.settle();
        let (value, slot) = self.index.remove(key)?;
        self.free_slot(slot);
        Some(value)
    }

    /// Removes and returns the least recently used entry.
    pub fn pop_oldest(&mut self) -> Option<(AffinityKey, V)> {
        self.settle();
        let key = self.slots.get(self.oldest as usize)?.key;
        Some((key, self.remove(key)?))
    }

    /// Keeps only the entries that `keep` accepts; the order of use stays. Linear.
    pub fn retain(&mut self, mut keep: impl FnMut(AffinityKey, V) -> bool) {
        self.settle();
        let mut at = self.oldest;
        while let Some(&Slot { key, newer, .. }) = self.slots.get(at as usize) {
            if self.peek(key).is_some_and(|value| !keep(key, value)) {
                self.remove(key);
            }
            at = newer;
        }
    }

    /// Every entry, least recently used first.
    pub fn iter(&mut self) -> impl Iterator<Item = (AffinityKey, V)> + '_ {
        self.settle();
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let slot = self.slots.get(at as usize)?;
            at = slot.newer;
            Some((slot.key, self.peek(slot.key)?))
        })
    }

    /// Changes every value in place. Linear.
    pub fn for_each_mut(&mut self, change: impl FnMut(&mut V)) {
        self.index.for_each_mut(change);
    }

    /// Changes the bound for later insertions; [`pop_oldest`](Self::pop_oldest) makes room now.
    pub fn set_bound(&mut self, bound: usize) {
        self.bound = bound.clamp(1, NONE as usize - 1);
    }

    /// Bytes that the table has set aside.
    pub fn allocated(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.index.allocated()
    }

    fn touch(&mut self, at: u32) {
        if self.touched.len() == TOUCHES {
            self.settle();
        }
        self.touched.push(at);
    }

    /// Brings the list into the order of use.
    fn settle(&mut self) {
        for at in 0..self.touched.len() {
            let at = self.touched[at];
            if at != self.newest {
                self.unlink(at);
                self.link_newest(at);
            }
        }
        self.touched.clear();
    }

    fn take_slot(&mut self, key: AffinityKey) -> u32 {
        let slot = Slot {
            key,
            older: NONE,
            newer: NONE,
        };
        if self.free == NONE {
            self.slots.push(slot);
            return (self.slots.len() - 1) as u32;
        }
        let at = self.free;
        self.free = self.slots[at as usize].newer;
        self.slots[at as usize] = slot;
        at
    }

    fn free_slot(&mut self, at: u32) {
        self.unlink(at);
        self.slots[at as usize].newer = self.free;
        self.free = at;
    }

    fn unlink(&mut self, at: u32) {
        let Slot { older, newer, .. } = self.slots[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let last = self.newest;
        self.slots[at as usize].older = last;
        self.slots[at as usize].newer = NONE;
        match last {
            NONE => self.oldest = at,
            last => self.slots[last as usize].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests;
