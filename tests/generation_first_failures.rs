//! `schedule_style: generation_first`: either leg's end is the other's, and nothing is left behind.

mod support;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use kindred::{simulate::worker::recorder::Recorded, wire::Role};
use serde_json::{Value, json};
use support::{
    Kindred, chat, eventually,
    fleet::{self, Fleet, Worker},
    raw,
};

const CHAT: &str = "/v1/chat/completions";
const STYLE: &str = "schedule_style: generation_first\n";

fn asked(stream: bool) -> String {
    let mut body = chat("hello");
    body["stream"] = json!(stream);
    body.to_string()
}

fn one(fleet: &Fleet, role: Role) -> &Worker {
    fleet.of(role).next().unwrap()
}

fn id(request: &Recorded) -> u64 {
    let body: Value = serde_json::from_str(&request.body).unwrap();
    body["disaggregated_params"]["disagg_request_id"]
        .as_u64()
        .unwrap()
}

/// Waits until the worker has seen the only request of its role end without its answer.
fn assert_cancelled(fleet: &Fleet, role: Role) {
    eventually("the worker sees the edge leave", || {
        let requests = fleet.requests(role);
        assert!(requests.len() <= 1, "{requests:?}");
        requests.first()?.client_left.then_some(())
    });
}

fn address_of_nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

#[test]
fn a_refused_context_leg_cancels_the_generation_leg_and_is_told_with_its_own_status() {
    for (status, code) in [
        (400, "worker_refused"),
        (422, "worker_refused"),
        (503, "worker_refused"),
    ] {
        for stream in [false, true] {
            let fleet = fleet::start(1, 1, |_| {});
            let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}max_retries: 0")));
            one(&fleet, Role::Context).fault(1, &format!("status={status}"));
            let answer = raw::post(kindred.edge(), CHAT, &[], &asked(stream));
            assert_eq!(answer.status, status);
            let error = answer.json()["error"].take();
            assert_eq!(error["code"], code);
            assert_eq!(
                error["message"],
                format!("simulated fault: status {status}")
            );
            assert_cancelled(&fleet, Role::Generation);
            kindred.assert_idle();
            kindred.assert_metric("kindred_requests_total", &["fleet=\"context\""], 1.0);
        }
    }
}

#[test]
fn a_context_leg_is_repeated_with_its_generation_leg_under_a_new_id() {
    for fault in ["status=503", "reset"] {
        for stream in [false, true] {
            let fleet = fleet::start(2, 1, |_| {});
            let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}max_retries: 1")));
            one(&fleet, Role::Context).fault(1, fault);
            let answer = raw::post(kindred.edge(), CHAT, &[], &asked(stream));
            assert_eq!(answer.status, 200, "{fault}: {}", answer.text());
            assert_eq!(stream, answer.text().ends_with("data: [DONE]\n\n"));
            let contexts = fleet.requests(Role::Context);
            let [first, second] = [0, 1].map(|at| id(&contexts[at]));
            assert_eq!(contexts.len(), 2);
            assert_ne!(first, second);
            eventually("the first generation leg is cancelled", || {
                let requests = fleet.requests(Role::Generation);
                let (left, stayed): (Vec<_>, Vec<_>) =
                    requests.iter().partition(|request| request.client_left);
                // Of a leg that was cancelled at once, the worker may not have seen the body.
                assert!(
                    left.iter()
                        .all(|request| request.body.is_empty() || id(request) == first)
                );
                let stayed = stayed.first()?;
                (left.len() == 1 && stayed.finished && id(stayed) == second).then_some(())
            });
            // A reset of the connection that /server_info was read on costs no attempt.
            let retries = kindred.metric("kindred_leg_retries_total", &["fleet=\"context\""]);
            assert_eq!(retries, if fault == "reset" { 0.0 } else { 1.0 });
            assert_eq!(
                kindred.metric("kindred_leg_retries_total", &["fleet=\"generation\""]),
                0.0
            );
            kindred.assert_idle();
        }
    }
}

