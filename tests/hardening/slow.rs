//! Heads and bodies that come drop by drop, or never.

use std::io::Write;

use super::*;

const SHORT: &str = "timeouts: {read_header: 300ms}\n";

#[test]
fn a_head_that_does_not_end_is_408() {
    let (fleet, kindred) = start(SHORT);
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a").unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_refusal(&answer, 408, "request_timeout", "half a head");
    kindred.assert_metric("kindred_heads_refused_total", &["reason=\"slow\""], 1.0);
    kindred.assert_metric("kindred_connections", &[], 0.0);
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn dripping_does_not_prolong_a_head() {
    let (_fleet, kindred) = start(SHORT);
    let mut stream = raw::connect(kindred.edge());
    let mut dripper = stream.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        let mut dripped = dripper.write_all(b"GET /version HTTP/1.1\r\n");
        // Ends when the connection does.
        while dripped.is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
            dripped = dripper.write_all(b"x");
        }
    });
    let answer = raw::read_answer(&mut stream);
    assert_refusal(&answer, 408, "request_timeout", "drips");
    drop(stream);
    drip.join().unwrap();
}

#[test]
fn a_connection_that_says_nothing_is_closed_without_a_word() {
    let (_fleet, kindred) = start(SHORT);
    let mut stream = raw::connect(kindred.edge());
    assert_eq!(raw::read_all(&mut stream), b"");
    kindred.assert_metric("kindred_heads_refused_total", &["reason=\"slow\""], 1.0);
}

#[test]
fn the_time_of_a_further_head_begins_with_its_first_byte() {
    let (_fleet, kindred) = start(SHORT);
    let mut stream = raw::connect(kindred.edge());
    let request = b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n";
    for _ in 0..2 {
        stream.write_all(request).unwrap();
        assert_eq!(raw::read_answer(&mut stream).status, 200);
        // Longer than a head may take: an idle connection has a time of its own.
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    stream.write_all(b"GET /ver").unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_refusal(&answer, 408, "request_timeout", "the third head");
}

#[test]
fn a_body_below_the_rate_is_408_long_before_its_time() {
    let (fleet, kindred) = start("limits: {min_body_rate: 1MiB}\ntimeouts: {read_body: 1h}\n");
    let mut stream = raw::connect(kindred.edge());
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{{");
    stream.write_all(head.as_bytes()).unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(
        answer.text().contains("bytes a second"),
        "{}",
        answer.text()
    );
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn worker_filters_wait_no_longer_than_the_edge() {
    let (fleet, _kindred, address) = filter(SHORT);
    let mut stream = raw::connect(address);
    stream.write_all(b"POST /").unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_refusal(&answer, 408, "request_timeout", "a filter");
    assert_nothing_was_sent_on(&fleet);
}

#[test]
fn a_reload_changes_the_time() {
    let (fleet, kindred) = start("timeouts: {read_header: 1h}\n");
    support::reload::reload(&kindred, &fleet.yaml(SHORT), "applied");
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(b"GET").unwrap();
    assert_eq!(raw::read_answer(&mut stream).status, 408);
}
