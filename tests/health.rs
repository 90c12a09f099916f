//! Workers that die, freeze, come back, or fail for a while, seen from clients and from the operator's
//! port.

mod support;

use std::net::SocketAddr;

use kindred::wire::Role;
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    instances::{aggregated, ask, bound_to, instance, open, place, until},
    process::WorkerProcess,
};

/// Probes that notice soon and are patient with a busy machine.
const PROBED: &str = "health: {interval: 50ms, timeout: 20s, unhealthy_after: 2, healthy_after: 2";

/// Two workers as processes, and what their addresses are.
fn two() -> ([WorkerProcess; 2], [SocketAddr; 2]) {
    let workers = [(); 2].map(|()| WorkerProcess::start(Role::Aggregated, &[]));
    let addresses = [workers[0].address, workers[1].address];
    (workers, addresses)
}

/// Two workers inside the test, before an edge that does not probe.
fn unprobed(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start_roles(&[(Role::Aggregated, 2)], |_| {});
    let addresses: Vec<_> = fleet.workers.iter().map(|worker| worker.address).collect();
    let kindred = Kindred::serve(&aggregated(&addresses, more));
    (fleet, kindred)
}

/// The names of so many sessions, and where each is served.
fn sessions(kindred: &Kindred, count: usize) -> Vec<(String, String)> {
    let sessions = (0..count).map(|number| format!("s{number}"));
    sessions
        .map(|session| (session.clone(), place(kindred, &session)))
        .collect()
}

fn ejections(kindred: &Kindred, labels: &[&str]) -> f64 {
    kindred.metric("kindred_ejections_total", labels)
}

fn retries(kindred: &Kindred) -> f64 {
    kindred.metric("kindred_leg_retries_total", &[])
}

#[test]
fn a_worker_that_dies_is_left_alone_until_it_is_back_and_sessions_move_once() {
    let (mut workers, addresses) = two();
    let settings = format!("{PROBED}, slow_start: 0s}}");
    let kindred = Kindred::serve(&aggregated(&addresses, &settings));
    let before = sessions(&kindred, 8);
    assert!(before.iter().any(|(_, place)| place == "aggregated-0"));
    workers[0].kill();
    until(&kindred, "aggregated-0", "down");
    let why = instance(&kindred, "aggregated-0")["why"].to_string();
    assert!(why.contains("no connection could be made"), "{why}");
    assert_eq!(
        kindred.metric("kindred_instance_usable", &["aggregated-0"]),
        0.0
    );
    assert_eq!(kindred.admin("/readyz").status, 200, "one is enough");
    for (session, _) in &before {
        assert_eq!(place(&kindred, session), "aggregated-1");
    }
    assert_eq!(retries(&kindred), 0.0, "nobody had to find out by trying");
    workers[0].restart();
    until(&kindred, "aggregated-0", "usable");
    for (session, _) in &before {
        let now = place(&kindred, session);
        assert_eq!(now, "aggregated-1", "{session} stays where it moved to");
    }
    bound_to(&kindred, "aggregated-0");
    kindred.assert_metric("kindred_instance_usable", &[], 2.0);
    kindred.assert_idle();
}

#[test]
fn case_h15_a_frozen_worker_is_noticed_and_left_alone() {
    let (workers, addresses) = two();
    let settings = "health: {interval: 50ms, timeout: 1s, unhealthy_after: 1, healthy_after: 1, slow_start: 0s}";
    let kindred = Kindred::serve(&aggregated(&addresses, settings));
    let session = bound_to(&kindred, "aggregated-0");
    workers[0].freeze();
    until(&kindred, "aggregated-0", "down");
    let why = instance(&kindred, "aggregated-0")["why"].to_string();
    assert!(why.contains("did not answer in time"), "{why}");
    // It would hang there for the three minutes of timeouts.silence.
    assert_eq!(place(&kindred, &session), "aggregated-1");
    workers[0].thaw();
    until(&kindred, "aggregated-0", "usable");
    kindred.assert_idle();
}

