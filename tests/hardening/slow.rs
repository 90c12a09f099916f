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
    dripper.write_all(b"GET /version HTTP/1.1\r\n").unwrap();
    let answered = std::thread::scope(|scope| {
        let reading = scope.spawn(|| raw::read_answer(&mut stream));
        // A question at the operator's port lies between one drop and the next.
        while !reading.is_finished() {
            kindred.admin("/healthz");
            let _ = dripper.write_all(b"x");
        }
        reading.join().unwrap()
    });
    assert_refusal(&answered, 408, "request_timeout", "drips");
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
        // Another connection, which begins now, waits longer than a head may take: an idle one has
        // a time of its own.
        assert_eq!(raw::read_all(&mut raw::connect(kindred.edge())), b"");
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

/// Of a large body without a length the end is read only while the rest of it is forwarded.
#[test]
fn the_late_end_of_a_large_body_keeps_the_rate_too() {
    let more = "limits: {min_body_rate: 1MiB}\ntimeouts: {read_body: 1h}\n";
    let (_fleet, kindred) = start(more);
    let (_behind, filters, filter) = filter(more);
    let mut body = support::chat(&"long ".repeat(20_000)).to_string();
    body.push(' ');
    let mut request = raw::chunked_request(CHAT, body.as_bytes(), 1000);
    request.truncate(request.len() - b"0\r\n\r\n".len());
    let clients = [kindred.edge(), filter].map(|address| {
        let mut stream = raw::connect(address);
        stream.write_all(&request).unwrap();
        stream
    });
    for mut stream in clients {
        let answer = raw::read_answer(&mut stream);
        assert_eq!(answer.status, 408, "{}", answer.text());
        assert!(
            answer.text().contains("bytes a second"),
            "{}",
            answer.text()
        );
    }
    kindred.assert_idle();
    filters.assert_idle();
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
