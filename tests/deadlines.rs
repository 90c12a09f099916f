//! How long a request may take until its answer begins, and that nothing is left behind then; and
//! clients that leave in a pause between two attempts.

mod support;

use std::{io::Write, time::Duration};

use support::{
    Kindred, chat, eventually, fleet,
    played::{Act, Played, answer, context_answer, generation_answer},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

fn asked(stream: bool) -> String {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    body.to_string()
}

fn edge(context: &Played, generation: &Played, more: &str) -> Kindred {
    let yaml = fleet::yaml(&[context.address], &[generation.address], more);
    Kindred::serve(&yaml)
}

fn assert_outcomes(kindred: &Kindred, fleet: &str, outcome: &str, times: f64) {
    let labels = [
        format!("fleet=\"{fleet}\""),
        format!("outcome=\"{outcome}\""),
    ];
    kindred.assert_metric("kindred_requests_total", &[&labels[0], &labels[1]], times);
}

fn silent() -> Played {
    Played::start(|_, _| Act::Silence)
}

fn good_context() -> Played {
    Played::start(|seen, _| Act::Answer(context_answer(seen)))
}

fn good_generation() -> Played {
    Played::start(|seen, _| Act::Answer(generation_answer(seen)))
}

#[test]
fn case_h15_the_whole_time_is_up_in_either_leg() {
    for (context, generation, fleet) in [
        (silent(), good_generation(), "context"),
        (good_context(), silent(), "generation"),
    ] {
        let kindred = edge(
            &context,
            &generation,
            "max_retries: 3\ntimeouts: {answer: 2s}",
        );
        for stream in [false, true] {
            let answer = raw::post(kindred.edge(), CHAT, &[], &asked(stream));
            assert_eq!(answer.status, 504, "{}", answer.text());
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "upstream_timeout");
            assert_eq!(error["message"], "No answer had begun after 2s.");
        }
        assert_outcomes(&kindred, fleet, "timeout", 2.0);
        let hung = if fleet == "context" {
            &context
        } else {
            &generation
        };
        assert_eq!(hung.count(), 2);
        eventually("the worker is left", || {
            (hung.is_left(0) && hung.is_left(1)).then_some(())
        });
        kindred.assert_idle();
    }
}

#[test]
fn the_whole_time_bounds_attempts_and_pauses_together() {
    let context = Played::start(|_, _| Act::Reset(Vec::new()));
    let generation = good_generation();
    let more = "max_retries: 1000000\n\
                timeouts: {answer: 500ms, retry_pause: 1ms, retry_pause_max: 1ms}";
    let kindred = edge(&context, &generation, more);
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert_eq!(answer.status, 504, "{}", answer.text());
    assert!(context.count() > 1);
    kindred.assert_idle();
    let requests = context.count();
    assert_eq!(raw::post(kindred.edge(), "/nowhere", &[], "").status, 404);
    assert_eq!(context.count(), requests, "nothing goes on");
}

#[test]
fn a_stream_that_has_begun_may_take_longer_than_that() {
    let context = good_context();
    let events: Vec<_> = (0..8).map(|_| chunk("data: {}\n\n")).collect();
    let last = [chunk("data: [DONE]\n\n"), "0\r\n\r\n".to_owned()].concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let parts: Vec<Vec<u8>> = [head.to_owned()]
        .into_iter()
        .chain(events)
        .chain([last])
        .map(String::into_bytes)
        .collect();
    let generation =
        Played::start(move |_, _| Act::Drip(parts.clone(), Duration::from_millis(300)));
    let kindred = edge(
        &context,
        &generation,
        "timeouts: {answer: 2500ms, first_byte: 2500ms}",
    );
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(true));
    assert_eq!(answer.status, 200);
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.text().matches("data: {}").count(), 8);
    assert_outcomes(&kindred, "generation", "ok", 1.0);
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn a_json_answer_must_be_whole_by_then() {
    let context = good_context();
    let whole = answer(
        "200 OK",
        "",
        &format!("{{\"choices\":[],\"pad\":\"{}\"}}", "x".repeat(100)),
    );
    let generation = Played::start(move |_, _| {
        let parts = whole.chunks(4).map(<[u8]>::to_vec).collect();
        Act::Drip(parts, Duration::from_millis(150))
    });
    let kindred = edge(&context, &generation, "timeouts: {answer: 2s}");
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert_eq!(answer.status, 504, "{}", answer.text());
    assert_outcomes(&kindred, "generation", "timeout", 1.0);
    eventually("the worker is left", || generation.is_left(0).then_some(()));
    kindred.assert_idle();
}

#[test]
fn the_silence_before_the_head_has_a_limit_of_its_own() {
    let generation = Played::start(|seen, _| {
        let parts = vec![Vec::new(), generation_answer(seen)];
        Act::Drip(parts, Duration::from_millis(400))
    });
    let kindred = edge(
        &good_context(),
        &generation,
        "timeouts: {silence: 100ms, first_byte: 60s}",
    );
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_client_that_leaves_in_a_pause_is_noticed_and_nothing_more_is_sent() {
    let pause = "max_retries: 5\ntimeouts: {retry_pause: 60s, retry_pause_max: 60s}";
    let failing = || Played::start(|_, _| Act::Reset(Vec::new()));
    let large = chat(&"words ".repeat(20_000)).to_string().into_bytes();
    for (context, generation, fleet) in [
        (failing(), good_generation(), "context"),
        (good_context(), failing(), "generation"),
    ] {
        let kindred = edge(&context, &generation, pause);
        let failed = if fleet == "context" {
            &context
        } else {
            &generation
        };
        for (number, request) in [
            raw::request(CHAT, &[], asked(false).as_bytes()),
            raw::request(CHAT, &[], asked(true).as_bytes()),
            raw::request(CHAT, &[], &large),
            raw::chunked_request(CHAT, &large, 50_000),
        ]
        .iter()
        .enumerate()
        {
            let mut client = raw::connect(kindred.edge());
            client.write_all(request).unwrap();
            let label = format!("fleet=\"{fleet}\"");
            let count = (number + 1) as f64;
            // The pause has begun.
            kindred.assert_metric("kindred_leg_retries_total", &[&label], count);
            drop(client);
            assert_outcomes(&kindred, fleet, "client_cancel", count);
            assert_eq!(failed.count(), number + 1);
        }
        kindred.assert_idle();
    }
}
