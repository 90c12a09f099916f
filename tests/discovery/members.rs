//! From announcements to instances, over the store that the edge hosts.

use std::{io::Write, net::SocketAddr};

use kindred::wire::Role;
use serde_json::json;

use super::{CHAT, announce, chat, hosting, info, members, set, value, withdraw};
use crate::support::{
    self, Kindred, eventually, fleet, process::WorkerProcess, raw, reload::reload,
};

fn addresses(fleet: &fleet::Fleet, role: Role) -> Vec<SocketAddr> {
    fleet.of(role).map(|worker| worker.address).collect()
}

/// Announces every worker of a fleet and waits for it.
fn announce_all(kindred: &Kindred, fleet: &fleet::Fleet) {
    for role in [Role::Context, Role::Generation] {
        for (number, address) in addresses(fleet, role).into_iter().enumerate() {
            announce(
                kindred,
                &format!("{}-{number}", role.label()),
                role,
                address,
            );
        }
        members(kindred, role, &addresses(fleet, role));
    }
}

#[test]
fn announced_workers_serve_and_the_edge_is_ready_only_with_them() {
    let fleet = fleet::start(2, 1, |_| {});
    let kindred = Kindred::serve(&hosting("minimal_instances: {context_servers: 2}", ""));
    let ready = || {
        let health = raw::get(kindred.edge(), "/health");
        assert!(health.body.is_empty());
        let ready = info(&kindred)["is_ready"] == true;
        assert_eq!(health.status, if ready { 200 } else { 503 });
        assert_eq!(kindred.admin("/readyz").status, health.status);
        ready
    };
    assert!(!ready());
    let refused = chat(&kindred, "s");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    let contexts = addresses(&fleet, Role::Context);
    announce(
        &kindred,
        "g",
        Role::Generation,
        addresses(&fleet, Role::Generation)[0],
    );
    announce(&kindred, "c0", Role::Context, contexts[0]);
    members(&kindred, Role::Context, &contexts[..1]);
    assert!(!ready(), "two are needed");
    announce(&kindred, "c1", Role::Context, contexts[1]);
    members(&kindred, Role::Context, &contexts);
    members(
        &kindred,
        Role::Generation,
        &addresses(&fleet, Role::Generation),
    );
    assert!(ready());
    assert_eq!(chat(&kindred, "s").status, 200);
    let told = info(&kindred);
    assert_eq!(
        told["minimal_instances"],
        json!({"context_servers": 2, "generation_servers": 1})
    );
    let workers = &told["current_workers"]["context_servers"];
    assert_eq!(workers.as_array().map(Vec::len), Some(2));
    assert_eq!(workers[0]["role"], 0);
    assert_eq!(workers[0]["host"], "127.0.0.1");
    assert_eq!(withdraw(&kindred, "c1"), 200);
    members(&kindred, Role::Context, &contexts[..1]);
    assert!(!ready());
    assert_eq!(
        chat(&kindred, "s").status,
        200,
        "what can be served is served"
    );
    kindred.assert_idle();
}

