//! A client that leaves is noticed within about a second, wherever its request is: the worker that
//! works for it is left as well, nothing new is sent, everything counted in flight comes back, and
//! the request is counted as the client's own cancellation.

mod support;

use std::{io::Write, time::Duration};

use kindred::wire::Role;
use support::{
    Kindred, eventually, fleet, h2c,
    leaving::{CHAT, FAST, KIB, SLOW, Scene, body, framings, whole_framings},
    raw,
};

#[test]
fn while_it_sends_its_body() {
    let mut scene = Scene::new(FAST, FAST);
    let large = body(200 * KIB, false);
    let requests = [
        raw::request(CHAT, &[], large.as_bytes()),
        raw::chunked_request(CHAT, large.as_bytes(), 16 * KIB),
    ];
    let held = |scene: &Scene| scene.kindred.metric("kindred_body_budget_bytes", &[]);
    for request in &requests {
        for sent in [200, 70 * KIB, 150 * KIB] {
            let client = scene.client(&request[..sent]);
            eventually("the edge reads it", || (held(&scene) > 0.0).then_some(()));
            drop(client);
            scene.left += 1;
            let kindred = &scene.kindred;
            kindred.assert_metric("kindred_body_budget_bytes", &[], 0.0);
        }
    }
    scene.assert_only_cancellations();
    assert!(scene.fleet.requests(Role::Context).is_empty());
}

#[test]
fn case_h02_in_the_context_leg() {
    let mut scene = Scene::new(SLOW, FAST);
    for stream in [false, true] {
        scene.leave_each(Role::Context, framings(stream));
    }
    scene.assert_only_cancellations();
    scene.assert_no_generation_leg();
}

#[test]
fn case_h02_before_the_first_byte_of_the_generation_leg() {
    let mut scene = Scene::new(FAST, FAST);
    let requests = [whole_framings(false), whole_framings(true)].concat();
    let generation = scene.fleet.of(Role::Generation).next().unwrap();
    generation.fault(requests.len() as u32, "delay=1h");
    scene.leave_each(Role::Generation, requests);
    scene.assert_only_cancellations();
}

/// Bytes after the request are the next one's, and hide from a read that the client has left.
#[test]
fn after_further_bytes_in_either_leg() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let mut scene = Scene::new(prefill, decode);
        for stream in [false, true] {
            for more in ["\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
                let (what, request) = framings(stream).swap_remove(0);
                let mut client = scene.client(&request);
                scene.wait_for_arrival(role);
                if stream && role == Role::Generation {
                    raw::read_until(&mut client, "data: {");
                }
                client.write_all(more.as_bytes()).unwrap();
                scene.leave(client, role, what);
            }
        }
        scene.assert_only_cancellations();
        if role == Role::Context {
            scene.assert_no_generation_leg();
        }
    }
}

#[test]
fn together_with_the_next_request_in_one_piece() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let mut scene = Scene::new(prefill, decode);
        for stream in [false, true] {
            let request = raw::request(CHAT, &[], body(0, stream).as_bytes());
            let client = scene.client(&request.repeat(2));
            scene.wait_for_arrival(role);
            scene.leave(client, role, "two requests");
        }
        scene.assert_only_cancellations();
    }
}

#[test]
fn after_its_body_was_left_without_an_end_for_the_generation_leg() {
    let mut scene = Scene::new(FAST, FAST);
    let (_, unfinished) = framings(true).pop().unwrap();
    let client = scene.client(&unfinished);
    eventually("the prefill is done", || {
        let requests = scene.fleet.requests(Role::Context);
        requests.last()?.finished.then_some(())
    });
    drop(client);
    scene.left += 1;
    scene.assert_only_cancellations();
    scene.assert_no_generation_leg();
}

#[test]
fn between_two_attempts_of_the_context_leg() {
    const ATTEMPTS: u32 = 50;
    let mut scene = Scene::with(&format!("max_retries: {ATTEMPTS}"), |_| {});
    let worker = scene.fleet.of(Role::Context).next().unwrap();
    worker.fault(ATTEMPTS + 1, "status=503");
    let client = scene.client(&raw::request(CHAT, &[], body(0, true).as_bytes()));
    // The pauses grow, so that there is one now.
    eventually("the fourth attempt is refused", || {
        let requests = scene.fleet.requests(Role::Context);
        requests.get(3)?.status.map(drop)
    });
    drop(client);
    scene.left += 1;
    let label = ["outcome=\"client_cancel\""];
    let kindred = &scene.kindred;
    kindred.assert_metric("kindred_requests_total", &label, 1.0);
    kindred.assert_idle();
    let attempts = scene.fleet.requests(Role::Context).len();
    assert!(attempts <= ATTEMPTS as usize, "{attempts} attempts");
    scene.assert_no_generation_leg();
}

