//! Full instances: a request goes elsewhere for once, its session stays, and nobody else's moves.

mod support;

use std::net::TcpStream;

use kindred::wire::{Role, prompt::Prompt};
use support::{
    Kindred, chat,
    fleet::{self, Fleet},
    instances::{aggregated, bound_to, open, place},
};

const FIRST: &str = "aggregated-0";
const SECOND: &str = "aggregated-1";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start_roles(&[(Role::Aggregated, 2)], |_| {});
    let addresses: Vec<_> = fleet.workers.iter().map(|worker| worker.address).collect();
    let kindred = Kindred::serve(&aggregated(&addresses, more));
    (fleet, kindred)
}

/// Keeps a worker busy with so many requests of a session that is bound to it.
fn keep_busy(
    fleet: &Fleet,
    kindred: &Kindred,
    worker: usize,
    session: &str,
    count: u32,
) -> Vec<TcpStream> {
    fleet.workers[worker].fault(count, "delay=1h");
    let open = (0..count).map(|_| open(kindred, session, false)).collect();
    fleet.workers[worker].until_faults_are_met();
    open
}

fn decisions(kindred: &Kindred, decision: &str) -> f64 {
    kindred.metric("kindred_affinity_decisions_total", &[decision])
}

#[test]
fn a_session_of_a_full_instance_goes_elsewhere_for_once() {
    let (fleet, kindred) = start("affinity: {overflow: {max_in_flight: 1}}");
    let (own, other) = (bound_to(&kindred, FIRST), bound_to(&kindred, SECOND));
    let busy = keep_busy(&fleet, &kindred, 0, &own, 1);
    assert_eq!(place(&kindred, &own), SECOND);
    assert_eq!(decisions(&kindred, "overflow"), 1.0);
    kindred.assert_metric("kindred_in_flight", &[SECOND], 0.0);
    let busy_too = keep_busy(&fleet, &kindred, 1, &other, 1);
    assert_eq!(
        place(&kindred, &own),
        FIRST,
        "all are full: it stays with its cache"
    );
    drop((busy, busy_too));
    kindred.assert_idle();
    assert_eq!(place(&kindred, &own), FIRST, "the binding has stayed");
    assert_eq!(decisions(&kindred, "overflow"), 1.0);
    assert_eq!(decisions(&kindred, "failover"), 0.0);
}

#[test]
fn prompt_tokens_in_flight_fill_an_instance() {
    let body = chat("hello");
    let messages = serde_json::value::to_raw_value(&body["messages"]).unwrap();
    let tokens = Prompt::chat(Some(&messages), None).weight();
    let two = format!("affinity: {{overflow: {{max_tokens: {}}}}}", 2 * tokens);
    let (fleet, kindred) = start(&two);
    let own = bound_to(&kindred, FIRST);
    let one = keep_busy(&fleet, &kindred, 0, &own, 1);
    assert_eq!(place(&kindred, &own), FIRST);
    drop(one);
    kindred.assert_idle();
    let two = keep_busy(&fleet, &kindred, 0, &own, 2);
    assert_eq!(place(&kindred, &own), SECOND);
    drop(two);
    kindred.assert_idle();
}

#[test]
fn case_h04_one_busy_instance_changes_nobody_elses_place() {
    for more in ["", "affinity: {overflow: {max_in_flight: 4}}"] {
        let (fleet, kindred) = start(more);
        let (hot, other) = (bound_to(&kindred, FIRST), bound_to(&kindred, SECOND));
        let busy = keep_busy(&fleet, &kindred, 0, &hot, 4);
        for _ in 0..4 {
            assert_eq!(place(&kindred, &other), SECOND);
        }
        drop(busy);
        kindred.assert_idle();
        assert_eq!(place(&kindred, &hot), FIRST);
        assert_eq!(place(&kindred, &other), SECOND);
        assert_eq!(decisions(&kindred, "failover"), 0.0);
    }
}
