use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::routing::prefix;

/// Made by a separate program in Python that follows the rules of specification section 2.5 with
/// `hashlib` and whole numbers of any size, and shares no code with this one.
const VECTORS: &str = include_str!("vectors.json");

#[derive(Deserialize)]
struct Case {
    name: String,
    tokens: Vec<u32>,
    tokens_per_block: u32,
    cache_salt: Option<String>,
    cache_salt_id: Option<u64>,
    v1_block_key: Vec<u64>,
    v2_sha256: Vec<String>,
    v2_sha256_64: Vec<u64>,
}

#[test]
fn values_are_those_of_the_rules() {
    let cases: Vec<Case> = serde_json::from_str(VECTORS).unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let (tokens, size) = (&case.tokens, case.tokens_per_block);
        let salt = case.cache_salt.as_deref().map(Salt::of);
        assert_eq!(salt.map(Salt::id), case.cache_salt_id, "{}", case.name);
        let v1 = v1_block_keys(tokens, size, salt);
        assert_eq!(v1, case.v1_block_key, "{}", case.name);
        assert_eq!(
            v2_sha256(tokens, size, salt),
            case.v2_sha256,
            "{}",
            case.name
        );
        let short = v2_sha256_64(tokens, size, salt);
        assert_eq!(short, case.v2_sha256_64, "{}", case.name);
    }
}

#[test]
fn names_are_upstreams() {
    for name in HashAlgo::NAMES.split(", ") {
        assert!(HashAlgo::from_name(name).is_some(), "{name}");
    }
    assert_eq!(HashAlgo::from_name("auto"), None);
    assert_eq!(HashAlgo::from_name("V1_BLOCK_KEY"), None);
}

proptest! {
    #[test]
    fn unsalted_keys_are_those_of_prefix_matching(
        tokens in prop::collection::vec(any::<u32>(), 0..200),
        size in 0..70_u32,
    ) {
        prop_assert_eq!(
            v1_block_keys(&tokens, size, None),
            prefix::block_hashes(&tokens, size as usize)
        );
    }

    #[test]
    fn prompts_share_hashes_as_far_as_their_blocks(
        tokens in prop::collection::vec(0..4_u32, 2..60),
        other in prop::collection::vec(0..4_u32, 2..60),
        size in 1..6_u32,
    ) {
        let of = |tokens: &[u32]| -> Vec<Vec<u32>> {
            tokens[..tokens.len() - 1].chunks(size as usize).map(<[u32]>::to_vec).collect()
        };
        let same = of(&tokens).iter().zip(&of(&other)).take_while(|(a, b)| a == b).count();
        for family in [Family::V1, Family::Sha256] {
            let one = block_hashes(family, &tokens, size, None);
            let two = block_hashes(family, &other, size, None);
            prop_assert_eq!(one.iter().zip(&two).take_while(|(a, b)| a == b).count(), same);
        }
    }
}
