//! Places in fleets and of clients: who waits, who is refused, and that everything is given back.

mod support;

use std::{io::Write, net::TcpStream};

use kindred::wire::Role;
use support::{
    Kindred,
    clients::digest,
    eventually,
    fleet::{self, Fleet, Worker},
    h2c, raw,
    reload::reload,
};

const CHAT: &str = "/v1/chat/completions";

/// An edge with so many places in each fleet, and more of its file.
fn start(places: usize, more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&limited(places, more)));
    (fleet, kindred)
}

fn limited(places: usize, more: &str) -> String {
    format!("limits: {{max_in_flight: {places}, max_waiting: 2}}\n{more}")
}

fn worker(fleet: &Fleet, role: Role) -> &Worker {
    fleet.of(role).next().unwrap()
}

/// A request whose answer is not waited for; it ends when the connection is dropped.
fn begin(kindred: &Kindred, session: &str) -> TcpStream {
    let body = support::chat("hello").to_string();
    let mut stream = raw::connect(kindred.edge());
    let bytes = raw::request(CHAT, &[("x-session-id", session)], body.as_bytes());
    stream.write_all(&bytes).unwrap();
    stream
}

/// A request that is held by the worker of a role until it is dropped.
fn hold(fleet: &Fleet, kindred: &Kindred, role: Role) -> TcpStream {
    let worker = worker(fleet, role);
    worker.fault(1, "delay=1h");
    let before = worker.requests().len();
    let stream = begin(kindred, "held");
    eventually("the worker has it", || {
        (worker.requests().len() > before).then_some(())
    });
    stream
}

fn waiting(kindred: &Kindred, number: f64) {
    kindred.assert_metric("kindred_waiting", &[], number);
}

fn refused(kindred: &Kindred, reason: &str) -> f64 {
    let reason = format!("reason=\"{reason}\"");
    kindred.metric("kindred_queue_refusals_total", &[&reason])
}

fn assert_refused(answer: &raw::Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], code);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[test]
fn a_full_fleet_lets_some_wait_in_order_and_refuses_the_rest_at_once() {
    for role in [Role::Context, Role::Generation] {
        let (fleet, kindred) = start(1, "");
        let held = hold(&fleet, &kindred, role);
        let mut waiters = Vec::new();
        // One by one, so that their order is known. Before the generation leg their context legs run.
        for number in 1..=2 {
            waiters.push(begin(&kindred, &format!("w{number}")));
            waiting(&kindred, f64::from(number));
        }
        if role == Role::Context {
            let answer = raw::read_answer(&mut begin(&kindred, "late"));
            assert_refused(&answer, 503, "no_capacity");
            assert_eq!(refused(&kindred, "full"), 1.0);
        }
        drop(held);
        for mut waiter in waiters {
            assert_eq!(raw::read_answer(&mut waiter).status, 200);
        }
        let seen = worker(&fleet, role).requests();
        let sessions: Vec<_> = seen
            .iter()
            .filter_map(support::seen::conversation_id)
            .collect();
        assert_eq!(sessions, ["held", "w1", "w2"], "{role:?}");
        waiting(&kindred, 0.0);
        let waits = kindred.metric("kindred_queue_wait_seconds_count", &[]);
        assert!(waits >= 2.0, "{waits}");
        kindred.assert_idle();
    }
}

#[test]
fn whoever_waits_too_long_is_told_so() {
    let (fleet, kindred) = start(1, "timeouts: {queue: 200ms}");
    for role in [Role::Context, Role::Generation] {
        let held = hold(&fleet, &kindred, role);
        let answer = raw::read_answer(&mut begin(&kindred, "late"));
        assert_refused(&answer, 503, "no_capacity");
        assert!(answer.text().contains("within 200ms"), "{}", answer.text());
        drop(held);
        kindred.assert_idle();
    }
    assert_eq!(refused(&kindred, "deadline"), 2.0);
    kindred.assert_metric("kindred_requests_total", &["outcome=\"overloaded\""], 2.0);
    assert_eq!(raw::read_answer(&mut begin(&kindred, "s")).status, 200);
}

