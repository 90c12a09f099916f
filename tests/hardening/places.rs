//! How many connections there may be.

use std::{io::Write, net::TcpStream};

use super::*;
use crate::support::eventually;

fn hold(kindred: &Kindred, count: usize) -> Vec<TcpStream> {
    let held = (0..count).map(|_| raw::connect(kindred.edge())).collect();
    kindred.assert_metric("kindred_connections", &[], count as f64);
    held
}

fn turned_away(kindred: &Kindred) {
    let answer = raw::read_answer(&mut raw::connect(kindred.edge()));
    assert_refusal(&answer, 503, "too_many_connections", "one too many");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[test]
fn one_connection_too_many_is_503_and_a_place_comes_back() {
    let (_fleet, kindred) = start("limits: {max_connections: 3}\n");
    let held = hold(&kindred, 3);
    turned_away(&kindred);
    let bound = ["bound=\"all\""];
    kindred.assert_metric("kindred_connections_refused_total", &bound, 1.0);
    drop(held);
    kindred.assert_metric("kindred_connections", &[], 0.0);
    assert_eq!(raw::get(kindred.edge(), "/version").status, 200);
}

#[test]
fn one_address_may_be_bounded_and_a_reload_changes_that() {
    let (fleet, kindred) = start("limits: {max_connections_per_address: 2}\n");
    let _held = hold(&kindred, 2);
    turned_away(&kindred);
    let bound = ["bound=\"address\""];
    kindred.assert_metric("kindred_connections_refused_total", &bound, 1.0);
    support::reload::reload(&kindred, &fleet.yaml(""), "applied");
    assert_eq!(raw::get(kindred.edge(), "/version").status, 200);
}

#[test]
fn the_operators_port_has_bounds_of_its_own() {
    const MOST: usize = 64;
    let (_fleet, kindred) = start("timeouts: {read_header: 2s}\n");
    let admin = kindred.admin.unwrap();
    let mut held: Vec<_> = (0..MOST).map(|_| raw::connect(admin)).collect();
    let answer = eventually("there is no place", || {
        let answer = raw::get(admin, "/healthz");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "too_many_connections");
    // Who says nothing is closed, and half a head is answered.
    held[0].write_all(b"GET /heal").unwrap();
    assert_eq!(raw::read_answer(&mut held[0]).status, 408);
    for stream in &mut held[1..] {
        assert_eq!(raw::read_all(stream), b"");
    }
    drop(held);
    let bound = ["bound=\"operator\""];
    let refused = kindred.metric("kindred_connections_refused_total", &bound);
    assert!(refused >= 1.0);
    // None of it is a client's.
    kindred.assert_metric("kindred_connections", &[], 0.0);
    // An idle connection is kept as before.
    let mut kept = raw::connect(admin);
    for _ in 0..2 {
        kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        assert_eq!(raw::read_answer(&mut kept).status, 200);
        assert_eq!(raw::read_all(&mut raw::connect(admin)), b"");
    }
}

#[test]
fn connections_that_come_and_go_in_every_way_leave_nothing() {
    let (_fleet, kindred) = start("");
    for round in 0..300 {
        let mut stream = raw::connect(kindred.edge());
        let bytes: &[u8] = match round % 4 {
            0 => b"",
            1 => b"GARBAGE\r\n\r\n",
            2 => b"GET /version HTTP/1.1\r\nho",
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        };
        stream.write_all(bytes).unwrap();
    }
    kindred.assert_metric("kindred_connections", &[], 0.0);
    let descriptors = format!("/proc/{}/fd", kindred.pid());
    eventually("descriptors are closed", || {
        (std::fs::read_dir(&descriptors).unwrap().count() < 100).then_some(())
    });
}
