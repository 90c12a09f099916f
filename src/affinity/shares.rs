//! One table for several owners, none of whom can push out what is another's.
//!
//! Decides whose binding goes when the table is full: always the least recently used one of the owner
//! that has most, so a flood of sessions evicts its own. No owner fills more than its share. With one
//! owner it is a [`BindingTable`] and nothing else. It holds no lock and must never block.

use std::collections::HashMap;

use super::{AffinityKey, BindingTable};

/// Whose a binding is; [`NOBODY`] where owners are not told apart.
pub type Owner = u64;

/// The one owner of everything where owners are not told apart.
pub const NOBODY: Owner = 0;

/// A bounded map from an owner's [`AffinityKey`] to a small value.
#[derive(Debug)]
pub struct SharedTable<V> {
    owners: HashMap<Owner, BindingTable<V>>,
    len: usize,
    bound: usize,
    /// Entries of one owner at most, as a share of the bound.
    share: f64,
}

impl<V: Copy> SharedTable<V> {
    /// An empty table of at most `bound` entries, of which one owner gets all.
    pub fn new(bound: usize) -> Self {
        Self {
            owners: HashMap::new(),
            len: 0,
            bound: bound.max(1),
            share: 1.0,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most entries it will hold.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Entries of one owner.
    pub fn len_of(&self, owner: Owner) -> usize {
        self.owners.get(&owner).map_or(0, BindingTable::len)
    }

    /// Changes the bound for later insertions; [`pop_oldest`](Self::pop_oldest) makes room now.
    pub fn set_bound(&mut self, bound: usize) {
        self.bound = bound.max(1);
    }

    /// Changes what one owner gets at most, a share between 0 and 1, for later insertions.
    /// [`NOBODY`] gets all.
    pub fn set_share(&mut self, share: f64) {
        self.share = share.clamp(0.0, 1.0);
    }

    /// The value of `key`, which becomes the owner's most recently used.
    pub fn get_touch(&mut self, owner: Owner, key: AffinityKey) -> Option<V> {
        self.owners.get_mut(&owner)?.get_touch(key)
    }

    /// Shows the value of `key` to `accept`; if that takes it, it becomes the owner's most recently
    /// used.
    pub fn touch_if(&mut self, owner: Owner, key: AffinityKey, accept: impl FnOnce(V) -> bool) {
        if let Some(table) = self.owners.get_mut(&owner) {
            table.touch_if(key, accept);
        }
    }

    /// The value of `key`, leaving the order of use as it is.
    pub fn peek(&self, owner: Owner, key: AffinityKey) -> Option<V> {
        self.owners.get(&owner)?.peek(key)
    }

    /// The value of `key` of whichever owner has it; for people who ask. Linear in the owners.
    pub fn find(&self, key: AffinityKey) -> Option<V> {
        self.owners.values().find_map(|table| table.peek(key))
    }

    /// Sets the value of `key`, which becomes the owner's most recently used, and returns the entry
    /// that had to go for it.
    pub fn insert(&mut self, owner: Owner, key: AffinityKey, value: V) -> Option<(AffinityKey, V)> {
        let mut evicted = None;
        if self.peek(owner, key).is_none() {
            let own = self.len_of(owner);
            let largest = || self.owners.values().map(BindingTable::len).max();
            // Among equals it is the newcomer that makes room.
            let room = own < self.most_of(owner);
            evicted = if !room || self.len >= self.bound && Some(own) == largest() {
                self.pop_oldest_of(owner)
            } else if self.len >= self.bound {
                self.pop_oldest()
            } else {
                None
            };
            self.len += 1;
        }
        let bound = self.bound;
        let table = self.owners.entry(owner).or_insert_with(|| match owner {
            NOBODY => BindingTable::new(bound),
            _ => BindingTable::growing(bound),
        });
        // It never evicts by itself: there is room.
        table.set_bound(usize::MAX);
        table.insert(key, value);
        evicted
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, owner: Owner, key: AffinityKey) -> Option<V> {
        let value = self.owners.get_mut(&owner)?.remove(key)?;
        self.len -= 1;
        self.forget_if_empty(owner);
        Some(value)
    }

    /// Removes and returns the least recently used entry of the owner that has most.
    pub fn pop_oldest(&mut self) -> Option<(AffinityKey, V)> {
        let largest = self.owners.iter().max_by_key(|(_, table)| table.len());
        let owner = *largest?.0;
        self.pop_oldest_of(owner)
    }

    /// Keeps only the entries that `keep` accepts. Linear.
    pub fn retain(&mut self, mut keep: impl FnMut(AffinityKey, V) -> bool) {
        for table in self.owners.values_mut() {
            table.retain(&mut keep);
        }
        self.owners.retain(|_, table| !table.is_empty());
        self.len = self.owners.values().map(BindingTable::len).sum();
    }

    /// Every entry, each owner's least recently used first.
    pub fn iter(&mut self) -> impl Iterator<Item = (AffinityKey, V)> + '_ {
        self.owners.values_mut().flat_map(BindingTable::iter)
    }

    /// Changes every value in place. Linear.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&mut V)) {
        for table in self.owners.values_mut() {
            table.for_each_mut(&mut change);
        }
    }

