use proptest::prelude::*;

use super::*;

fn config(policy: NewConversationPlacement) -> PlacementConfig {
    PlacementConfig {
        ranks: 4,
        max_active_per_rank: 8,
        conversation_affinity: true,
        max_sessions: 64,
        fair_share_multiplier: 2.0,
        new_conversation: policy,
    }
}

fn loads(active: &[u32]) -> Vec<RankLoad> {
    active
        .iter()
        .map(|&requests| RankLoad {
            requests,
            tokens: u64::from(requests),
        })
        .collect()
}

fn ask(session: &str) -> Ask {
    Ask::new(Some(AffinityKey::new(session)), 1)
}

#[test]
fn a_full_rank_overflows_and_the_binding_stays() {
    let mut placer = RankPlacer::new(&config(NewConversationPlacement::RoundRobin));
    let first = placer.place_one(&loads(&[0; 4]), 8, ask("a"));
    assert_eq!((first.rank, first.reason), (Some(0), PlacementReason::New));
    let over = placer.place_one(&loads(&[8, 0, 0, 0]), 8, ask("a"));
    assert_eq!(
        (over.rank, over.reason),
        (Some(1), PlacementReason::Overflow)
    );
    let back = placer.place_one(&loads(&[7, 0, 0, 0]), 8, ask("a"));
    assert_eq!((back.rank, back.reason), (Some(0), PlacementReason::Sticky));
    assert_eq!(placer.peek(AffinityKey::new("a")), Some(0));
}

#[test]
fn an_explicit_rank_binds_but_does_not_bind_anew() {
    let mut placer = RankPlacer::new(&config(NewConversationPlacement::LeastQueued));
    let named = |rank| Ask {
        rank: Some(rank),
        ..ask("a")
    };
    let first = placer.place_one(&loads(&[0; 4]), 8, named(2));
    assert_eq!(
        (first.rank, first.reason),
        (Some(2), PlacementReason::Explicit)
    );
    let second = placer.place_one(&loads(&[0; 4]), 8, named(3));
    assert_eq!(
        (second.rank, second.reason),
        (Some(2), PlacementReason::Sticky)
    );
    let missing = placer.place_one(
        &loads(&[1, 0, 1, 1]),
        8,
        Ask {
            key: None,
            ..named(9)
        },
    );
    assert_eq!(
        (missing.rank, missing.reason),
        (Some(1), PlacementReason::Unkeyed)
    );
}

#[test]
fn without_affinity_nothing_is_bound() {
    let off = PlacementConfig {
        conversation_affinity: false,
        ..config(NewConversationPlacement::RoundRobin)
    };
    let mut placer = RankPlacer::new(&off);
    let ranks: Vec<_> = (0..3)
        .map(|_| placer.place_one(&loads(&[0; 4]), 8, ask("a")).rank)
        .collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2)]);
    assert_eq!(placer.bindings(), 0);
}

#[test]
fn ranks_that_have_gone_are_not_answered() {
    let mut placer = RankPlacer::new(&config(NewConversationPlacement::RoundRobin));
    placer.place_one(
        &loads(&[0; 4]),
        8,
        Ask {
            rank: Some(3),
            ..ask("a")
        },
    );
    let fewer = placer.place_one(&loads(&[0; 2]), 8, ask("a"));
    assert_eq!((fewer.rank, fewer.reason), (Some(0), PlacementReason::New));
    assert_eq!(placer.place_one(&[], 8, ask("a")).rank, None);
    assert_eq!(placer.place_one(&loads(&[3, 2]), 0, ask("b")).rank, Some(1));
}

proptest! {
    #[test]
    fn every_request_gets_a_rank_and_none_below_the_cap_is_skipped(
        active in prop::collection::vec(0..6u32, 1..6),
        cap in 1..6u32,
        asks in prop::collection::vec((0..5u64, prop::option::of(0..8u32), any::<bool>()), 0..12),
        policy in prop_oneof![
            Just(NewConversationPlacement::RoundRobin),
            Just(NewConversationPlacement::LeastQueued),
            Just(NewConversationPlacement::LeastTokens),
        ],
    ) {
        let mut placer = RankPlacer::new(&config(policy));
        let batch: Vec<Ask> = asks.iter().map(|&(session, rank, relax)| Ask {
            key: (session > 0).then(|| AffinityKey::synthetic(session)),
            rank,
            relax,
            tokens: session,
        }).collect();
        let mut now = active.clone();
        let mut placed = placer.place(&loads(&active), cap, &batch);
        placed.sort_by_key(|placed| placed.turn);
        for placed in placed {
            let rank = placed.rank.unwrap() as usize;
            prop_assert!(now[rank] < cap || now.iter().all(|&active| active >= cap));
            now[rank] += 1;
        }
        prop_assert!(now.iter().all(|&active| active <= placer.expected_active()));
    }
}