#[test]
fn case_h21_where_everything_looks_bad_requests_are_sent_all_the_same() {
    let (mut workers, addresses) = two();
    // Probes will never find them good again.
    let settings =
        "health: {interval: 50ms, timeout: 20s, unhealthy_after: 1, healthy_after: 1000}";
    let kindred = Kindred::serve(&aggregated(&addresses, settings));
    let before = sessions(&kindred, 4);
    for worker in &mut workers {
        worker.kill();
    }
    for alias in ["aggregated-0", "aggregated-1"] {
        until(&kindred, alias, "down");
    }
    let ready = kindred.admin("/readyz");
    assert_eq!(ready.status, 503);
    assert!(
        ready.text().contains("too few usable instances"),
        "{}",
        ready.text()
    );
    assert_eq!(ask(&kindred, "s0").0, 502, "it was tried");
    for worker in &mut workers {
        worker.restart();
    }
    for (session, _) in &before {
        place(&kindred, session);
    }
    assert_eq!(instance(&kindred, "aggregated-0")["standing"], "down");
    kindred.assert_idle();
}

#[test]
fn case_h21_a_blip_at_the_start_takes_nobody_out() {
    let (mut workers, addresses) = two();
    for worker in &mut workers {
        worker.kill();
    }
    let kindred = Kindred::serve(&aggregated(&addresses, "max_retries: 0"));
    for session in ["a", "b", "c", "d"] {
        assert_eq!(ask(&kindred, session).0, 502);
    }
    for worker in &mut workers {
        worker.restart();
    }
    for number in 0..6 {
        place(&kindred, &format!("new-{number}"));
    }
    assert_eq!(ejections(&kindred, &[]), 0.0);
    kindred.assert_idle();
}

/// An edge that ejects after four requests of which half failed, for an hour.
const EJECTS: &str = "max_retries: 0\nhealth: {active: false, slow_start: 0s, \
                      ejection: {min_requests: 4, time: 1h, max_time: 1h}}";

#[test]
fn case_h21_a_worker_that_keeps_failing_sits_out_but_never_the_last_one() {
    let (fleet, kindred) = unprobed(EJECTS);
    let session = bound_to(&kindred, "aggregated-0");
    fleet.workers[0].fault(1000, "status=503");
    let mut failed = 0;
    while ask(&kindred, &session).0 == 503 {
        failed += 1;
        assert!(failed < 10, "it is ejected at last");
    }
    assert_eq!(place(&kindred, &session), "aggregated-1", "failed over");
    assert_eq!(ejections(&kindred, &["server_error"]), 1.0);
    assert_eq!(ejections(&kindred, &[]), 1.0);
    let shown = instance(&kindred, "aggregated-0");
    assert_eq!(shown["standing"], "ejected");
    assert!(shown["why"].to_string().contains("server_error"), "{shown}");
    // The other one fails as well: it goes on being asked, and is told as it is.
    fleet.workers[1].fault(1000, "status=503");
    for _ in 0..20 {
        assert_eq!(ask(&kindred, &session).0, 503);
    }
    assert_eq!(instance(&kindred, "aggregated-1")["standing"], "usable");
    assert_eq!(ejections(&kindred, &[]), 1.0);
    kindred.assert_idle();
}

#[test]
fn case_h21_what_clients_do_takes_nobody_out() {
    let (fleet, kindred) = unprobed(EJECTS);
    let session = bound_to(&kindred, "aggregated-0");
    fleet.workers[0].fault(12, "status=400");
    for _ in 0..12 {
        assert_eq!(ask(&kindred, &session).0, 400);
    }
    fleet.workers[0].fault(12, "delay=1h");
    let clients: Vec<_> = (0..12).map(|_| open(&kindred, &session, false)).collect();
    fleet.workers[0].until_faults_are_met();
    drop(clients);
    kindred.assert_idle();
    kindred.assert_metric("kindred_requests_total", &["client_cancel"], 12.0);
    assert_eq!(ejections(&kindred, &[]), 0.0);
    assert_eq!(place(&kindred, &session), "aggregated-0");
}