#[test]
fn case_h02_a_client_that_leaves_the_line_is_noticed_and_nothing_is_sent_for_it() {
    let (fleet, kindred) = start(1, "");
    let held = hold(&fleet, &kindred, Role::Context);
    let body = support::chat("hello").to_string();
    let http1 = begin(&kindred, "leaves");
    waiting(&kindred, 1.0);
    let mut http2 = h2c::open(kindred.edge(), CHAT, &[], body.as_bytes(), &[]);
    waiting(&kindred, 2.0);
    drop(http1);
    waiting(&kindred, 1.0);
    h2c::reset(&mut http2);
    waiting(&kindred, 0.0);
    kindred.assert_metric(
        "kindred_requests_total",
        &["outcome=\"client_cancel\""],
        2.0,
    );
    drop(held);
    kindred.assert_idle();
    assert_eq!(worker(&fleet, Role::Context).requests().len(), 1);
}

#[test]
fn a_reload_changes_the_bounds_and_loses_nobody() {
    let (fleet, kindred) = start(1, "");
    let held = hold(&fleet, &kindred, Role::Context);
    let mut waiter = begin(&kindred, "waits");
    waiting(&kindred, 1.0);
    reload(&kindred, &fleet.yaml(&limited(2, "")), "applied");
    assert_eq!(raw::read_answer(&mut waiter).status, 200);
    reload(&kindred, &fleet.yaml(&limited(1, "")), "applied");
    let mut waiter = begin(&kindred, "waits");
    waiting(&kindred, 1.0);
    reload(&kindred, &fleet.yaml(""), "applied");
    assert_eq!(raw::read_answer(&mut waiter).status, 200);
    drop(held);
    kindred.assert_idle();
}

#[test]
fn generation_first_holds_both_places_and_comes_to_no_standstill() {
    let fleet = fleet::start(2, 2, |_| {});
    let more =
        limited(1, "schedule_style: generation_first").replace("max_waiting: 2", "max_waiting: 64");
    let kindred = Kindred::serve(&fleet.yaml(&more));
    let mut all: Vec<_> = (0..24)
        .map(|number| begin(&kindred, &format!("s{number}")))
        .collect();
    for stream in &mut all {
        assert_eq!(raw::read_answer(stream).status, 200);
    }
    kindred.assert_idle();
}

#[test]
fn an_aggregated_fleet_has_a_line_too() {
    let fleet = fleet::start_roles(&[(Role::Aggregated, 1)], |_| {});
    let yaml = format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n{}\n{}",
        fleet.section(Role::Aggregated),
        limited(1, "")
    );
    let kindred = Kindred::serve(&yaml);
    let held = hold(&fleet, &kindred, Role::Aggregated);
    let mut waiter = begin(&kindred, "waits");
    waiting(&kindred, 1.0);
    drop(held);
    assert_eq!(raw::read_answer(&mut waiter).status, 200);
    kindred.assert_idle();
}

#[test]
fn a_clients_own_limit_is_429_and_no_other_clients_matter() {
    let gateway = |most: usize| {
        format!(
            "gateway:\n  anonymous: owned\n  anonymous_max_in_flight: 1\n  clients:\n\
             \x20   - {{name: ada, api_keys_sha256: ['{}'], max_in_flight: {most}}}\n\
             \x20   - {{name: ben, api_keys_sha256: ['{}']}}\n",
            digest("ada-key"),
            digest("ben-key")
        )
    };
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&gateway(1)));
    let send = |key: &str| {
        let value = format!("Bearer {key}");
        let headers = [("authorization", value.as_str())];
        let headers = if key.is_empty() { &[][..] } else { &headers };
        let mut stream = raw::connect(kindred.edge());
        let body = support::chat("hello").to_string();
        let request = raw::request(CHAT, headers, body.as_bytes());
        stream.write_all(&request).unwrap();
        stream
    };
    let held = |key: &str| {
        let worker = worker(&fleet, Role::Context);
        worker.fault(1, "delay=1h");
        let before = worker.requests().len();
        let stream = send(key);
        eventually("the worker has it", || {
            (worker.requests().len() > before).then_some(())
        });
        stream
    };
    let answer = |key: &str| raw::read_answer(&mut send(key));
    let _ada = held("ada-key");
    assert_refused(&answer("ada-key"), 429, "client_limit");
    assert_eq!(answer("ben-key").status, 200);
    let _nobody = held("");
    assert_refused(&answer(""), 429, "client_limit");
    assert_eq!(refused(&kindred, "client"), 2.0);
    // What is in flight still counts after a reload.
    reload(&kindred, &fleet.yaml(&gateway(2)), "applied");
    let _second = held("ada-key");
    assert_refused(&answer("ada-key"), 429, "client_limit");
    drop((_ada, _nobody, _second));
    kindred.assert_idle();
    assert_eq!((answer("ada-key").status, answer("").status), (200, 200));
}
