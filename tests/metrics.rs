//! What an operator sees: every family, values that come back to zero, and a bounded page.

mod support;

use std::{
    io::Write,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use kindred::wire::Role;
use serde_json::json;
use support::{
    Kindred, eventually,
    exposition::{Sample, parse, series},
    fleet::{self, Fleet},
    raw,
};

const CHAT: &str = "/v1/chat/completions";

fn post(kindred: &Kindred, headers: &[(&str, &str)], body: &str) -> u16 {
    raw::post(kindred.edge(), CHAT, headers, body).status
}

fn page(kindred: &Kindred) -> String {
    let answer = kindred.admin("/metrics");
    assert_eq!(answer.status, 200);
    let content_type = answer.header("content-type");
    assert_eq!(
        content_type,
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    answer.text()
}

#[test]
fn the_page_has_every_family_and_its_syntax_is_sound() {
    let demo = Kindred::demo(&[]);
    let chat = support::chat("hello").to_string();
    assert_eq!(post(&demo, &[("x-session-id", "parent-1")], &chat), 200);
    let child = [
        ("x-session-id", "child-a"),
        ("X-Dynamo-Parent-Session-ID", "parent-1"),
    ];
    assert_eq!(post(&demo, &child, &chat), 200);
    assert_eq!(post(&demo, &[("x-trtllm-msgpack", "1")], "{"), 400);
    demo.assert_idle();
    // A refused request was in flight nowhere.
    demo.assert_metric("kindred_requests_total", &[], 3.0);
    let samples = parse(&page(&demo));
    let value = |name: &str, labels: &[(&str, &str)]| -> f64 {
        let fits = |sample: &&Sample| {
            let has = |(label, value): &(&str, &str)| {
                sample.labels.iter().any(|(l, v)| l == label && v == value)
            };
            sample.name == name && labels.iter().all(has)
        };
        let fitting: Vec<_> = samples.iter().filter(fits).collect();
        assert!(!fitting.is_empty(), "{name} {labels:?}");
        fitting.iter().map(|sample| sample.value).sum()
    };
    // Requests by route, fleet and outcome.
    let chat_route = ("route", "chat_completions");
    let good = [chat_route, ("fleet", "generation"), ("outcome", "ok")];
    assert_eq!(value("kindred_requests_total", &good), 2.0);
    let bad = [chat_route, ("fleet", "none"), ("outcome", "client_error")];
    assert_eq!(value("kindred_requests_total", &bad), 1.0);
    // Leg durations.
    for fleet in ["context", "generation"] {
        assert_eq!(
            value("kindred_leg_duration_seconds_count", &[("fleet", fleet)]),
            2.0
        );
        // In-flight by instance.
        for number in 0..2 {
            let instance = format!("{fleet}-{number}");
            let labels = [("fleet", fleet), ("instance", &instance)];
            assert_eq!(value("kindred_in_flight", &labels), 0.0);
        }
        // Affinity decisions by fleet.
        for (decision, expected) in [
            ("bound", 1.0),
            ("new", 1.0),
            ("overflow", 0.0),
            ("failover", 0.0),
        ] {
            let expected = match (fleet, decision) {
                ("generation", "bound") => 0.0,
                ("generation", "new") => 2.0,
                _ => expected,
            };
            let labels = [("fleet", fleet), ("decision", decision)];
            assert_eq!(
                value("kindred_affinity_decisions_total", &labels),
                expected,
                "{labels:?}"
            );
        }
    }
    // Pruned headers by name.
    assert_eq!(
        value(
            "kindred_pruned_headers_total",
            &[("header", "x-trtllm-msgpack")]
        ),
        1.0
    );
    // Verification outcomes: the child's context leg, and two hand-overs.
    let verified = |check| [("check", check), ("outcome", "verified")];
    assert_eq!(
        value("kindred_verifications_total", &verified("affinity")),
        1.0
    );
    assert_eq!(
        value("kindred_verifications_total", &verified("kv_transfer")),
        2.0
    );
    // ADP placements by rank.
    for rank in ["0", "1", "2", "3"] {
        let labels = [
            ("worker", "context-0"),
            ("rank", rank),
            ("reason", "sticky"),
        ];
        assert!(value("kindred_adp_placements_total", &labels) <= 1.0);
    }
    let sticky = [("worker", "context-0"), ("reason", "sticky")];
    assert_eq!(value("kindred_adp_placements_total", &sticky), 1.0);
    assert_eq!(
        value("kindred_parent_claims_total", &[("outcome", "authorised")]),
        1.0
    );
}

fn slow_fleet() -> Fleet {
    fleet::start(2, 2, |config| {
        config.engine.prefill_per_token = Duration::from_millis(1);
        config.engine.decode_interval = Duration::from_millis(2);
    })
}

#[test]
fn case_h01_in_flight_comes_back_to_zero_after_any_mix_of_two_hundred_requests() {
    let fleet = slow_fleet();
    let kindred = Kindred::serve(&fleet.yaml(""));
    for worker in &fleet.workers {
        for fault in [
            "reset",
            "status=503",
            "status=400",
            "invalid-json",
            "die-after=2",
        ] {
            worker.fault(4, fault);
        }
    }
    thread::scope(|threads| {
        for number in 0..200 {
            let kindred = &kindred;
            threads.spawn(move || {
                let stream = number % 2 == 0;
                let words = "alder ".repeat(20 + number % 30);
                let body = json!({"model": "m", "stream": stream, "max_tokens": 16,
                                  "messages": [{"role": "user", "content": words}]});
                let session = format!("s-{}", number % 20);
                let bytes = raw::request(
                    CHAT,
                    &[("x-session-id", &session)],
                    body.to_string().as_bytes(),
                );
                let mut client = raw::connect(kindred.edge());
                match number % 5 {
                    // Leaves in the middle of its own body.
                    0 => drop(client.write_all(&bytes[..bytes.len() - 5])),
                    // Leaves at once.
                    1 => drop(client.write_all(&bytes)),
                    // Leaves when the first byte comes.
                    2 => {
                        client.write_all(&bytes).unwrap();
                        let _ = std::io::Read::read(&mut client, &mut [0]);
                    }
                    _ => {
                        client.write_all(&bytes).unwrap();
                        raw::read_answer(&mut client);
                    }
                }
            });
        }
    });
    kindred.assert_idle();
    // Every request is counted once.
    kindred.assert_metric("kindred_requests_total", &[], 200.0);
    let left = kindred.metric("kindred_requests_total", &[r#"outcome="client_cancel""#]);
    assert!(left > 0.0, "some left");
    assert!(kindred.metric("kindred_requests_total", &[r#"outcome="ok""#]) > 0.0);
    // And the fleet is as good as new.
    for worker in &fleet.workers {
        worker.fault(0, "");
    }
    let chat = support::chat("hello").to_string();
    for _ in 0..4 {
        assert_eq!(post(&kindred, &[], &chat), 200);
    }
    kindred.assert_idle();
}

#[test]
fn case_h13_label_sets_stay_flat_over_two_thousand_sessions() {
    let fleet = fleet::start(1, 1, |_| {});
    let more = "internal_request_auth_key: 0123456789abcdef0123456789abcdef\n\
                conversation_affinity_header_for_subagents: X-Parent";
    let kindred = Kindred::serve(&fleet.yaml(more));
    let send = |number: usize| {
        let session = format!("unique-session-{number}");
        let parent = format!("unique-parent-{}", number / 3);
        let odd = format!("x-trtllm-unique-{number}");
        let mut headers = vec![("x-session-id", session.as_str()), (odd.as_str(), "1")];
        if number.is_multiple_of(2) {
            headers.push(("x-parent", parent.as_str()));
        }
        let model = format!("unique-model-{number}");
        let body = json!({"model": model, "max_tokens": 1, "user": session,
                          "messages": [{"role": "user", "content": "final: x"}]});
        assert_eq!(post(&kindred, &headers, &body.to_string()), 200);
        if number.is_multiple_of(10) {
            let path = format!("/unique-path-{number}?unique={number}");
            assert_eq!(raw::get(kindred.edge(), &path).status, 404);
        }
    };
    send(0);
    kindred.assert_idle();
    let before = page(&kindred);
    thread::scope(|threads| {
        for worker in 0..8 {
            threads.spawn(move || (0..250).for_each(|turn| send(1 + worker * 250 + turn)));
        }
    });
    kindred.assert_idle();
    let after = page(&kindred);
    assert_eq!(series(&before), series(&after));
    assert!(
        !after.contains("unique"),
        "nothing of a client's is a label"
    );
    assert!(after.len() < before.len() + before.len() / 10);
    let bindings = kindred.metric("kindred_affinity_bindings", &[r#"fleet="context""#]);
    assert!(
        bindings > 1000.0,
        "{bindings} bindings are counted, not listed"
    );
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
}

#[test]
fn the_operators_port_answers_what_it_serves_and_nothing_else() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let admin = kindred.admin.unwrap();
    for path in ["/metrics", "/healthz", "/readyz", "/config"] {
        let got = raw::get(admin, path);
        assert_eq!(got.status, 200, "{path}");
        assert!(!got.body.is_empty());
        let head = format!("HEAD {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
        let mut stream = raw::connect(admin);
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "no body: {answer}");
        let posted = raw::post(admin, path, &[], "{}");
        assert_eq!(posted.status, 405, "{path}");
        assert!(
            posted
                .header("allow")
                .is_some_and(|allow| allow.contains("GET")),
            "{posted:?}"
        );
    }
    for path in [
        "/",
        "/nowhere",
        "/metrics/",
        "/config/",
        "/%2e%2e/metrics",
        "/v1/chat/completions",
    ] {
        assert_eq!(raw::get(admin, path).status, 404, "{path}");
    }
    assert_eq!(
        raw::get(admin, "/metrics?name=x").status,
        200,
        "a query changes nothing"
    );
    // Neither port serves the other's paths.
    for path in ["/metrics", "/readyz", "/config"] {
        assert_eq!(raw::get(kindred.edge(), path).status, 404, "{path}");
    }
    // The port stays up after a request that is none.
    let nonsense = raw::connect(admin).write_all(b"\0\r\n\r\n");
    assert!(nonsense.is_ok());
    assert_eq!(raw::get(admin, "/healthz").status, 200);
}

#[test]
fn case_h22_the_operators_port_answers_while_two_hundred_streams_run() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = Duration::from_millis(200);
    });
    let kindred = Kindred::serve(&fleet.yaml(""));
    let body = json!({"model": "m", "stream": true, "ignore_eos": true, "max_tokens": 100_000,
                      "messages": [{"role": "user", "content": "on and on"}]});
    let bytes = raw::request(CHAT, &[], body.to_string().as_bytes());
    let streams: Vec<_> = (0..200)
        .map(|_| {
            let mut client = raw::connect(kindred.edge());
            client.write_all(&bytes).unwrap();
            client
        })
        .collect();
    // All streams run.
    kindred.assert_metric("kindred_in_flight", &[r#"fleet="generation""#], 200.0);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(kindred.admin(path).status, 200);
    }
    drop(streams);
    kindred.assert_idle();
}

#[test]
fn case_h22_the_operators_port_answers_while_the_edge_is_busy_on_every_thread() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("limits: {max_body: 8MiB}"));
    // Reading and weighing such a prompt keeps a thread busy for a while.
    let prompt = "word ".repeat(1 << 20);
    let body = support::chat(&prompt).to_string();
    let done = AtomicBool::new(false);
    let begun = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..6 {
            threads.spawn(|| {
                while !done.load(Relaxed) {
                    begun.fetch_add(1, Relaxed);
                    // So long a prompt is refused, but by the worker.
                    assert_eq!(post(&kindred, &[], &body), 400);
                }
            });
        }
        for round in 1..=8 {
            eventually("more requests come", || {
                (begun.load(Relaxed) >= round).then_some(())
            });
            for path in ["/healthz", "/readyz", "/metrics", "/instances"] {
                assert_eq!(kindred.admin(path).status, 200, "{path}");
            }
        }
        done.store(true, Relaxed);
    });
    kindred.assert_idle();
}