#[test]
fn connections_that_cannot_be_made_or_break_take_a_worker_out_in_either_leg() {
    for (role, cause) in [
        (Role::Context, "connect"),
        (Role::Generation, "connect"),
        (Role::Generation, "reset"),
        (Role::Context, "reset"),
    ] {
        let fleet = fleet::start(2, 2, |_| {});
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let broken = support::stand_in::Canned::answering("");
        let bad = match cause {
            "connect" => dead.local_addr().unwrap(),
            _ => broken.address,
        };
        drop(dead);
        let of = |of: Role| {
            let mut addresses: Vec<_> = fleet.of(of).map(|worker| worker.address).collect();
            if of == role {
                addresses[0] = bad;
            }
            addresses
        };
        let yaml = fleet::yaml(&of(Role::Context), &of(Role::Generation), EJECTS);
        let kindred = Kindred::serve(&yaml.replace("max_retries: 0", "max_retries: 1"));
        eventually("the worker is ejected", || {
            // Each of them is a new session, and half of those come to it first.
            let number = kindred.metric("kindred_requests_total", &[]);
            ask(&kindred, &format!("s{number}"));
            let labels = [role.label(), cause].map(|label| format!("\"{label}\""));
            let labels = labels.each_ref().map(String::as_str);
            (ejections(&kindred, &labels) == 1.0).then_some(())
        });
        let alias = format!("{}-0", role.label());
        assert_eq!(instance(&kindred, &alias)["standing"], "ejected");
        kindred.assert_idle();
    }
}

#[test]
fn an_ejected_worker_comes_back_by_itself() {
    let settings = EJECTS.replace("1h", "200ms");
    let (fleet, kindred) = unprobed(&settings);
    let session = bound_to(&kindred, "aggregated-0");
    fleet.workers[0].fault(1000, "status=500");
    eventually("it is ejected", || {
        ask(&kindred, &session);
        (ejections(&kindred, &[]) == 1.0).then_some(())
    });
    fleet.workers[0].fault(0, "");
    until(&kindred, "aggregated-0", "usable");
    bound_to(&kindred, "aggregated-0");
    kindred.assert_idle();
}

#[test]
fn an_instance_that_came_back_gets_new_sessions_little_by_little_and_its_own_at_once() {
    let (mut workers, addresses) = two();
    let settings = format!("{PROBED}, slow_start: 1h}}");
    let kindred = Kindred::serve(&aggregated(&addresses, &settings));
    let own = bound_to(&kindred, "aggregated-0");
    workers[0].kill();
    until(&kindred, "aggregated-0", "down");
    workers[0].restart();
    until(&kindred, "aggregated-0", "slow_start");
    assert_eq!(place(&kindred, &own), "aggregated-0", "it had not to move");
    let new = (0..40).filter(|number| place(&kindred, &format!("new-{number}")) == "aggregated-0");
    let new = new.count();
    assert!((1..=4).contains(&new), "about a twentieth, not {new} of 40");
    kindred.assert_idle();
}

#[test]
fn a_reload_that_ends_probing_forgets_what_probes_found() {
    let (mut workers, addresses) = two();
    let settings = format!("{PROBED}}}");
    let kindred = Kindred::serve(&aggregated(&addresses, &settings));
    workers[0].kill();
    until(&kindred, "aggregated-0", "down");
    let probes = || kindred.metric("kindred_probes_total", &["failed"]);
    assert!(probes() >= 2.0);
    let yaml = aggregated(&addresses, "health: {active: false}");
    support::reload::reload(&kindred, &yaml, "applied");
    assert_eq!(instance(&kindred, "aggregated-0")["standing"], "usable");
}

#[test]
fn what_is_asked_for_is_the_configured_path() {
    let (fleet, kindred) = unprobed("health: {interval: 20ms, path: '/v1/models?probe=1'}");
    let asked = |path: &str| {
        let seen = fleet.workers[0].recorder.since(0);
        seen.iter()
            .filter(|request| request.path.starts_with(path))
            .count()
    };
    eventually("it is probed again and again", || {
        (asked("/v1/models") > 3).then_some(())
    });
    assert_eq!(asked("/health"), 0);
    assert!(kindred.metric("kindred_probes_total", &["good"]) > 0.0);
}
