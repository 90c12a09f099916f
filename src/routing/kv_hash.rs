//! The names that workers give to the blocks of their KV cache (specification section 2.5).
//!
//! Decides which hash the blocks of a prompt have by each of upstream's three algorithms: tokens in
//! steps of a block's size, all but the last token, each block hashed together with everything
//! before it, and the cache salt with the first one. It must give exactly upstream's values: a hash
//! that differs in one bit never meets the worker's.

use sha2::{Digest, Sha256};

use super::prefix::{COMBINE, combine, v1_seed};

/// Tokens that are handed to SHA-256 at once.
const TOKENS_AT_ONCE: usize = 64;

/// How a worker names blocks: its `kv_cache_hash_algo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HashAlgo {
    /// `v1_block_key`: 64 bits, mixed.
    #[default]
    V1BlockKey,
    /// `v2_sha256`: a SHA-256 digest, written in hexadecimal.
    V2Sha256,
    /// `v2_sha256_64`: the first 64 bits of the same digest.
    V2Sha256First64,
}

/// The algorithms whose 64-bit hashes are the same: those of `v2_sha256` are known here by their
/// first 64 bits, which is what `v2_sha256_64` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V1,
    Sha256,
}

impl HashAlgo {
    /// Upstream's names, for messages.
    pub const NAMES: &'static str = "v1_block_key, v2_sha256, v2_sha256_64";

    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "v1_block_key" => Some(Self::V1BlockKey),
            "v2_sha256" => Some(Self::V2Sha256),
            "v2_sha256_64" => Some(Self::V2Sha256First64),
            _ => None,
        }
    }

    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1BlockKey => "v1_block_key",
            Self::V2Sha256 => "v2_sha256",
            Self::V2Sha256First64 => "v2_sha256_64",
        }
    }

    pub fn family(self) -> Family {
        match self {
            Self::V1BlockKey => Family::V1,
            Self::V2Sha256 | Self::V2Sha256First64 => Family::Sha256,
        }
    }
}

/// A request's cache salt: only blocks with the same salt are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(u64);

impl Salt {
    /// The salt that a request's `cache_salt` stands for. Workers with the older C++ cache manager
    /// salt `v1_block_key` in a way of their own, so that their salted blocks never match.
    pub fn of(text: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(text).into();
        Self(u64::from_le_bytes(first(&digest)))
    }

    /// The number that upstream calls the cache salt id.
    pub fn id(self) -> u64 {
        self.0
    }
}

/// The hashes of a prompt's blocks, in the 64 bits by which their family knows them. A last block
/// that is not full counts.
pub fn block_hashes(
    family: Family,
    tokens: &[u32],
    tokens_per_block: u32,
    salt: Option<Salt>,
) -> Vec<u64> {
    match family {
        Family::V1 => v1_block_keys(tokens, tokens_per_block, salt),
        Family::Sha256 => v2_sha256_64(tokens, tokens_per_block, salt),
    }
}

/// The hashes of a prompt's blocks by `v1_block_key`.
pub fn v1_block_keys(tokens: &[u32], tokens_per_block: u32, salt: Option<Salt>) -> Vec<u64> {
    let mut parent = 0;
    blocks(tokens, tokens_per_block)
        .map(|block| {
            let mut seed = v1_seed(block.len(), parent);
            if let Some(Salt(salt)) = salt.filter(|_| parent == 0) {
                seed = combine_wide(seed, salt);
            }
            parent = combine(seed, block);
            parent
        })
        .collect()
}

/// The hashes of a prompt's blocks by `v2_sha256`, as the hexadecimal text that workers write.
pub fn v2_sha256(tokens: &[u32], tokens_per_block: u32, salt: Option<Salt>) -> Vec<String> {
    let hex = |digest: [u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
    v2_digests(tokens, tokens_per_block, salt)
        .map(hex)
        .collect()
}

/// The hashes of a prompt's blocks by `v2_sha256_64`.
pub fn v2_sha256_64(tokens: &[u32], tokens_per_block: u32, salt: Option<Salt>) -> Vec<u64> {
    v2_digests(tokens, tokens_per_block, salt)
        .map(|digest| u64::from_be_bytes(first(&digest)))
        .collect()
}

fn v2_digests(
    tokens: &[u32],
    tokens_per_block: u32,
    salt: Option<Salt>,
) -> impl Iterator<Item = [u8; 32]> {
    let mut parent = v2_root(salt);
    blocks(tokens, tokens_per_block).map(move |block| {
        let mut hash = Sha256::new_with_prefix(parent);
        for some in block.chunks(TOKENS_AT_ONCE) {
            let mut bytes = [0; TOKENS_AT_ONCE * 8];
            for (place, token) in bytes.chunks_exact_mut(8).zip(some) {
                place.copy_from_slice(&u64::from(*token).to_le_bytes());
            }
            hash.update(bytes.get(..some.len() * 8).unwrap_or_default());
        }
        parent = hash.finalize().into();
        parent
    })
}

/// The parent of first blocks: which of two optional numbers (a LoRA id, which is never given here,
/// and the salt) there are, and those that are there.
fn v2_root(salt: Option<Salt>) -> [u8; 32] {
    const NONE: [u8; 1] = [0];
    const SALTED: [u8; 1] = [1 << 1];
    let hash = match salt {
        None => Sha256::new_with_prefix(NONE),
        Some(Salt(salt)) => Sha256::new_with_prefix(SALTED).chain_update(salt.to_le_bytes()),
    };
    hash.finalize().into()
}

fn blocks(tokens: &[u32], tokens_per_block: u32) -> impl Iterator<Item = &[u32]> {
    let (_last, tokens) = tokens.split_last().unwrap_or((&0, &[]));
    tokens.chunks(tokens_per_block.max(1) as usize)
}

/// Takes a 64-bit number into a `v1_block_key`.
fn combine_wide(seed: u64, value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let term = (value ^ (value >> 31)).wrapping_add(u64::from(COMBINE));
    seed ^ term.wrapping_add(seed << 6).wrapping_add(seed >> 2)
}

fn first(digest: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests;
