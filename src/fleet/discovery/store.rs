//! The store that workers announce themselves to when this process hosts it (specification section 7.2).
//!
//! A map of keys to values that expire. It decides by the time that it is given, never by a clock of
//! its own, and gives back the time that this process slept through: a stall here says nothing about
//! the workers. It is bounded in keys and bytes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often expired keys are looked for.
pub const SWEEP: Duration = Duration::from_secs(1);
/// A sweep that comes so much too late means that this process stalled.
const STALL: Duration = Duration::from_secs(1);
/// Most keys.
const MOST_KEYS: usize = 32_768;
/// Bytes of a key and of a value at most; with the keys they bound the whole store to 256 MiB.
const MOST_BYTES: usize = 4 * 1024;

/// What is kept under a key.
#[derive(Debug, Clone)]
struct Entry {
    value: String,
    /// `None` never expires.
    expires: Option<Instant>,
}

/// What happened to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Set { key: String, value: String },
    Removed { key: String },
}

impl Change {
    /// The key that it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Set { key, .. } | Self::Removed { key } => key,
        }
    }
}

/// Keys, values and when they expire.
#[derive(Debug, Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    swept: Option<Instant>,
}

impl Store {
    /// Sets a key for as long as `ttl`, for ever without one. `None` for a key that is there already
    /// and is not to be overwritten, or for which there is no room.
    pub fn set(
        &mut self,
        key: &str,
        value: &str,
        ttl: Option<Duration>,
        overwrite: bool,
        now: Instant,
    ) -> Option<Change> {
        let there = self.live(key, now).is_some();
        let full = self.entries.len() >= MOST_KEYS && !self.entries.contains_key(key);
        let large = key.len() > MOST_BYTES || value.len() > MOST_BYTES;
        if there && !overwrite {
            self.still_there(key, value, ttl, now);
            return None;
        }
        if full || large {
            return None;
        }
        let entry = Entry {
            value: value.to_owned(),
            expires: ttl.and_then(|ttl| now.checked_add(ttl)),
        };
        self.entries.insert(key.to_owned(), entry);
        Some(Change::Set {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }

    /// A worker that missed a heartbeat announces itself anew, while its key has not expired yet and is
    /// not to be overwritten. It is refused as upstream refuses it, and it has shown that it lives.
    fn still_there(&mut self, key: &str, value: &str, ttl: Option<Duration>, now: Instant) {
        let entry = self
            .entries
            .get_mut(key)
            .filter(|entry| entry.value == value);
        if let Some(entry) = entry {
            entry.expires = ttl.and_then(|ttl| now.checked_add(ttl));
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str, now: Instant) -> Option<&str> {
        Some(&self.live(key, now)?.value)
    }

    /// Lets a key live as long as `ttl` from now on; `false` if it is not there any more.
    pub fn expire(&mut self, key: &str, ttl: Option<Duration>, now: Instant) -> bool {
        if self.live(key, now).is_none() {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.expires = ttl.and_then(|ttl| now.checked_add(ttl));
        }
        true
    }

    /// Removes a key; `None` if it is not there.
    pub fn delete(&mut self, key: &str) -> Option<Change> {
        self.entries.remove(key).map(|_| Change::Removed {
            key: key.to_owned(),
        })
    }

    /// The keys that begin with `prefix`, and their values.
    pub fn with_prefix(&self, prefix: &str, now: Instant) -> Vec<(&str, &str)> {
        let from_prefix = self.entries.range(prefix.to_owned()..);
        from_prefix
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, entry)| entry.is_live(now))
            .map(|(key, entry)| (key.as_str(), entry.value.as_str()))
            .collect()
    }

    /// As [`Store::sweep`], unless there was one within [`SWEEP`].
    pub fn sweep_if_due(&mut self, now: Instant) -> Vec<Change> {
        let since = self.swept.map(|swept| now.saturating_duration_since(swept));
        match since {
            Some(since) if since < SWEEP => Vec::new(),
            _ => self.sweep(now),
        }
    }

    /// Removes what has expired. To be called every [`SWEEP`]: a call that comes much later gives
    /// every key the time that was lost.
    pub fn sweep(&mut self, now: Instant) -> Vec<Change> {
        let since = self
            .swept
            .map_or(SWEEP, |swept| now.saturating_duration_since(swept));
        self.swept = Some(now);
        if let Some(lost) = since.checked_sub(SWEEP).filter(|late| *late >= STALL) {
            for entry in self.entries.values_mut() {
                entry.expires = entry.expires.and_then(|expires| expires.checked_add(lost));
            }
        }
        let expired = self.entries.iter().filter(|(_, entry)| !entry.is_live(now));
        let expired: Vec<String> = expired.map(|(key, _)| key.clone()).collect();
        let changes = expired.iter().filter_map(|key| self.delete(key));
        changes.collect()
    }

    fn live(&self, key: &str, now: Instant) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.is_live(now))
    }
}