    fn pop_oldest_of(&mut self, owner: Owner) -> Option<(AffinityKey, V)> {
        let popped = self.owners.get_mut(&owner)?.pop_oldest()?;
        self.len -= 1;
        self.forget_if_empty(owner);
        Some(popped)
    }

    /// So that there are as many tables as owners with something in them. That of nobody stays: it has
    /// its room set aside.
    fn forget_if_empty(&mut self, owner: Owner) {
        if owner != NOBODY && self.len_of(owner) == 0 {
            self.owners.remove(&owner);
        }
    }

    fn most_of(&self, owner: Owner) -> usize {
        match owner {
            NOBODY => self.bound,
            _ => ((self.bound as f64 * self.share) as usize).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> AffinityKey {
        AffinityKey::synthetic(u64::from(number))
    }

    #[test]
    fn a_flood_evicts_its_own() {
        let mut table = SharedTable::new(100);
        for number in 0..10 {
            table.insert(1, key(number), number);
        }
        for number in 1000..9000 {
            table.insert(2, key(number), number);
        }
        assert_eq!(
            (table.len(), table.len_of(1), table.len_of(2)),
            (100, 10, 90)
        );
        assert_eq!(table.peek(1, key(0)), Some(0));
        assert_eq!(table.peek(2, key(8999)), Some(8999));
        assert_eq!(table.peek(2, key(8909)), None);
        // Who has less takes from who has most, until they are even.
        for number in 10..200 {
            table.insert(1, key(number), number);
        }
        assert_eq!((table.len_of(1), table.len_of(2)), (50, 50));
    }

    #[test]
    fn nobody_fills_more_than_its_share() {
        let mut table = SharedTable::new(100);
        table.set_share(0.25);
        for number in 0..1000 {
            let evicted = table.insert(1, key(number), number);
            assert_eq!(evicted.map(|(_, value)| value), number.checked_sub(25));
        }
        assert_eq!(table.len(), 25);
        for number in 0..1000 {
            table.insert(NOBODY, key(number), number);
        }
        assert_eq!((table.len(), table.len_of(1)), (100, 25));
    }

    #[test]
    fn what_is_set_again_evicts_nothing() {
        let mut table = SharedTable::new(2);
        table.insert(1, key(1), 1);
        table.insert(2, key(2), 2);
        assert_eq!(table.insert(1, key(1), 3), None);
        assert_eq!((table.peek(1, key(1)), table.len()), (Some(3), 2));
        // Equal keys of two owners are two entries.
        table.insert(2, key(1), 4);
        assert_eq!(table.peek(2, key(1)), Some(4));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn it_counts_as_it_forgets() {
        let mut table = SharedTable::new(10);
        for number in 0..10 {
            table.insert(Owner::from(number % 3), key(number), number);
        }
        table.retain(|_, value| value % 2 == 0);
        assert_eq!((table.len(), table.iter().count()), (5, 5));
        assert_eq!(table.remove(0, key(0)), Some(0));
        assert_eq!(table.remove(0, key(0)), None);
        while table.pop_oldest().is_some() {}
        assert_eq!((table.len(), table.is_empty()), (0, true));
        assert!(table.owners.keys().all(|owner| *owner == NOBODY));
    }
}
