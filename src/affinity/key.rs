//! A session's id as a table key.
//!
//! Decides how an id of any length becomes 128 bits: two keyed hashes whose random seeds are drawn
//! once per process, so that nobody who chooses ids can make two of them meet. Keys of different
//! kinds (sessions, sessions of one client, sessions that routing made up) never meet either. A key
//! means nothing outside its process and must never be stored or sent.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::LazyLock,
};

static SEEDS: LazyLock<[RandomState; 2]> =
    LazyLock::new(|| [RandomState::new(), RandomState::new()]);

/// A session's id, hashed with this process's seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AffinityKey([u64; 2]);

#[derive(Hash)]
enum Kind<'a> {
    Session(&'a str),
    Client { client: &'a str, session: &'a str },
    Synthetic(u64),
    Content(u64),
}

impl AffinityKey {
    /// The key of the session with this id.
    pub fn new(session: &str) -> Self {
        Self::of(Kind::Session(session))
    }

    /// The key of one client's session, apart from the same id of every other client.
    pub fn of_client(client: &str, session: &str) -> Self {
        Self::of(Kind::Client { client, session })
    }

    /// The key of the `number`th session that routing made up for requests without an id; no id a
    /// client can send has the same key.
    pub fn synthetic(number: u64) -> Self {
        Self::of(Kind::Synthetic(number))
    }

    /// The key of requests whose content has this hash, apart from every session.
    pub fn of_content(hash: u64) -> Self {
        Self::of(Kind::Content(hash))
    }

    /// A hash of the key, for spreading keys over tables. A table of its own probes by the upper
    /// bits of it: spread by the lower ones of either half.
    pub fn table_hash(self) -> u64 {
        self.0[0]
    }

    /// The key's bits, for tables; each word is a hash of its own.
    pub fn words(self) -> [u64; 2] {
        self.0
    }

    fn of(kind: Kind<'_>) -> Self {
        Self([SEEDS[0].hash_one(&kind), SEEDS[1].hash_one(&kind)])
    }
}

impl Hash for AffinityKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_have_equal_keys_and_others_do_not() {
        assert_eq!(AffinityKey::new("a"), AffinityKey::new("a"));
        assert_ne!(AffinityKey::new("a"), AffinityKey::new("b"));
        assert_ne!(AffinityKey::new(""), AffinityKey::new("\0"));
    }

    #[test]
    fn kinds_are_apart() {
        assert_ne!(
            AffinityKey::of_client("ab", "c"),
            AffinityKey::of_client("a", "bc")
        );
        assert_ne!(AffinityKey::of_client("", "c"), AffinityKey::new("c"));
        assert_ne!(AffinityKey::synthetic(1), AffinityKey::new("conv_id:0_1"));
        assert_ne!(AffinityKey::synthetic(1), AffinityKey::synthetic(2));
        assert_ne!(AffinityKey::of_content(1), AffinityKey::synthetic(1));
    }
}
