//! `http.half_close` (case H16): a client that shuts down its writing side has left, or waits for its
//! answer, as the operator says. In either case a client that resets its connection has left.

mod support;

use std::{io::Write, net::Shutdown, time::Duration};

use kindred::wire::Role;
use socket2::SockRef;
use support::{
    Kindred,
    asking::{CHAT, assert_counted, begin, body},
    chat, eventually,
    fleet::{self, Fleet},
    h2c, raw,
};

const ROLES: [Role; 2] = [Role::Context, Role::Generation];

fn start(half_close: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!("http: {{half_close: {half_close}}}")));
    (fleet, kindred)
}

fn fault(fleet: &Fleet, role: Role, fault: &str) {
    fleet.of(role).next().unwrap().fault(1, fault);
}

fn wait_for_arrival(fleet: &Fleet, role: Role, number: usize) {
    eventually("the worker has the request", || {
        let requests = fleet.requests(role);
        (requests.len() == number && requests.last()?.body_length > 0).then_some(())
    });
}

fn assert_cancelled(fleet: &Fleet, kindred: &Kindred, role: Role, times: usize) {
    eventually("the worker is left", || {
        fleet.requests(role).last()?.client_left.then_some(())
    });
    assert_counted(kindred, "client_cancel", times);
    if role == Role::Context {
        assert!(fleet.requests(Role::Generation).is_empty());
    }
}

#[test]
fn case_h16_a_half_closed_client_has_left_by_default() {
    for half_close in ["cancel", "null"] {
        for role in ROLES {
            let (fleet, kindred) = start(half_close);
            for (number, stream) in [false, true].into_iter().enumerate() {
                fault(&fleet, role, "delay=1h");
                let client = begin(&kindred, stream);
                wait_for_arrival(&fleet, role, number + 1);
                client.shutdown(Shutdown::Write).unwrap();
                assert_cancelled(&fleet, &kindred, role, number + 1);
            }
        }
    }
}

#[test]
fn case_h16_a_half_closed_client_is_served_where_that_is_wanted() {
    for role in ROLES {
        let (fleet, kindred) = start("serve");
        for stream in [false, true] {
            // Long enough for the connection to be looked at more than once.
            fault(&fleet, role, "delay=1500ms");
            let mut client = begin(&kindred, stream);
            client.shutdown(Shutdown::Write).unwrap();
            let answer = raw::read_answer(&mut client);
            assert_eq!(answer.status, 200, "{}", answer.text());
            if stream {
                assert!(answer.text().ends_with("data: [DONE]\n\n"));
            } else {
                assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
            }
        }
        assert_counted(&kindred, "ok", 2);
    }
}

/// `printf … | nc`, with more than one request.
#[test]
fn case_h16_two_requests_in_one_piece_are_both_served() {
    let (_fleet, kindred) = start("serve");
    let mut client = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], body(false).as_bytes());
    let request = String::from_utf8(request).unwrap();
    let request = request.replace("connection: close\r\n", "");
    client.write_all(request.repeat(2).as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let bytes = raw::read_all(&mut client);
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    assert_counted(&kindred, "ok", 2);
}

#[test]
fn case_h16_in_the_middle_of_a_stream_as_well() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = Duration::from_millis(500);
    });
    let kindred = Kindred::serve(&fleet.yaml("http: {half_close: serve}"));
    let mut client = begin(&kindred, true);
    raw::read_until(&mut client, "data: {");
    client.shutdown(Shutdown::Write).unwrap();
    let rest = raw::read_until(&mut client, "data: [DONE]\n\n");
    assert!(rest.contains("finish_reason\":\"length"), "{rest}");
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn case_h16_a_reset_is_noticed_either_way() {
    for half_close in ["cancel", "serve"] {
        for role in ROLES {
            let (fleet, kindred) = start(half_close);
            for (number, stream) in [false, true].into_iter().enumerate() {
                fault(&fleet, role, "delay=1h");
                let client = begin(&kindred, stream);
                wait_for_arrival(&fleet, role, number + 1);
                let socket = SockRef::from(&client);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                drop(client);
                assert_cancelled(&fleet, &kindred, role, number + 1);
            }
        }
    }
}

/// A connection that is closed for good looks like a half-closed one until something is written.
#[test]
fn case_h16_a_served_client_that_leaves_a_stream_is_noticed_with_its_next_bytes() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = Duration::from_millis(20);
    });
    let kindred = Kindred::serve(&fleet.yaml("http: {half_close: serve}"));
    let mut body = chat("hello");
    body["stream"] = true.into();
    body["max_tokens"] = 1_000_000.into();
    body["ignore_eos"] = true.into();
    let mut client = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], body.to_string().as_bytes());
    client.write_all(&request).unwrap();
    raw::read_until(&mut client, "data: {");
    drop(client);
    assert_cancelled(&fleet, &kindred, Role::Generation, 1);
}

/// So it is with the heartbeat's, while nothing comes of the worker.
#[test]
fn case_h16_or_with_the_next_comment() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("http: {half_close: serve, heartbeat: 100ms}"));
    fault(&fleet, Role::Context, "delay=1h");
    let client = begin(&kindred, true);
    wait_for_arrival(&fleet, Role::Context, 1);
    drop(client);
    assert_cancelled(&fleet, &kindred, Role::Context, 1);
}

#[test]
fn case_h16_http2_says_by_itself_that_a_request_is_whole_or_left() {
    for half_close in ["cancel", "serve"] {
        let (fleet, kindred) = start(half_close);
        fault(&fleet, Role::Context, "delay=1h");
        let mut client = h2c::open(kindred.edge(), CHAT, &[], body(true).as_bytes(), &[]);
        wait_for_arrival(&fleet, Role::Context, 1);
        h2c::reset(&mut client);
        assert_cancelled(&fleet, &kindred, Role::Context, 1);
    }
}
