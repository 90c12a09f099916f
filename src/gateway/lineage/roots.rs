//! Whom each sub-agent follows.
//!
//! The one table of the gateway that keeps ids as text, since a root's id is signed and sent; bounded,
//! the one unused for longest goes first.

use std::time::Duration;

use super::Seconds;
use crate::affinity::{AffinityKey, SharedTable, shares::Owner};

/// A session of one client.
type Place = (Owner, AffinityKey);

/// Sub-agents with the sessions that they follow.
pub(super) struct Roots {
    places: SharedTable<u32>,
    ids: Vec<Entry>,
    free: Vec<u32>,
}

struct Entry {
    root: Box<str>,
    at: Seconds,
}

impl Roots {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            places: SharedTable::new(bound),
            ids: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn set_share(&mut self, share: f64) {
        self.places.set_share(share);
    }

    pub(super) fn set_bound(&mut self, bound: usize) {
        self.places.set_bound(bound);
        while self.places.len() > self.places.bound() {
            let gone = self.places.pop_oldest();
            self.give_back(gone.map(|(_, place)| place));
        }
    }

    /// The session that a sub-agent has followed within `ttl`.
    pub(super) fn get(&mut self, (owner, key): Place, ttl: Duration, now: Seconds) -> Option<&str> {
        let place = self.places.get_touch(owner, key)?;
        let entry = self.ids.get(place as usize)?;
        (!entry.at.is_over(ttl, now)).then_some(&*entry.root)
    }

    pub(super) fn set(&mut self, (owner, key): Place, root: &str, at: Seconds) {
        let known = self.places.get_touch(owner, key);
        if let Some(entry) = known.and_then(|place| self.ids.get_mut(place as usize)) {
            if *entry.root != *root {
                entry.root = root.into();
            }
            entry.at = at;
            return;
        }
        let root = root.into();
        let entry = Entry { root, at };
        let place = match self.free.pop() {
            Some(place) => place,
            None => u32::try_from(self.ids.len()).unwrap_or(u32::MAX),
        };
        match self.ids.get_mut(place as usize) {
            Some(free) => *free = entry,
            None => self.ids.push(entry),
        }
        let gone = self.places.insert(owner, key, place);
        self.give_back(gone.map(|(_, place)| place));
    }

    pub(super) fn remove(&mut self, (owner, key): Place) {
        let gone = self.places.remove(owner, key);
        self.give_back(gone);
    }

    fn give_back(&mut self, place: Option<u32>) {
        if let Some(place) = place
            && let Some(entry) = self.ids.get_mut(place as usize)
        {
            entry.root = Box::default();
            self.free.push(place);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