#[test]
fn a_worker_that_announces_itself_before_it_serves_fails_no_request() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let mut late = WorkerProcess::start(Role::Context, &[]);
    late.kill();
    announce(&kindred, "late", Role::Context, late.address);
    for session in 0..20 {
        let answer = chat(&kindred, &format!("s{session}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    members(&kindred, Role::Context, &addresses(&fleet, Role::Context));
    late.restart();
    let mut all = addresses(&fleet, Role::Context);
    all.push(late.address);
    members(&kindred, Role::Context, &all);
}

#[test]
fn a_worker_that_stops_its_heartbeats_is_gone_and_comes_back() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let more = fleet::start(1, 0, |_| {});
    let address = addresses(&more, Role::Context)[0];
    let both = [addresses(&fleet, Role::Context)[0], address];
    for _ in 0..2 {
        let answer = set(&kindred, "brief", &value(Role::Context, address), 1.5);
        assert_eq!(answer.status, 200, "{}", answer.text());
        members(&kindred, Role::Context, &both);
        members(&kindred, Role::Context, &both[..1]);
    }
}

/// A request that is in flight until the connection is dropped.
fn open(kindred: &Kindred, fleet: &fleet::Fleet) -> std::net::TcpStream {
    let worker = fleet.of(Role::Context).next().unwrap();
    worker.fault(1, "delay=1h");
    let before = worker.requests().len();
    let mut stream = raw::connect(kindred.edge());
    let body = support::chat("hello").to_string();
    stream
        .write_all(&raw::request(CHAT, &[], body.as_bytes()))
        .unwrap();
    eventually("the worker has the request", || {
        (worker.requests().len() > before).then_some(())
    });
    stream
}

#[test]
fn a_worker_that_announces_itself_anew_keeps_its_place_and_its_count() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let address = addresses(&fleet, Role::Context)[0];
    let in_flight = || kindred.metric("kindred_in_flight", &["context"]);
    let stream = open(&kindred, &fleet);
    assert_eq!(in_flight(), 1.0);
    // It was started anew: a new id at the same address, and the old one goes late.
    announce(&kindred, "new", Role::Context, address);
    assert_eq!(withdraw(&kindred, "context-0"), 200);
    assert_eq!(chat(&kindred, "s").status, 200);
    members(&kindred, Role::Context, &[address]);
    assert_eq!(in_flight(), 1.0, "the request is still counted");
    // It goes and comes back while the request goes on.
    assert_eq!(withdraw(&kindred, "new"), 200);
    members(&kindred, Role::Context, &[]);
    announce(&kindred, "again", Role::Context, address);
    members(&kindred, Role::Context, &[address]);
    assert_eq!(in_flight(), 1.0);
    drop(stream);
    kindred.assert_idle();
    assert_eq!(chat(&kindred, "s").status, 200);
    kindred.assert_idle();
}

#[test]
fn announcements_that_are_none_change_nothing() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let address = addresses(&fleet, Role::Context)[0];
    let other_role = value(Role::Context, address).replace("\"role\":0", "\"role\":4");
    for (number, text) in ["", "nonsense", "{}", &other_role].into_iter().enumerate() {
        assert_eq!(
            set(&kindred, &format!("odd-{number}"), text, 60.0).status,
            200
        );
    }
    // Another cluster's worker is not this one's.
    let body = json!({
        "key": "/trtllm-disagg/other/workers/w", "value": value(Role::Context, "127.0.0.1:9".parse().unwrap()),
    });
    assert_eq!(
        raw::post(kindred.edge(), "/set", &[], &body.to_string()).status,
        200
    );
    assert_eq!(chat(&kindred, "s").status, 200);
    let told = info(&kindred);
    assert_eq!(
        told["current_workers"]["context_servers"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let why = "neither CONTEXT (0) nor GENERATION (1)";
    eventually("the log says why", || {
        kindred.log().contains(why).then_some(())
    });
}

#[test]
fn members_and_bindings_survive_a_reload() {
    let fleet = fleet::start(3, 2, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let place = |session: &str| {
        let answer = chat(&kindred, session);
        assert_eq!(answer.status, 200, "{}", answer.text());
        ["x-kindred-context", "x-kindred-generation"]
            .map(|name| answer.header(name).unwrap().to_owned())
    };
    let sessions = ["a", "b", "c", "d", "e"];
    let before = sessions.map(place);
    let more = "minimal_instances: {context_servers: 4}";
    reload(&kindred, &hosting(more, "max_retries: 3"), "applied");
    assert_eq!(info(&kindred)["is_ready"], false);
    assert_eq!(sessions.map(place), before);
    members(&kindred, Role::Context, &addresses(&fleet, Role::Context));
    reload(&kindred, &hosting("", ""), "applied");
    assert_eq!(raw::get(kindred.edge(), "/health").status, 200);
    // Changes go on to be followed.
    assert_eq!(withdraw(&kindred, "context-0"), 200);
    members(
        &kindred,
        Role::Context,
        &addresses(&fleet, Role::Context)[1..],
    );
}

#[test]
fn an_edge_changes_between_announced_and_listed_workers() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&hosting("", ""));
    announce_all(&kindred, &fleet);
    let other = fleet::start(1, 1, |_| {});
    reload(
        &kindred,
        &other.yaml("telemetry: {debug_headers: true}"),
        "applied",
    );
    members(&kindred, Role::Context, &addresses(&other, Role::Context));
    assert_eq!(chat(&kindred, "s").status, 200);
    assert_eq!(other.requests(Role::Context).len(), 1);
    reload(&kindred, &hosting("", ""), "applied");
    members(&kindred, Role::Context, &addresses(&fleet, Role::Context));
    assert_eq!(chat(&kindred, "s").status, 200);
    assert_eq!(fleet.requests(Role::Context).len(), 1);
}
