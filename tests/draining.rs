//! Emptying an instance, by the operator's port and by the configuration: what still comes to it, and
//! that nothing in flight is broken off.

mod support;

use std::{
    io::Read,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use kindred::wire::Role;
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    instances::{aggregated, ask, bound_to, drain, instance, open, operate, place},
    reload::reload,
};

const FIRST: &str = "aggregated-0";
const SECOND: &str = "aggregated-1";

fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start_roles(&[(Role::Aggregated, 2)], |config| {
        config.engine.decode_interval = Duration::from_millis(20);
    });
    let kindred = Kindred::serve(&aggregated(&addresses(&fleet), more));
    (fleet, kindred)
}

fn addresses(fleet: &Fleet) -> Vec<SocketAddr> {
    fleet.workers.iter().map(|worker| worker.address).collect()
}

/// Where so many new sessions go.
fn new_sessions(kindred: &Kindred, name: &str) -> Vec<String> {
    (0..6)
        .map(|number| place(kindred, &format!("{name}-{number}")))
        .collect()
}

/// Waits until a stream has begun, and says what has come of it.
fn begun(client: &mut TcpStream) -> String {
    let mut seen = String::new();
    while !seen.contains("data: {") {
        let mut chunk = [0; 4096];
        let read = client.read(&mut chunk).unwrap();
        assert!(read > 0, "ended early: {seen}");
        seen += &String::from_utf8_lossy(&chunk[..read]);
    }
    seen
}

fn in_flight(kindred: &Kindred, alias: &str) -> u64 {
    instance(kindred, alias)["in_flight"].as_u64().unwrap()
}

#[test]
fn an_instance_without_new_bindings_keeps_its_sessions() {
    let (_fleet, kindred) = start("");
    let (own, other) = (bound_to(&kindred, FIRST), bound_to(&kindred, SECOND));
    let shown = drain(&kindred, FIRST, Some("new_bindings"));
    assert_eq!(shown["standing"], "draining");
    assert_eq!(shown["draining"], "new_bindings");
    assert_eq!(shown["usable"], false);
    assert_eq!(new_sessions(&kindred, "a"), [SECOND; 6]);
    assert_eq!(place(&kindred, &own), FIRST);
    assert_eq!(place(&kindred, &other), SECOND);
    assert_eq!(kindred.metric("kindred_instance_usable", &[FIRST]), 0.0);
    drain(&kindred, FIRST, None);
    assert_eq!(instance(&kindred, FIRST)["standing"], "usable");
    assert!(new_sessions(&kindred, "b").contains(&FIRST.to_owned()));
    kindred.assert_idle();
}

#[test]
fn an_instance_without_new_requests_ends_what_it_has_and_its_sessions_fail_over() {
    let (_fleet, kindred) = start("");
    let own = bound_to(&kindred, FIRST);
    let mut client = open(&kindred, &own, true);
    let mut seen = begun(&mut client);
    let shown = drain(&kindred, FIRST, Some("new_requests"));
    assert_eq!(shown["in_flight"], 1);
    assert_eq!(new_sessions(&kindred, "a"), [SECOND; 6]);
    assert_eq!(place(&kindred, &own), SECOND);
    client.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("data: [DONE]"), "{seen}");
    eventually("it is empty", || {
        (in_flight(&kindred, FIRST) == 0).then_some(())
    });
    operate(&kindred, "POST", &format!("/instances/{FIRST}/undrain"), "");
    assert_eq!(instance(&kindred, FIRST)["usable"], true);
    assert_eq!(place(&kindred, &own), SECOND, "it moved once");
    kindred.assert_idle();
}

#[test]
fn the_configuration_empties_instances_too() {
    let (fleet, kindred) = start("");
    let own = bound_to(&kindred, FIRST);
    let addresses = addresses(&fleet);
    let mode = |mode: &str| {
        let draining = format!("  draining: {{'{}': {mode}}}", addresses[0]);
        aggregated(&addresses, &draining)
    };
    reload(&kindred, &mode("new_bindings"), "applied");
    assert_eq!(new_sessions(&kindred, "a"), [SECOND; 6]);
    assert_eq!(place(&kindred, &own), FIRST);
    reload(&kindred, &mode("new_requests"), "applied");
    assert_eq!(place(&kindred, &own), SECOND);
    // The operator cannot allow what the file forbids, only the other way round.
    let shown = drain(&kindred, FIRST, None);
    assert_eq!(shown["draining"], "new_requests");
    drain(&kindred, FIRST, Some("new_requests"));
    reload(&kindred, &aggregated(&addresses, ""), "applied");
    assert_eq!(instance(&kindred, FIRST)["draining"], "new_requests");
    drain(&kindred, FIRST, None);
    assert!(new_sessions(&kindred, "b").contains(&FIRST.to_owned()));
    kindred.assert_idle();
}

#[test]
fn an_order_for_all_instances_is_kept() {
    let (_fleet, kindred) = start("");
    for alias in [FIRST, SECOND] {
        drain(&kindred, alias, Some("new_requests"));
    }
    assert_eq!(ask(&kindred, "s").0, 503);
    kindred.assert_metric("kindred_requests_total", &["no_instance"], 1.0);
    assert_eq!(kindred.admin("/readyz").status, 503);
    drain(&kindred, SECOND, None);
    assert_eq!(place(&kindred, "s"), SECOND);
    assert_eq!(kindred.admin("/readyz").status, 200);
}

#[test]
fn case_h14_the_stream_of_a_removed_instance_goes_on() {
    let (fleet, kindred) = start("");
    let own = bound_to(&kindred, FIRST);
    let mut client = open(&kindred, &own, true);
    let mut seen = begun(&mut client);
    let rest = aggregated(&addresses(&fleet)[1..], "");
    reload(&kindred, &rest, "applied");
    assert_eq!(instance(&kindred, FIRST)["standing"], "removed");
    assert_eq!(in_flight(&kindred, FIRST), 1);
    assert_eq!(place(&kindred, &own), SECOND);
    client.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("data: [DONE]"), "{seen}");
    kindred.assert_idle();
}

#[test]
fn only_an_operator_is_obeyed_and_only_about_what_is_there() {
    let (_fleet, kindred) = start("");
    let path = format!("/instances/{FIRST}/drain");
    let page = operate(&kindred, "POST", &path, "origin: http://a-page\r\n");
    assert_eq!(page.status, 403);
    let unknown = operate(&kindred, "POST", "/instances/aggregated-9/drain", "");
    assert_eq!(unknown.status, 404);
    let mode = operate(&kindred, "POST", &format!("{path}?mode=soon"), "");
    assert_eq!(mode.status, 400);
    assert_eq!(operate(&kindred, "PUT", &path, "").status, 405);
    assert_eq!(
        instance(&kindred, FIRST)["usable"],
        true,
        "nothing has changed"
    );
    let default = operate(&kindred, "POST", &path, "");
    assert_eq!(default.json()["draining"], "new_bindings");
}
