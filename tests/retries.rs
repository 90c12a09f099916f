//! Which id an attempt carries: a context retry is a new attempt, a generation retry is not
//! (specification section 4.8).

mod support;

use std::{collections::HashSet, net::SocketAddr};

use kindred::{server::listeners::FreePorts, simulate::worker::recorder::Recorded, wire::Role};
use support::{
    Kindred, PATIENCE,
    fleet::{self, Fleet},
    raw::{self, Answer},
    reload::reload,
    seen::{handover_is_signed, request_id, signed_parent},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
const PARENT: &str = "X-Dynamo-Parent-Session-ID";

fn settings() -> String {
    format!(
        "internal_request_auth_key: {KEY}\nconversation_affinity_header_for_subagents: {PARENT}\n\
         subagent_affinity_scope: both\nmax_retries: 1"
    )
}

fn ask(kindred: &Kindred) -> Answer {
    let headers = [("x-session-id", "child-a"), (PARENT, "parent-1")];
    let chat = support::chat("hello").to_string();
    raw::post(kindred.edge(), "/v1/chat/completions", &headers, &chat)
}

/// Asserts that both context attempts were requests of their own and that generation got the id of
/// the one that answered.
fn assert_second_attempt_counts(attempts: &[Recorded], generation: &[Recorded]) {
    let [first, second] = attempts else {
        panic!("two attempts: {attempts:?}");
    };
    assert_ne!(request_id(first), request_id(second));
    for attempt in attempts {
        let parent = signed_parent(attempt, KEY, Role::Context);
        assert_eq!(parent.as_deref(), Some("parent-1"));
    }
    let [generation] = generation else {
        panic!("one generation request: {generation:?}");
    };
    assert_eq!(request_id(generation), request_id(second));
    let parent = signed_parent(generation, KEY, Role::Generation);
    assert_eq!(parent.as_deref(), Some("parent-1"));
    assert!(handover_is_signed(generation, KEY));
}

fn context_requests_since(fleet: &Fleet, known: usize) -> Vec<Recorded> {
    fleet.requests(Role::Context).split_off(known)
}

#[test]
fn case_h07_a_context_retry_after_a_reset_has_an_id_and_signatures_of_its_own() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&settings()));
    fleet.workers[0].fault(1, "reset");
    let answer = ask(&kindred);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_second_attempt_counts(
        &fleet.requests(Role::Context),
        &fleet.requests(Role::Generation),
    );
    kindred.assert_idle();
}

#[test]
fn case_h07_so_does_one_on_another_instance() {
    let fleet = fleet::start(2, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&settings()));
    for worker in fleet.of(Role::Context) {
        worker.fault(1, "reset");
    }
    // Both reset their first request: the one attempt after the first meets the other one.
    let answer = ask(&kindred);
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(
        fleet
            .of(Role::Context)
            .all(|worker| worker.requests().len() == 1)
    );
    let ids: HashSet<u64> = fleet
        .requests(Role::Context)
        .iter()
        .map(request_id)
        .collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    kindred.assert_idle();
}

#[test]
fn case_h07_a_pooled_connection_that_is_reset_under_a_request_is_no_exception() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&settings()));
    assert_eq!(ask(&kindred).status, 200);
    // The connection is pooled now; the worker takes the request in and resets it.
    fleet.workers[0].fault(1, "reset");
    let answer = ask(&kindred);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let generation = fleet.requests(Role::Generation).split_off(1);
    assert_second_attempt_counts(&context_requests_since(&fleet, 1), &generation);
    kindred.assert_idle();
}

#[test]
fn a_context_worker_that_answers_503_once_is_asked_again_with_a_new_id() {
    for status in [503, 500, 429, 408] {
        let fleet = fleet::start(1, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(&settings()));
        fleet.workers[0].fault(1, &format!("status={status}"));
        let answer = ask(&kindred);
        assert_eq!(answer.status, 200, "{status}: {}", answer.text());
        let generation = fleet.requests(Role::Generation);
        assert_second_attempt_counts(&fleet.requests(Role::Context), &generation);
    }
}