impl Entry {
    fn is_live(&self, now: Instant) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Option<Duration> = Some(Duration::from_secs(10));

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_is_set_once_unless_it_may_be_overwritten() {
        let (mut store, now) = (Store::default(), Instant::now());
        assert!(store.set("k", "1", TTL, false, now).is_some());
        assert_eq!(store.set("k", "2", TTL, false, now), None);
        assert_eq!(store.get("k", now), Some("1"));
        let change = store.set("k", "3", TTL, true, now);
        let (key, value) = ("k".to_owned(), "3".to_owned());
        assert_eq!(change, Some(Change::Set { key, value }));
        // One that has expired is not there, swept or not.
        assert!(store.set("k", "4", None, false, at(now, 10)).is_some());
        assert_eq!(store.get("k", at(now, 1_000_000)), Some("4"));
    }

    #[test]
    fn keys_expire_unless_they_are_kept_alive() {
        let (mut store, now) = (Store::default(), Instant::now());
        store.set("a", "1", TTL, false, now);
        store.set("b", "2", TTL, false, now);
        let mut gone = Vec::new();
        for second in 1..=12 {
            let now = at(now, second);
            if second == 8 {
                assert!(store.expire("a", TTL, now));
            }
            gone.extend(store.sweep(now).into_iter().map(|change| (second, change)));
        }
        let key = "b".to_owned();
        assert_eq!(gone, [(10, Change::Removed { key })]);
        assert!(!store.expire("b", TTL, at(now, 12)), "it is too late");
        assert_eq!(store.get("a", at(now, 17)), Some("1"));
        assert_eq!(store.get("a", at(now, 18)), None);
    }

    #[test]
    fn a_stall_of_this_process_is_not_held_against_the_workers() {
        let (mut store, now) = (Store::default(), Instant::now());
        store.sweep(now);
        store.set("k", "1", TTL, false, now);
        assert!(store.sweep(at(now, 60)).is_empty(), "59 s were lost here");
        assert_eq!(store.get("k", at(now, 60)), Some("1"));
        for second in 61..69 {
            assert!(store.sweep(at(now, second)).is_empty());
        }
        assert_eq!(store.sweep(at(now, 69)).len(), 1);
    }

    #[test]
    fn a_worker_that_announces_itself_again_lives_on_though_it_is_refused() {
        let (mut store, now) = (Store::default(), Instant::now());
        store.set("k", "1", TTL, false, now);
        assert_eq!(store.set("k", "1", TTL, false, at(now, 9)), None);
        assert_eq!(store.get("k", at(now, 18)), Some("1"));
        assert_eq!(store.set("k", "2", TTL, false, at(now, 18)), None);
        assert_eq!(
            store.get("k", at(now, 19)),
            None,
            "another value is no sign of life"
        );
    }

    #[test]
    fn keys_are_found_by_their_beginning() {
        let (mut store, now) = (Store::default(), Instant::now());
        for key in ["/a/1", "/a/2", "/ab", "/b"] {
            store.set(key, key, TTL, false, now);
        }
        assert_eq!(
            store.with_prefix("/a/", now),
            [("/a/1", "/a/1"), ("/a/2", "/a/2")]
        );
        assert_eq!(store.with_prefix("", now).len(), 4);
        assert!(store.with_prefix("/c", now).is_empty());
        assert!(store.with_prefix("/a/", at(now, 10)).is_empty());
        assert!(store.delete("/a/1").is_some());
        assert_eq!(store.delete("/a/1"), None);
    }

    #[test]
    fn there_is_a_bound() {
        let (mut store, now) = (Store::default(), Instant::now());
        for number in 0..MOST_KEYS {
            store.set(&number.to_string(), "", TTL, false, now).unwrap();
        }
        assert_eq!(store.set("more", "", TTL, false, now), None);
        assert!(store.set("7", "x", TTL, true, now).is_some());
        assert_eq!(
            store.set("k", &"x".repeat(MOST_BYTES + 1), TTL, true, now),
            None
        );
    }
}
