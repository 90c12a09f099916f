use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Add(Slot, Vec<u64>),
    Remove(Slot, Vec<u64>),
    Forget(Vec<Slot>),
    Look(Vec<u64>),
}

/// Slots on both sides of a word's border, and hashes that repeat.
fn step() -> impl Strategy<Value = Step> {
    let slot = || prop_oneof![0..4_u16, 60..70_u16];
    let hashes = || prop::collection::vec(0..12_u64, 0..8);
    prop_oneof![
        4 => (slot(), hashes()).prop_map(|(slot, hashes)| Step::Add(slot, hashes)),
        2 => (slot(), hashes()).prop_map(|(slot, hashes)| Step::Remove(slot, hashes)),
        1 => prop::collection::vec(slot(), 0..3).prop_map(Step::Forget),
        4 => hashes().prop_map(Step::Look),
    ]
}

type Model = HashMap<Slot, HashSet<u64>>;

fn depth(model: &Model, slot: Slot, hashes: &[u64]) -> u32 {
    let held = |hash: &&u64| model.get(&slot).is_some_and(|held| held.contains(hash));
    hashes.iter().take_while(held).count() as u32
}

proptest! {
    #[test]
    fn each_holder_has_what_it_was_given(steps in prop::collection::vec(step(), 0..60)) {
        let blocks = Blocks::default();
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Add(slot, hashes) => {
                    blocks.add(slot, &hashes);
                    model.entry(slot).or_default().extend(hashes);
                }
                Step::Remove(slot, hashes) => {
                    blocks.remove(slot, &hashes);
                    let held = model.entry(slot).or_default();
                    hashes.iter().for_each(|hash| { held.remove(hash); });
                }
                Step::Forget(slots) => {
                    blocks.forget(&slots);
                    slots.iter().for_each(|slot| { model.remove(slot); });
                }
                Step::Look(hashes) => {
                    let depths = blocks.depths(&hashes, 70);
                    for (slot, found) in (0..70).zip(depths) {
                        prop_assert_eq!(found, depth(&model, slot, &hashes), "slot {}", slot);
                    }
                }
            }
            let distinct: HashSet<&u64> = model.values().flatten().collect();
            prop_assert_eq!(blocks.len(), distinct.len());
        }
        prop_assert_eq!(blocks.dropped(), 0);
    }

    #[test]
    fn a_full_index_keeps_what_was_used_last_and_invents_nothing(
        adds in prop::collection::vec((0..3_u16, any::<u16>()), 1..600),
    ) {
        let blocks = Blocks::with_bound(SHARDS * 4);
        let mut model = Model::new();
        for (slot, hash) in adds {
            let hash = u64::from(hash);
            blocks.add(slot, &[hash]);
            model.entry(slot).or_default().insert(hash);
            prop_assert_eq!(blocks.depths(&[hash], 3)[usize::from(slot)], 1);
            prop_assert!(blocks.len() <= SHARDS * 4);
        }
        let distinct: HashSet<u64> = model.values().flatten().copied().collect();
        for hash in &distinct {
            for (slot, found) in (0..3).zip(blocks.depths(&[*hash], 3)) {
                prop_assert!(found <= depth(&model, slot, &[*hash]));
            }
        }
        prop_assert!(blocks.dropped() as usize + blocks.len() >= distinct.len());
    }
}

#[test]
fn many_holders_are_told_apart() {
    let blocks = Blocks::default();
    for slot in 0..1_000 {
        blocks.add(slot, &[1, 2, 3][..1 + usize::from(slot) % 3]);
    }
    let depths = blocks.depths(&[1, 2, 3, 4], 1_000);
    assert!((0..1_000).all(|slot| depths[slot] as usize == 1 + slot % 3));
    let all: Vec<Slot> = (0..1_000).collect();
    blocks.forget(&all);
    assert_eq!(blocks.len(), 0);
}

#[test]
fn what_is_used_again_outlives_what_is_not() {
    let blocks = Blocks::with_bound(SHARDS * 4);
    let in_one_shard = |number: u64| number * SHARDS as u64;
    blocks.add(0, &[in_one_shard(0), in_one_shard(1)]);
    for number in 2..20 {
        blocks.add(0, &[in_one_shard(number), in_one_shard(0)]);
    }
    assert_eq!(blocks.depths(&[in_one_shard(0)], 1), [1]);
    assert_eq!(blocks.depths(&[in_one_shard(1)], 1), [0]);
    assert!(blocks.dropped() > 0);
}
