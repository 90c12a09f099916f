//! A reload drops no request, keeps bindings and counts, and moves what has to move.

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use kindred::{simulate::worker::SimulatedWorkerConfig, wire::Role};
use support::{
    Kindred, chat,
    fleet::{self, Fleet},
    raw,
    reload::{addresses, ask, begin_request, reload},
};

const CHAT: &str = "/v1/chat/completions";

/// How many requests each worker of a role got.
fn counts(fleet: &Fleet, role: Role) -> Vec<usize> {
    fleet
        .of(role)
        .map(|worker| worker.requests().len())
        .collect()
}

fn endless(config: &mut SimulatedWorkerConfig) {
    config.engine.decode_interval = Duration::from_secs(600);
}

/// Starts a stream that ends only when its client leaves.
fn begin_stream(kindred: &Kindred, session: &str) -> TcpStream {
    let mut body = chat("hello");
    body["stream"] = true.into();
    body["max_tokens"] = 1000.into();
    let mut stream = raw::connect(kindred.edge());
    let headers = [("x-session-id", session)];
    stream
        .write_all(&raw::request(CHAT, &headers, body.to_string().as_bytes()))
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("data: {") {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "ended early: {seen}");
        seen += &String::from_utf8_lossy(&chunk[..read]);
    }
    stream
}

#[test]
fn instances_come_and_go() {
    let fleet = fleet::start(2, 2, |_| ());
    let (contexts, generations) = (
        addresses(&fleet, Role::Context),
        addresses(&fleet, Role::Generation),
    );
    let one = |number: usize| {
        fleet::yaml(
            &contexts[number..=number],
            &generations[number..=number],
            "",
        )
    };
    let kindred = Kindred::serve(&one(0));
    let ask_all = || {
        for session in 0..6 {
            let answer = ask(&kindred, &[("x-session-id", &format!("s{session}"))]);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    ask_all();
    for role in [Role::Context, Role::Generation] {
        assert_eq!(counts(&fleet, role), [6, 0]);
    }
    reload(&kindred, &one(1), "applied");
    ask_all();
    for role in [Role::Context, Role::Generation] {
        assert_eq!(
            counts(&fleet, role),
            [6, 6],
            "sessions of what is gone move"
        );
    }
    reload(&kindred, &fleet.yaml(""), "applied");
    ask_all();
    for role in [Role::Context, Role::Generation] {
        assert_eq!(
            counts(&fleet, role),
            [6, 12],
            "sessions stay where they are bound"
        );
    }
    for session in 10..16 {
        ask(&kindred, &[("x-session-id", &format!("s{session}"))]);
    }
    for role in [Role::Context, Role::Generation] {
        assert!(
            counts(&fleet, role)[0] > 6,
            "new sessions find the new instance"
        );
    }
    kindred.assert_idle();
}

#[test]
fn a_request_keeps_the_configuration_it_began_with() {
    let fleet = fleet::start(2, 2, |_| ());
    let (contexts, generations) = (
        addresses(&fleet, Role::Context),
        addresses(&fleet, Role::Generation),
    );
    let kindred = Kindred::serve(&fleet::yaml(&contexts[..1], &generations[..1], ""));
    let (mut begun, last) = begin_request(&kindred, &[]);
    reload(
        &kindred,
        &fleet::yaml(&contexts[1..], &generations[1..], ""),
        "applied",
    );
    assert_eq!(ask(&kindred, &[]).status, 200);
    begun.write_all(&[last]).unwrap();
    let answer = raw::read_answer(&mut begun);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(counts(&fleet, Role::Context), [1, 1]);
    assert_eq!(counts(&fleet, Role::Generation), [1, 1]);
    kindred.assert_idle();
}

#[test]
fn bindings_and_counts_survive() {
    let fleet = fleet::start(3, 3, endless);
    let kindred = Kindred::serve(&fleet.yaml(""));
    let sessions: Vec<String> = (0..6).map(|number| format!("s{number}")).collect();
    let first: Vec<_> = sessions.iter().map(|s| begin_stream(&kindred, s)).collect();
    let before = [Role::Context, Role::Generation].map(|role| counts(&fleet, role));
    let busy = || kindred.metric("kindred_in_flight", &["generation"]);
    assert_eq!(busy(), 6.0);
    for more in ["limits: {max_body: 1MiB}", "gen_tokids_ctxbytes: true", ""] {
        reload(&kindred, &fleet.yaml(more), "applied");
        assert_eq!(busy(), 6.0, "the streams still count");
        assert_eq!(
            kindred.metric("kindred_affinity_bindings", &["context"]),
            6.0
        );
    }
    let second: Vec<_> = sessions.iter().map(|s| begin_stream(&kindred, s)).collect();
    for (role, before) in [Role::Context, Role::Generation].into_iter().zip(before) {
        let doubled: Vec<_> = before.iter().map(|count| count * 2).collect();
        assert_eq!(
            counts(&fleet, role),
            doubled,
            "each session is where it was"
        );
    }
    drop((first, second));
    kindred.assert_idle();
}

#[test]
fn an_instance_that_goes_and_comes_back_never_counts_wrong() {
    let fleet = fleet::start(1, 2, endless);
    let context = addresses(&fleet, Role::Context);
    let generations = addresses(&fleet, Role::Generation);
    let both = fleet.yaml("");
    let kindred = Kindred::serve(&both);
    for _ in 0..3 {
        let streams: Vec<_> = (0..4)
            .map(|n| begin_stream(&kindred, &format!("s{n}")))
            .collect();
        reload(
            &kindred,
            &fleet::yaml(&context, &generations[1..], ""),
            "applied",
        );
        let busy = kindred.metric("kindred_in_flight", &["generation"]);
        assert_eq!(busy, 4.0, "what is removed is seen until it is idle");
        reload(&kindred, &both, "applied");
        drop(streams);
        kindred.assert_idle();
    }
    // A load that is off would draw all new sessions to one instance.
    let before = counts(&fleet, Role::Generation);
    let streams: Vec<_> = (10..14)
        .map(|n| begin_stream(&kindred, &format!("s{n}")))
        .collect();
    let after = counts(&fleet, Role::Generation);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 2]);
    drop(streams);
    kindred.assert_idle();
}

#[test]
fn no_request_is_lost_while_reloading() {
    let fleet = fleet::start(2, 2, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(""));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let askers: Vec<_> = (0..3)
            .map(|asker| {
                let (kindred, done) = (&kindred, &done);
                scope.spawn(move || {
                    let session = format!("s{asker}");
                    while !done.load(Ordering::Acquire) {
                        let answer = ask(kindred, &[("x-session-id", &session)]);
                        assert_eq!(answer.status, 200, "{}", answer.text());
                    }
                })
            })
            .collect();
        for round in 0..20 {
            let number = round % 2;
            let yaml = fleet::yaml(
                &addresses(&fleet, Role::Context)[number..=number],
                &addresses(&fleet, Role::Generation)[number..=number],
                "",
            );
            reload(&kindred, &yaml, "applied");
        }
        done.store(true, Ordering::Release);
        for asker in askers {
            asker.join().unwrap();
        }
    });
    kindred.assert_idle();
}
