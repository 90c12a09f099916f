use proptest::prelude::*;

use super::*;

fn key(number: u64) -> AffinityKey {
    AffinityKey::synthetic(number)
}

#[test]
fn the_longest_shared_prefix_wins() {
    let mut tree = PrefixTree::default();
    tree.insert(key(1), &[1, 2, 3]);
    tree.insert(key(2), &[1, 2, 4, 5]);
    assert_eq!(tree.find(&[1, 2, 4, 9], 1, |_| true), Some(key(2)));
    assert_eq!(tree.find(&[1, 2, 3], 3, |_| true), Some(key(1)));
    assert_eq!(tree.find(&[1, 2, 8], 3, |_| true), None);
    assert_eq!(
        tree.find(&[1, 2, 4, 5], 1, |key| key != self::key(2)),
        Some(key(1))
    );
    assert_eq!(tree.find(&[], 0, |_| true), None);
    assert_eq!(tree.insert(key(3), &[]), None);
}

#[test]
fn removed_sessions_take_their_blocks_along() {
    let mut tree = PrefixTree::default();
    let one = tree.insert(key(1), &[1, 2, 3]).unwrap();
    let two = tree.insert(key(2), &[1, 2]).unwrap();
    assert_eq!((tree.blocks(), tree.depth(one), tree.depth(two)), (3, 3, 2));
    tree.remove(one);
    assert_eq!(tree.blocks(), 2);
    assert_eq!(tree.find(&[1, 2, 3], 1, |_| true), Some(key(2)));
    tree.remove(two);
    assert_eq!(tree.blocks(), 0);
    assert_eq!(tree.find(&[1], 1, |_| true), None);
}

proptest! {
    #[test]
    fn it_finds_what_a_plain_list_finds(
        steps in prop::collection::vec(
            (0..6u64, prop::collection::vec(0..3u64, 0..5), any::<bool>(), 0..6u64, 0..4usize),
            0..60,
        )
    ) {
        let mut tree = PrefixTree::default();
        let mut list: Vec<(u64, Vec<u64>, Option<Leaf>)> = Vec::new();
        for (session, hashes, remove, banned, at_least) in steps {
            let old = list.iter().position(|e| e.0 == session).map(|at| list.remove(at));
            if !remove {
                list.push((session, hashes.clone(), tree.insert(key(session), &hashes)));
            }
            if let Some((_, _, Some(leaf))) = old {
                tree.remove(leaf);
            }
            let depth = |other: &[u64]| {
                hashes.iter().zip(other).take_while(|(one, other)| one == other).count()
            };
            let usable = |session: u64| session != banned;
            let best = list.iter().filter(|e| usable(e.0)).map(|e| depth(&e.1)).max().unwrap_or(0);
            let found = tree.find(&hashes, at_least, |found| found != key(banned));
            if best < at_least.max(1) {
                prop_assert_eq!(found, None);
            } else {
                let tied = list.iter().filter(|e| usable(e.0) && depth(&e.1) == best);
                let mut tied = tied.map(|e| key(e.0));
                prop_assert!(tied.any(|tied| Some(tied) == found));
            }
            let mut prefixes: Vec<&[u64]> =
                list.iter().flat_map(|e| (1..=e.1.len()).map(|to| &e.1[..to])).collect();
            prefixes.sort_unstable();
            prefixes.dedup();
            prop_assert_eq!(tree.blocks(), prefixes.len());
        }
    }
}