#[test]
fn a_refused_generation_leg_cancels_the_context_leg_and_is_not_repeated() {
    let fleet = fleet::start(1, 2, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}max_retries: 5")));
    one(&fleet, Role::Context).fault(1, "delay=1h");
    for worker in fleet.of(Role::Generation) {
        worker.fault(1, "status=422");
    }
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(true));
    assert_eq!(answer.status, 422);
    let message = answer.json()["error"]["message"].take();
    assert_eq!(message, "simulated fault: status 422");
    assert_eq!(fleet.requests(Role::Generation).len(), 1);
    assert_contexts_left(&fleet, 0);
    kindred.assert_idle();
    kindred.assert_metric("kindred_requests_total", &["fleet=\"generation\""], 1.0);
}

/// Waits until the worker has seen the edge leave all of its requests but so many.
fn assert_contexts_left(fleet: &Fleet, but: usize) {
    eventually("the context legs are cancelled, if they had begun", || {
        let requests = fleet.requests(Role::Context);
        let stayed = requests.iter().filter(|request| !request.client_left);
        (stayed.count() == but).then_some(())
    });
}

#[test]
fn a_generation_leg_that_may_be_repeated_is_repeated_elsewhere_with_its_context_leg() {
    for fault in ["status=503", "status=500", "status=429"] {
        for stream in [false, true] {
            let fleet = fleet::start(1, 2, |_| {});
            let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}max_retries: 2")));
            one(&fleet, Role::Context).fault(1, "delay=1h");
            let generations: Vec<_> = fleet.of(Role::Generation).collect();
            for worker in &generations {
                worker.fault(1, fault);
            }
            let answer = raw::post(kindred.edge(), CHAT, &[], &asked(stream));
            assert_eq!(answer.status, 200, "{fault}: {}", answer.text());
            let mut counts = [0, 1].map(|at| generations[at].requests().len());
            counts.sort_unstable();
            assert_eq!(counts, [1, 2], "{fault}: each move is to the other one");
            let mut ids: Vec<_> = fleet.requests(Role::Generation).iter().map(id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 3, "each pair has an id of its own");
            assert_contexts_left(&fleet, 1);
            let labels = ["fleet=\"generation\"", "reason=\"status\""];
            kindred.assert_metric("kindred_leg_retries_total", &labels, 2.0);
            kindred.assert_idle();
        }
    }
}

#[test]
fn a_generation_leg_that_gives_up_waiting_cancels_the_context_leg() {
    for (stream, status) in [(false, 400), (true, 502)] {
        let fleet = fleet::start(1, 1, |config| {
            config.transfer_timeout = Duration::from_millis(100)
        });
        let kindred = Kindred::serve(&fleet.yaml(STYLE));
        one(&fleet, Role::Context).fault(1, "delay=1h");
        let answer = raw::post(kindred.edge(), CHAT, &[], &asked(stream));
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_cancelled(&fleet, Role::Context);
        kindred.assert_idle();
    }
}

#[test]
fn a_json_answer_that_breaks_off_is_never_a_whole_one() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(STYLE));
    one(&fleet, Role::Generation).fault(1, "die-after=0");
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert!(serde_json::from_slice::<Value>(&answer.body).is_err() || answer.status != 200);
    kindred.assert_idle();
    kindred.assert_metric("kindred_requests_total", &[], 1.0);
    assert_eq!(
        kindred.metric("kindred_requests_total", &["outcome=\"ok\""]),
        0.0
    );
}

#[test]
fn a_client_that_leaves_before_the_answer_closes_both_legs() {
    for stream in [false, true] {
        let fleet = fleet::start(1, 1, |config| {
            config.transfer_timeout = Duration::from_secs(3600)
        });
        let kindred = Kindred::serve(&fleet.yaml(STYLE));
        one(&fleet, Role::Context).fault(1, "delay=1h");
        let mut client = raw::connect(kindred.edge());
        client
            .write_all(&raw::request(CHAT, &[], asked(stream).as_bytes()))
            .unwrap();
        eventually("both legs are in flight", || {
            let arrived = |role| {
                fleet
                    .requests(role)
                    .pop()
                    .is_some_and(|last| last.body_length > 0)
            };
            (arrived(Role::Context) && arrived(Role::Generation)).then_some(())
        });
        drop(client);
        assert_cancelled(&fleet, Role::Context);
        assert_cancelled(&fleet, Role::Generation);
        kindred.assert_idle();
        kindred.assert_metric(
            "kindred_requests_total",
            &["outcome=\"client_cancel\""],
            1.0,
        );
        assert_eq!(kindred.metric("kindred_leg_retries_total", &[]), 0.0);
    }
}

