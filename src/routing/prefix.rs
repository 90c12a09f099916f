//! Prompts as chains of block hashes (specification section 2.5).
//!
//! Decides which blocks a prompt has: its units in steps of a block's size, all but the last unit,
//! each block hashed together with the hash of the block before it. Two prompts have as many equal
//! leading hashes as they have equal leading blocks. Where the chains are kept is [`tree`]'s matter.

pub mod tree;

const MIX_32: u32 = 0x045D_9F3B;
pub(super) const COMBINE: u32 = 0x9E37_79B9;
const PARENT: u64 = 0xBF58_476D_1CE4_E5B9;

/// The hash of one block by the algorithm `v1_block_key`, unsalted; `parent` is 0 for the first one.
pub fn v1_block_key(units: &[u32], parent: u64) -> u64 {
    combine(v1_seed(units.len(), parent), units)
}

/// What a block of so many units begins with, before its units.
pub(super) fn v1_seed(units: usize, parent: u64) -> u64 {
    units as u64 ^ parent.wrapping_mul(PARENT)
}

/// Takes a block's units into what it began with.
pub(super) fn combine(seed: u64, units: &[u32]) -> u64 {
    units.iter().fold(seed, |seed, &unit| {
        let mixed = mix(mix(unit).wrapping_mul(MIX_32)).wrapping_mul(MIX_32);
        let term = u64::from(mix(mixed).wrapping_add(COMBINE));
        seed ^ term.wrapping_add(seed << 6).wrapping_add(seed >> 2)
    })
}

fn mix(value: u32) -> u32 {
    (value >> 16) ^ value
}

/// The hashes of a prompt's blocks, each over everything before it as well.
pub fn block_hashes(units: &[u32], units_per_block: usize) -> Vec<u64> {
    let (_last, units) = units.split_last().unwrap_or((&0, &[]));
    let mut parent = 0;
    let blocks = units.chunks(units_per_block.max(1));
    blocks
        .map(|block| {
            parent = v1_block_key(block, parent);
            parent
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_unit_is_in_no_block_and_a_partial_block_is_one() {
        assert_eq!(block_hashes(&[], 4).len(), 0);
        assert_eq!(block_hashes(&[1], 4).len(), 0);
        assert_eq!(block_hashes(&[1, 2, 3, 4, 5], 4).len(), 1);
        assert_eq!(block_hashes(&[1, 2, 3, 4, 5, 6], 4).len(), 2);
        assert_eq!(block_hashes(&[1, 2], 0).len(), 1);
    }

    #[test]
    fn hashes_agree_exactly_as_far_as_the_blocks() {
        let one = block_hashes(&[1, 2, 3, 4, 5, 6, 7], 2);
        let other = block_hashes(&[1, 2, 3, 9, 5, 6, 7], 2);
        assert_eq!(one[0], other[0]);
        assert!(
            one.iter()
                .zip(&other)
                .skip(1)
                .all(|(one, other)| one != other)
        );
    }

    #[test]
    fn values_are_those_of_the_algorithm() {
        let first = v1_block_key(&[1, 2, 3, 4], 0);
        assert_eq!(first, 0x0003488F88096B5F);
        assert_eq!(v1_block_key(&[5, 0x1F600], first), 0x5F6907999018CD3C);
    }
}
