//! An event stream goes to the client as it comes, byte for byte and without delay, and one that does
//! not come to its end says so.

mod support;

use std::{io::Read, time::Duration};

use kindred::wire::Role;
use support::{
    Kindred,
    asking::{CHAT, ask, assert_counted, before, begin},
    chat, fleet, raw,
    scripted::{self, Fed, Scripted},
};

const DONE: &[u8] = b"data: [DONE]\n\n";

#[test]
fn every_byte_goes_out_before_the_next_one_comes() {
    let worker = Fed::start();
    let (_fleet, kindred) = before(worker.address, "");
    let mut client = begin(&kindred, true);
    worker.begin();
    let head = raw::read_until(&mut client, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // An event in parts: within a line, within a character, between CR and LF.
    for part in [
        &b"da"[..],
        b"ta: {\"text\":\"caf\xc3",
        b"\xa9\"}\r",
        b"\n",
        b"\r\n",
        DONE,
    ] {
        worker.chunk(part);
        let mut expected = format!("{:X}\r\n", part.len()).into_bytes();
        expected.extend_from_slice(part);
        expected.extend_from_slice(b"\r\n");
        let mut seen = vec![0; expected.len()];
        client.read_exact(&mut seen).unwrap();
        assert_eq!(seen, expected);
    }
    worker.end();
    assert_eq!(raw::read_until(&mut client, "\r\n\r\n"), "0\r\n\r\n");
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn large_events_pass_unchanged() {
    let text = "x\u{e9}".repeat(400_000);
    let stream = format!("data: {{\"text\":\"{text}\"}}\n\ndata: [DONE]\n\n").into_bytes();
    let sent = stream.clone();
    let worker = Scripted::start(move |_| {
        let parts: Vec<&[u8]> = sent.chunks(7919).collect();
        scripted::events(&parts)
    });
    let (_fleet, kindred) = before(worker.address, "");
    let answer = ask(&kindred, true);
    assert_eq!(answer.status, 200);
    assert!(answer.body == stream, "{} bytes", answer.body.len());
    assert_counted(&kindred, "ok", 1);
}

/// The last event has the usage, and is cut wherever it can be.
#[test]
fn case_h10_a_usage_event_that_is_cut_anywhere_arrives_whole() {
    for end in ["\n", "\r\n", "\r"] {
        let usage =
            format!("data: {{\"a\":\"\u{e9}\",\"usage\":{{\"total_tokens\":7}}}}{end}{end}");
        let stream = format!("data: {{}}{end}{end}{usage}data: [DONE]{end}{end}").into_bytes();
        let cut_at = |at| {
            let (one, two) = stream.split_at(at);
            scripted::events(&[one, two])
        };
        let worker = Scripted::one_after_the_other((1..stream.len()).map(cut_at).collect());
        let (_fleet, kindred) = before(worker.address, "");
        for cut in 1..stream.len() {
            assert!(ask(&kindred, true).body == stream, "cut at {cut}");
        }
        assert_counted(&kindred, "ok", stream.len() - 1);
    }
}

#[test]
fn a_stream_in_which_the_worker_tells_an_error_is_no_good_one() {
    let told: &[u8] = b"data: {\"error\":{\"message\":\"engine\",\"type\":\"server_error\"}}\n\n";
    let worker = Scripted::start(move |_| scripted::events(&[b"data: {}\n\n", told, DONE]));
    let (_fleet, kindred) = before(worker.address, "");
    let answer = ask(&kindred, true);
    assert_eq!(answer.body, [b"data: {}\n\n", told, DONE].concat());
    assert_counted(&kindred, "upstream_error", 1);
}

/// A client that reads events would take JSON for a short stream, and the other way round.
#[test]
fn an_answer_of_the_other_kind_is_a_502() {
    let fleet = fleet::start(1, 0, |_| {});
    for stream in [true, false] {
        let worker = Scripted::start(move |_| {
            if stream {
                scripted::json(r#"{"choices":[]}"#)
            } else {
                scripted::events(&[b"data: {}\n\n", DONE])
            }
        });
        let yaml = fleet::yaml(&[fleet.workers[0].address], &[worker.address], "");
        let kindred = Kindred::serve(&yaml);
        let answer = ask(&kindred, stream);
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "unusable_answer");
        assert_counted(&kindred, "upstream_error", 1);
    }
}

/// Longer than any deadline: only silence ends a stream.
#[test]
fn a_stream_may_take_longer_than_every_deadline() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = Duration::from_millis(50);
    });
    let more = "timeouts: {connect: 2s, read_body: 2s, context: 2s, silence: 3s, write: 2s, \
                idle_upstream: 2s}";
    let kindred = Kindred::serve(&fleet.yaml(more));
    let mut body = chat("hello");
    body["stream"] = true.into();
    body["max_tokens"] = 80.into();
    body["ignore_eos"] = true.into();
    let answer = raw::post(kindred.edge(), CHAT, &[], &body.to_string());
    assert!(answer.body.ends_with(DONE), "{}", answer.text());
    assert_counted(&kindred, "ok", 1);
}

#[test]
fn a_refusal_of_a_stream_keeps_its_status_and_words() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("max_retries: 0"));
    for (role, status) in [
        (Role::Context, 400),
        (Role::Generation, 422),
        (Role::Generation, 503),
    ] {
        let worker = fleet.of(role).next().unwrap();
        worker.fault(1, &format!("status={status}"));
        let answer = ask(&kindred, true);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let message = format!("simulated fault: status {status}");
        assert_eq!(answer.json()["error"]["message"], message);
    }
    kindred.assert_idle();
}