#[test]
fn a_client_that_leaves_a_silent_stream_closes_the_generation_leg() {
    let fleet = fleet::start(1, 1, |config| {
        if config.role == Role::Generation {
            config.engine.decode_interval = Duration::from_secs(3600);
        }
    });
    let kindred = Kindred::serve(&fleet.yaml(STYLE));
    let mut client = raw::connect(kindred.edge());
    client
        .write_all(&raw::request(CHAT, &[], asked(true).as_bytes()))
        .unwrap();
    assert!(client.read(&mut [0; 64]).unwrap() > 0);
    drop(client);
    assert_cancelled(&fleet, Role::Generation);
    kindred.assert_idle();
    kindred.assert_metric(
        "kindred_requests_total",
        &["outcome=\"client_cancel\""],
        1.0,
    );
}

#[test]
fn a_generation_instance_that_cannot_be_reached_is_passed_over() {
    let fleet = fleet::start(1, 1, |_| {});
    let (context, generation) = (
        one(&fleet, Role::Context).address,
        one(&fleet, Role::Generation).address,
    );
    let yaml = fleet::yaml(
        &[context],
        &[address_of_nobody(), generation],
        &format!("{STYLE}max_retries: 1"),
    );
    let kindred = Kindred::serve(&yaml);
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
    kindred.assert_metric("kindred_leg_retries_total", &["fleet=\"generation\""], 1.0);
    assert_eq!(fleet.requests(Role::Context).len(), 1);
    kindred.assert_idle();

    let yaml = fleet::yaml(
        &[context],
        &[address_of_nobody()],
        &format!("{STYLE}max_retries: 1"),
    );
    let kindred = Kindred::serve(&yaml);
    let answer = raw::post(kindred.edge(), CHAT, &[], &asked(false));
    assert_eq!(answer.status, 502);
    assert_eq!(
        fleet.requests(Role::Context).len(),
        1,
        "no context leg without a generation leg"
    );
    kindred.assert_idle();
}

#[test]
fn a_pooled_connection_that_died_unheard_is_replaced_with_both_legs_anew() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&format!("{STYLE}max_retries: 0")));
    let post = || raw::post(kindred.edge(), CHAT, &[], &asked(false)).status;
    assert_eq!(post(), 200);
    one(&fleet, Role::Generation).fault(1, "reset");
    assert_eq!(post(), 200);
    let generations = fleet.requests(Role::Generation);
    assert_eq!(generations.len(), 3);
    assert_ne!(id(&generations[1]), id(&generations[2]));
    kindred.assert_idle();
}

#[test]
fn a_context_instance_that_tells_no_endpoint_is_a_clear_502() {
    let fleet = fleet::start(1, 2, |_| {});
    let [wrong, generation] = [0, 1].map(|at| fleet.of(Role::Generation).nth(at).unwrap().address);
    for (context, code, words) in [
        (
            address_of_nobody(),
            "no_server_info",
            "no connection could be made",
        ),
        (wrong, "unusable_server_info", "ctx_info_endpoint"),
    ] {
        let yaml = fleet::yaml(&[context], &[generation], &format!("{STYLE}max_retries: 0"));
        let kindred = Kindred::serve(&yaml);
        let answer = raw::post(kindred.edge(), CHAT, &[], &asked(true));
        assert_eq!(answer.status, 502);
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], code);
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
        assert!(
            !error["message"]
                .as_str()
                .unwrap()
                .contains(&context.port().to_string())
        );
        kindred.assert_idle();
    }
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    // Another instance is asked where there is one.
    let good = one(&fleet, Role::Context).address;
    let yaml = fleet::yaml(
        &[wrong, good],
        &[generation],
        &format!("{STYLE}max_retries: 1"),
    );
    let kindred = Kindred::serve(&yaml);
    assert_eq!(
        raw::post(kindred.edge(), CHAT, &[], &asked(true)).status,
        200
    );
}
