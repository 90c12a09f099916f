//! Placement goes on over a reload: what is bound stays, and what runs stays counted.

use kindred::wire::Role;

use crate::placement::{adp, endless, short};
use crate::support::reload::reload;
use crate::{Filtered, KEY, yaml};

impl Filtered {
    fn reload(&self, more: &str) {
        let key = format!("internal_request_auth_key: {KEY}");
        let file = yaml(&key, self.worker().address, more);
        reload(&self.kindred, &file, "applied");
    }
}

fn open(ranks: u32) -> Filtered {
    let more = adp(ranks, "round_robin", "");
    Filtered::open(Role::Aggregated, &more, endless(4))
}

#[test]
fn a_new_batch_size_keeps_loads_and_bindings() {
    let site = open(4);
    let homes: Vec<_> = (0..4)
        .map(|at| site.rank_of(&[], &short(&format!("s{at}"))))
        .collect();
    let held = site.hold_session("s2");
    assert_eq!(held.rank, homes[2]);
    site.reload(&adp(4, "least_queued", ", max_batch_size: 1"));
    // It still counts, and nothing else does.
    site.runs(held.rank, 1.0);
    site.kindred
        .assert_metric("kindred_rank_in_flight", &[], 1.0);
    for at in [0, 1, 3] {
        let rank = site.rank_of(&[], &short(&format!("s{at}")));
        assert_eq!(rank, homes[at], "still bound");
    }
    assert_ne!(site.rank_of(&[], &short("s2")), homes[2], "the new bound");
    assert_eq!(site.placed("overflow"), 1.0);
    held.leave(&site);
    assert_eq!(site.rank_of(&[], &short("s2")), homes[2]);
    assert_eq!(site.placed("new"), 4.0);
    site.kindred.assert_idle();
}

#[test]
fn ranks_go_and_come_back_without_losing_count() {
    let site = open(4);
    let mut held: Vec<_> = (0..4)
        .map(|at| site.hold_session(&format!("s{at}")))
        .collect();
    held.sort_by_key(|held| held.rank);
    site.reload(&adp(2, "round_robin", ""));
    let series = |rank: u32| {
        let page = site.kindred.admin("/metrics").text();
        page.contains(&format!("rank=\"{rank}\""))
    };
    assert_eq!([0, 1, 2, 3].map(series), [true, true, false, false]);
    assert_eq!((site.in_flight(0), site.in_flight(1)), (1.0, 1.0));
    // One of a rank that is gone ends meanwhile.
    let gone = held.remove(3);
    let last = site.worker().requests().len();
    drop(gone);
    crate::support::eventually("its worker is left", || {
        let requests = site.worker().requests();
        (requests
            .iter()
            .filter(|request| request.client_left)
            .count()
            == 1)
            .then_some(())
    });
    assert_eq!(site.worker().requests().len(), last);
    for at in 0..4 {
        assert!(site.rank_of(&[], &short(&format!("s{at}"))) < 2, "s{at}");
    }
    site.runs(0, 1.0);
    site.runs(1, 1.0);
    site.reload(&adp(4, "round_robin", ""));
    let loads = || [0, 1, 2, 3].map(|rank| site.in_flight(rank));
    crate::support::eventually("what still runs on rank 2 counts again", || {
        (loads() == [1.0, 1.0, 1.0, 0.0]).then_some(())
    });
    drop(held);
    site.kindred.assert_idle();
}

#[test]
fn placement_is_turned_off_and_on_again() {
    let site = open(2);
    let held = site.hold_session("s");
    site.reload("");
    let answer = site.post(&[], &short("s"));
    assert_eq!(
        (answer.status, answer.header("x-kindred-rank")),
        (200, None)
    );
    site.reload(&adp(2, "round_robin", ""));
    assert_eq!(site.in_flight(held.rank), 1.0);
    held.leave(&site);
    site.kindred.assert_idle();
}
