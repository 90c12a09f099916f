use super::*;
use crate::{affinity::AffinityKey, config::NewConversationPlacement};

fn config(ranks: u32) -> PlacementConfig {
    PlacementConfig {
        ranks,
        max_active_per_rank: 8,
        conversation_affinity: true,
        max_sessions: 16,
        fair_share_multiplier: 2.0,
        new_conversation: NewConversationPlacement::RoundRobin,
    }
}

fn open(worker: &str, ranks: u32) -> Ranks {
    let opened = Ranks::new(worker);
    opened.reconfigure(Some(&config(ranks)));
    opened
}

fn place(ranks: &Ranks, session: &str) -> RankLease {
    let ask = Ask::new(Some(AffinityKey::new(session)), 10);
    ranks.place(&ask).expect("there are ranks")
}

fn loads(ranks: &Ranks) -> Vec<(u32, u64)> {
    let state = ranks.state.lock();
    let loads = state.ranks.iter().map(|rank| rank.load.now());
    loads.map(|load| (load.requests, load.tokens)).collect()
}

#[test]
fn new_settings_hold_at_once_and_nothing_is_forgotten() {
    let ranks = open("ranks-settings", 2);
    let home = place(&ranks, "s");
    let mut narrow = config(2);
    (narrow.max_active_per_rank, narrow.max_sessions) = (1, 1);
    ranks.reconfigure(Some(&narrow));
    let guest = place(&ranks, "s");
    assert_ne!(guest.rank(), home.rank(), "the new cap");
    let at = home.rank();
    drop(home);
    assert_eq!(place(&ranks, "s").rank(), at, "bound as before");
    drop(guest);
    assert_eq!(loads(&ranks), [(0, 0), (0, 0)]);
}

#[test]
fn loads_of_ranks_that_come_back_count_again() {
    let ranks = open("ranks-back", 4);
    let held: Vec<_> = (0..4).map(|at| place(&ranks, &format!("s{at}"))).collect();
    ranks.reconfigure(Some(&config(2)));
    assert_eq!(loads(&ranks), [(1, 10); 2]);
    ranks.reconfigure(Some(&config(4)));
    assert_eq!(loads(&ranks), [(1, 10); 4]);
    ranks.reconfigure(Some(&config(2)));
    drop(held);
    assert_eq!(loads(&ranks), [(0, 0); 2]);
    ranks.reconfigure(Some(&config(4)));
    assert_eq!(loads(&ranks), [(0, 0); 4]);
}

#[test]
fn bindings_to_ranks_that_were_gone_are_none() {
    let ranks = open("ranks-bound", 4);
    let homes: Vec<_> = (0..4).map(|at| place(&ranks, &format!("s{at}"))).collect();
    let rank_of = |at: usize| homes[at].rank();
    ranks.reconfigure(Some(&config(2)));
    ranks.reconfigure(Some(&config(4)));
    let state = ranks.state.lock();
    let placer = state.placer.as_ref().expect("a placer");
    for (at, home) in homes.iter().enumerate() {
        let bound = placer.peek(AffinityKey::new(&format!("s{at}")));
        let kept = (home.rank() < 2).then_some(rank_of(at));
        assert_eq!(bound, kept, "s{at}");
    }
}

#[test]
fn without_placement_nothing_is_placed_and_leases_are_given_back() {
    let ranks = open("ranks-off", 2);
    let lease = place(&ranks, "s");
    ranks.reconfigure(None);
    assert!(ranks.place(&Ask::new(None, 1)).is_none());
    ranks.reconfigure(Some(&config(2)));
    assert_eq!(loads(&ranks).iter().map(|load| load.0).sum::<u32>(), 1);
    drop(lease);
    assert_eq!(loads(&ranks), [(0, 0), (0, 0)]);
}

#[test]
fn ranks_that_are_gone_have_no_series() {
    let ranks = open("ranks-series", 3);
    ranks.reconfigure(Some(&config(1)));
    ranks.export();
    let page = telemetry::metrics().render();
    let shown = |rank: u32| {
        page.contains(&format!(
            "kindred_rank_in_flight{{rank=\"{rank}\",worker=\"ranks-series\"}}"
        ))
    };
    assert_eq!([shown(0), shown(1), shown(2)], [true, false, false]);
}