#[test]
fn in_the_middle_of_a_stream_that_goes_on_or_is_silent() {
    for decode in [Duration::from_millis(20), SLOW] {
        let mut scene = Scene::new(FAST, decode);
        for (what, request) in whole_framings(true) {
            let mut client = scene.client(&request);
            raw::read_until(&mut client, "data: {");
            scene.leave(client, Role::Generation, what);
        }
        scene.assert_only_cancellations();
    }
}

#[test]
fn while_its_whole_answer_is_made() {
    let mut scene = Scene::new(FAST, SLOW);
    scene.leave_each(Role::Generation, whole_framings(false));
    scene.assert_only_cancellations();
}

#[test]
fn in_either_leg_in_flight_at_once() {
    let more = "schedule_style: generation_first";
    let mut scene = Scene::with(more, |config| config.engine.prefill_per_token = SLOW);
    for stream in [false, true] {
        for (what, request) in whole_framings(stream) {
            let client = scene.client(&request);
            scene.wait_for_arrival(Role::Context);
            scene.wait_for_arrival(Role::Generation);
            scene.leave(client, Role::Context, what);
            eventually("so does the generation worker", || {
                let requests = scene.fleet.requests(Role::Generation);
                requests.last()?.client_left.then_some(())
            });
        }
    }
    scene.assert_only_cancellations();
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_in_either_leg_with_other_requests_on_the_connection() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let mut scene = Scene::new(prefill, decode);
        let client = reqwest::Client::builder()
            .http2_prior_knowledge()
            .build()
            .unwrap();
        let url = scene.kindred.url(CHAT);
        let post = |body: String| client.post(&url).body(body).send();
        let staying = tokio::spawn(post(body(0, false)));
        scene.wait_for_arrival(role);
        // It is the first of those that are counted as they leave.
        scene.left += 1;
        for (size, stream) in [(0, false), (0, true), (200 * KIB, false), (200 * KIB, true)] {
            let leaving = tokio::spawn(post(body(size, stream)));
            scene.wait_for_arrival(role);
            leaving.abort();
            // A stream that has begun is the task's result.
            let what = format!("{role:?}, {size} bytes, stream {stream}");
            scene.leave(leaving, role, &what);
        }
        let requests = scene.fleet.requests(role);
        assert!(!requests[0].client_left, "the other one goes on");
        scene.kindred.assert_metric("kindred_in_flight", &[], 1.0);
        staying.abort();
        drop(staying);
        scene.assert_only_cancellations();
        if role == Role::Context {
            scene.assert_no_generation_leg();
        }
    }
}

#[test]
fn over_http2_with_its_whole_connection() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let mut scene = Scene::new(prefill, decode);
        for stream in [false, true] {
            let body = body(0, stream);
            let client = h2c::open(scene.kindred.edge(), CHAT, &[], body.as_bytes(), &[]);
            scene.wait_for_arrival(role);
            scene.leave(client, role, "the connection");
        }
        scene.assert_only_cancellations();
    }
}

/// Through worker filters: the engine behind them is left too, and its rank is free again.
#[test]
fn behind_worker_filters() {
    for (prefill, decode, role) in [(SLOW, FAST, Role::Context), (FAST, SLOW, Role::Generation)] {
        let fleet = fleet::start(1, 1, |config| {
            config.engine.prefill_per_token = prefill;
            config.engine.decode_interval = decode;
            config.engine.ranks = 2;
        });
        let filter = |name: &str, role| {
            let worker = fleet.of(role).next().unwrap().address;
            format!(
                "- {{name: {name}, listen: '127.0.0.1:0', worker: '{worker}', server_role: {name}, \
                 enable_attention_dp: true, tensor_parallel_size: 2, max_batch_size: 4}}\n"
            )
        };
        let filters = Kindred::serve(&format!(
            "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n{}{}",
            filter("context", Role::Context),
            filter("generation", Role::Generation)
        ));
        let addresses: Vec<_> = filters
            .filters
            .iter()
            .map(|(_, address)| *address)
            .collect();
        let kindred = Kindred::serve(&fleet::yaml(&addresses[..1], &addresses[1..], ""));
        let mut scene = Scene::of(fleet, kindred);
        for stream in [false, true] {
            let requests = match role {
                Role::Generation => whole_framings(stream),
                _ => framings(stream),
            };
            for (what, request) in requests {
                let client = scene.client(&request);
                scene.wait_for_arrival(role);
                filters.assert_metric("kindred_rank_in_flight", &[role.label()], 1.0);
                scene.leave(client, role, what);
            }
        }
        scene.assert_only_cancellations();
        filters.assert_idle();
    }
}