fn decisions(kindred: &Kindred, decision: &str) -> f64 {
    let labels = [r#"fleet="context""#, &format!(r#"decision="{decision}""#)];
    kindred.metric("kindred_affinity_decisions_total", &labels)
}

#[test]
fn a_family_comes_back_to_an_instance_that_failed_once() {
    // The first reset is of a pooled connection, which is replaced without a retry.
    for (fault, count) in [("status=503", 1), ("status=429", 1), ("reset", 2)] {
        let fleet = fleet::start(2, 1, |_| {});
        let kindred = Kindred::serve(&fleet.yaml(&settings()));
        assert_eq!(ask(&kindred).status, 200);
        let contexts: Vec<_> = fleet.of(Role::Context).collect();
        let home = contexts
            .iter()
            .position(|worker| worker.requests().len() == 1)
            .unwrap();
        let served = || [home, 1 - home].map(|number| contexts[number].requests().len());
        contexts[home].fault(count, fault);
        assert_eq!(ask(&kindred).status, 200, "{fault}");
        let failed = 1 + count as usize;
        assert_eq!(served(), [failed, 1], "{fault}: the retry went elsewhere");
        assert_eq!(ask(&kindred).status, 200);
        assert_eq!(served(), [failed + 1, 1], "{fault}: the family is back");
        assert_eq!(decisions(&kindred, "overflow"), 1.0, "{fault}");
        assert_eq!(decisions(&kindred, "failover"), 0.0, "{fault}");
        kindred.assert_idle();
    }
}

#[test]
fn a_family_leaves_an_instance_that_cannot_be_reached() {
    let fleet = fleet::start(1, 1, |_| {});
    let (dead, _held) = dead();
    let contexts = [dead, fleet.workers[0].address];
    let yaml = fleet::yaml(&contexts, &[fleet.workers[1].address], &settings());
    let kindred = Kindred::serve(&yaml);
    for _ in 0..2 {
        assert_eq!(ask(&kindred).status, 200);
    }
    assert_eq!(decisions(&kindred, "failover"), 1.0);
    assert_eq!(decisions(&kindred, "bound"), 1.0);
    assert_eq!(decisions(&kindred, "overflow"), 0.0);
}

/// A configuration whose generation workers are at these places.
fn with_generations(fleet: &Fleet, urls: &[&str], more: &str) -> String {
    format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
         context_servers: {{num_instances: 1, urls: ['{}'], router: {{type: conversation}}}}\n\
         generation_servers: {{num_instances: {}, urls: ['{}'], router: {{type: conversation}}}}\n\
         {more}\n",
        fleet.of(Role::Context).next().unwrap().address,
        urls.len(),
        urls.join("', '"),
    )
}

#[test]
fn a_generation_worker_whose_name_is_unknown_is_passed_over() {
    const UNKNOWN: &str = "nosuchhost.invalid:1";
    let fleet = fleet::start(1, 1, |_| {});
    let address = fleet.workers[1].address.to_string();
    let kindred = Kindred::serve(&with_generations(&fleet, &[UNKNOWN, &address], &settings()));
    let answer = ask(&kindred);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let generation = [r#"fleet="generation""#];
    kindred.assert_metric("kindred_leg_retries_total", &generation, 1.0);
    kindred.assert_idle();

    let kindred = Kindred::serve(&with_generations(&fleet, &[UNKNOWN], &settings()));
    let answer = ask(&kindred);
    assert_eq!(answer.status, 502, "{}", answer.text());
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("could not be resolved"), "{message}");
    assert!(!message.contains("nosuchhost"), "{message}");
    kindred.assert_idle();
}

