//! Announcements in a real etcd.

use std::net::SocketAddr;

use kindred::wire::Role;

use super::{PREFIX, chat, cluster, members, value};
use crate::support::{Kindred, etcd::Etcd, eventually, fleet, reload::reload};

fn addresses(fleet: &fleet::Fleet, role: Role) -> Vec<SocketAddr> {
    fleet.of(role).map(|worker| worker.address).collect()
}

fn announce(etcd: &Etcd, fleet: &fleet::Fleet) {
    for role in [Role::Context, Role::Generation] {
        for (number, address) in addresses(fleet, role).into_iter().enumerate() {
            let key = format!("{PREFIX}{}-{number}", role.label());
            etcd.put(&key, &value(role, address));
        }
    }
}

fn yaml(etcd: &Etcd, more: &str) -> String {
    cluster(&format!("cluster_uri: 'etcd://{}'", etcd.address), more)
}

#[test]
fn workers_come_and_go_as_etcd_has_them() {
    let etcd = Etcd::start();
    let fleet = fleet::start(2, 1, |_| {});
    announce(&etcd, &fleet);
    let kindred = Kindred::serve(&yaml(&etcd, ""));
    let contexts = addresses(&fleet, Role::Context);
    members(&kindred, Role::Context, &contexts);
    members(
        &kindred,
        Role::Generation,
        &addresses(&fleet, Role::Generation),
    );
    assert_eq!(chat(&kindred, "s").status, 200);
    etcd.delete(&format!("{PREFIX}context-0"));
    members(&kindred, Role::Context, &contexts[1..]);
    etcd.put(
        &format!("{PREFIX}again"),
        &value(Role::Context, contexts[0]),
    );
    members(&kindred, Role::Context, &contexts);
    etcd.put(
        "/elsewhere",
        &value(Role::Context, "127.0.0.1:9".parse().unwrap()),
    );
    assert_eq!(chat(&kindred, "s").status, 200);
}

#[test]
fn a_worker_whose_lease_ends_is_gone() {
    let etcd = Etcd::start();
    let fleet = fleet::start(1, 1, |_| {});
    announce(&etcd, &fleet);
    let kindred = Kindred::serve(&yaml(&etcd, ""));
    let more = fleet::start(1, 0, |_| {});
    let brief = addresses(&more, Role::Context)[0];
    etcd.put_for(&format!("{PREFIX}brief"), &value(Role::Context, brief), 2);
    let first = addresses(&fleet, Role::Context)[0];
    members(&kindred, Role::Context, &[first, brief]);
    members(&kindred, Role::Context, &[first]);
}

#[test]
fn workers_stay_while_etcd_is_away_and_changes_are_seen_when_it_is_back() {
    let mut etcd = Etcd::start();
    let fleet = fleet::start(2, 1, |_| {});
    announce(&etcd, &fleet);
    let kindred = Kindred::serve(&yaml(&etcd, ""));
    let contexts = addresses(&fleet, Role::Context);
    members(&kindred, Role::Context, &contexts);
    etcd.kill();
    eventually("it is noticed", || {
        kindred
            .log()
            .contains("the workers known last stay")
            .then_some(())
    });
    for session in 0..10 {
        assert_eq!(chat(&kindred, &format!("s{session}")).status, 200);
    }
    // A reload while it is away changes nothing about that.
    reload(&kindred, &yaml(&etcd, "max_retries: 2"), "applied");
    members(&kindred, Role::Context, &contexts);
    assert_eq!(chat(&kindred, "s0").status, 200);
    etcd.restart();
    etcd.delete(&format!("{PREFIX}context-1"));
    etcd.compact();
    members(&kindred, Role::Context, &contexts[..1]);
    etcd.put(
        &format!("{PREFIX}again"),
        &value(Role::Context, contexts[1]),
    );
    members(&kindred, Role::Context, &contexts);
    kindred.assert_idle();
}

#[test]
fn an_etcd_that_comes_later_is_found() {
    let mut etcd = Etcd::start();
    etcd.kill();
    let kindred = Kindred::serve(&yaml(&etcd, ""));
    assert_eq!(chat(&kindred, "s").status, 503);
    let fleet = fleet::start(1, 1, |_| {});
    etcd.restart();
    announce(&etcd, &fleet);
    members(&kindred, Role::Context, &addresses(&fleet, Role::Context));
    members(
        &kindred,
        Role::Generation,
        &addresses(&fleet, Role::Generation),
    );
    assert_eq!(chat(&kindred, "s").status, 200);
}
