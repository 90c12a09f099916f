//! What workers tell of their caches: the list that `POST /kv_cache_events` answers with
//! (specification section 6.3).
//!
//! Decides which blocks an event is about. It takes every form that upstream has used and skips
//! what it does not know: the list is gone from the worker once it was read, so that one event must
//! never cost the others.

use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub change: Change,
    /// The blocks, in their order, by the 64 bits that their family is known by.
    pub blocks: Vec<u64>,
    /// How the event names blocks; `None` where it does not say.
    pub hash_algo: Option<String>,
}

/// What happened to the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The cache begins; there are no blocks.
    Created,
    Stored,
    Removed,
    /// Moved to another level of the cache, or valued otherwise; they are still held.
    Updated,
    #[default]
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let outer = Outer::deserialize(json)?;
        let body = outer.data.unwrap_or(outer.body);
        let stored = body
            .blocks
            .into_iter()
            .flatten()
            .map(|block| block.block_hash);
        let named = body.block_hashes.into_iter().flatten();
        Ok(Self {
            change: body.change,
            blocks: stored.chain(named).filter_map(|hash| hash.0).collect(),
            hash_algo: outer.hash_algo.or(body.hash_algo),
        })
    }
}

/// An event as it comes: its body inside `data`, or without that around it.
struct Outer {
    data: Option<Body>,
    body: Body,
    hash_algo: Option<String>,
}

impl<'de> Deserialize<'de> for Outer {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Flat {
            #[serde(default)]
            data: Option<Body>,
            #[serde(default, rename = "type")]
            change: Change,
            #[serde(default)]
            blocks: Option<Vec<Block>>,
            #[serde(default)]
            block_hashes: Option<Vec<Hash>>,
            #[serde(default)]
            hash_algo: Option<String>,
        }
        let flat = Flat::deserialize(json)?;
        Ok(Self {
            data: flat.data,
            body: Body {
                change: flat.change,
                blocks: flat.blocks,
                block_hashes: flat.block_hashes,
                hash_algo: None,
            },
            hash_algo: flat.hash_algo,
        })
    }
}

#[derive(Deserialize, Default)]
struct Body {
    #[serde(default, rename = "type")]
    change: Change,
    #[serde(default)]
    blocks: Option<Vec<Block>>,
    #[serde(default)]
    block_hashes: Option<Vec<Hash>>,
    #[serde(default)]
    hash_algo: Option<String>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    block_hash: Hash,
}

/// A block's hash: a number, or hexadecimal digits of which the first 16 count.
#[derive(Default)]
struct Hash(Option<u64>);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Signed(i64),
            Text(String),
            Other(IgnoredAny),
        }
        Ok(Self(match Form::deserialize(json)? {
            Form::Number(number) => Some(number),
            Form::Signed(number) => Some(number.cast_unsigned()),
            Form::Text(text) => hexadecimal(&text),
            Form::Other(IgnoredAny) => None,
        }))
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.get(..16).unwrap_or(text);
    let sound = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(json: &str) -> Event {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    #[test]
    fn every_form_is_read() {
        let digest = "f22f5f21709148033190".to_owned() + &"2b".repeat(22);
        let stored = one(&format!(
            r#"{{"event_id": 3, "window_size": 4096, "attention_dp_rank": 1, "hash_algo": "v2_sha256",
                 "data": {{"type": "stored", "parent_hash": null, "blocks": [
                    {{"type": "stored_block", "block_hash": "{digest}", "cache_level": 0,
                      "tokens": [{{"token_id": 1, "token_extra_id": 0}}]}},
                    {{"block_hash": 18446744073709551615}}, {{"block_hash": -1}}]}}}}"#
        ));
        assert_eq!(stored.change, Change::Stored);
        assert_eq!(stored.blocks, [0xf22f_5f21_7091_4803, u64::MAX, u64::MAX]);
        assert_eq!(stored.hash_algo.as_deref(), Some("v2_sha256"));
        let removed = one(r#"{"type": "removed", "block_hashes": [1, "0a"], "hash_algo": null}"#);
        assert_eq!((removed.change, removed.hash_algo), (Change::Removed, None));
        assert_eq!(removed.blocks, [1, 10]);
        let inner = one(r#"{"data": {"type": "removed", "block_hashes": [1], "hash_algo": "x"}}"#);
        assert_eq!(inner.hash_algo.as_deref(), Some("x"));
        let created = r#"{"data": {"type": "created", "num_blocks_per_cache_level": [9, 0]}}"#;
        assert_eq!(one(created).change, Change::Created);
        let updated = r#"{"data": {"type": "updated", "block_hash": 1, "priority": {"new": 2}}}"#;
        assert_eq!(one(updated).change, Change::Updated);
    }

    #[test]
    fn what_is_not_known_costs_nothing_else() {
        for strange in [r#"{"data": {"type": "moved"}}"#, "{}", r#"{"data": null}"#] {
            assert_eq!(one(strange).change, Change::Unknown, "{strange}");
        }
        let odd = one(
            r#"{"type": "stored", "blocks": [{}, {"block_hash": 1.5}, {"block_hash": "xy"},
                         {"block_hash": "é234567890123456"}, {"block_hash": 7}]}"#,
        );
        assert_eq!(odd.blocks, [7]);
    }
}