#[test]
fn more_retries_after_a_reload_are_more_retries() {
    let fleet = fleet::start(1, 0, |_| {});
    let mut held = FreePorts::default();
    let dead: Vec<_> = (0..3).map(|_| held.pick().unwrap()).collect();
    let contexts = [fleet.workers[0].address];
    let yaml = |retries: u32| {
        let settings = settings().replace("max_retries: 1", &format!("max_retries: {retries}"));
        fleet::yaml(&contexts, &dead, &settings)
    };
    let kindred = Kindred::serve(&yaml(0));
    let retries = || kindred.metric("kindred_leg_retries_total", &[r#"fleet="generation""#]);
    assert_eq!(ask(&kindred).status, 502);
    assert_eq!(retries(), 0.0);
    reload(&kindred, &yaml(9), "applied");
    assert_eq!(ask(&kindred).status, 502);
    assert_eq!(retries(), 9.0);
    kindred.assert_idle();
}

#[test]
fn a_context_workers_400_is_final() {
    let fleet = fleet::start(2, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&settings()));
    for worker in fleet.of(Role::Context) {
        worker.fault(1, "status=400");
    }
    let answer = ask(&kindred);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(
        answer.json()["error"]["message"],
        "simulated fault: status 400"
    );
    assert_eq!(fleet.requests(Role::Context).len(), 1);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    kindred.assert_idle();
}

/// An address on which nobody listens; it stays taken for as long as the second value lives.
fn dead() -> (SocketAddr, FreePorts) {
    let mut held = FreePorts::default();
    let address = held.pick().unwrap();
    (address, held)
}

#[test]
fn a_generation_leg_that_moves_to_another_instance_keeps_its_id() {
    let fleet = fleet::start(1, 1, |_| {});
    let (dead, _held) = dead();
    let contexts = [fleet.workers[0].address];
    let generations = [dead, fleet.workers[1].address];
    let yaml = fleet::yaml(&contexts, &generations, &settings());
    let kindred = Kindred::serve(&yaml);
    let answer = ask(&kindred);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let retries = kindred.metric("kindred_leg_retries_total", &[r#"fleet="generation""#]);
    assert_eq!(retries, 1.0, "the dead instance was tried first");
    let [context] = &fleet.requests(Role::Context)[..] else {
        panic!("one context request");
    };
    let [generation] = &fleet.requests(Role::Generation)[..] else {
        panic!("one generation request");
    };
    assert_eq!(request_id(context), request_id(generation));
    assert!(handover_is_signed(generation, KEY));
    kindred.assert_idle();
}

#[test]
fn case_h11_a_generation_request_on_a_pooled_connection_that_dies_keeps_its_id() {
    let fleet = fleet::start(1, 1, |config| config.keep_alive = 10 * PATIENCE);
    let settings = settings() + "\ntimeouts: {idle_upstream: 60s}";
    let kindred = Kindred::serve(&fleet.yaml(&settings));
    assert_eq!(ask(&kindred).status, 200);
    kindred.assert_idle();
    fleet.workers[1].fault(1, "reset");
    let answer = ask(&kindred);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ids: Vec<u64> = fleet
        .requests(Role::Generation)
        .iter()
        .map(request_id)
        .collect();
    let context = fleet
        .requests(Role::Context)
        .iter()
        .map(request_id)
        .collect::<Vec<_>>();
    assert_eq!(ids, [context[0], context[1], context[1]]);
    kindred.assert_idle();
}

#[test]
fn retries_end_and_the_client_is_told_in_time() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&settings()));
    fleet.workers[0].fault(100, "reset");
    let started = std::time::Instant::now();
    let answer = ask(&kindred);
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(started.elapsed() < PATIENCE);
    assert_eq!(fleet.requests(Role::Context).len(), 2, "max_retries: 1");
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    let error = &answer.json()["error"];
    assert!(error["message"].is_string() && error["type"].is_string());
    assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    kindred.assert_idle();
}
