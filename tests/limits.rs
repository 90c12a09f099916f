//! What one client may take, from outside: each limit, what its refusal says, and that nothing stays
//! taken of requests that have ended in whatever way.

mod support;

use std::{io::Write, net::TcpStream};

use kindred::wire::Role;
use support::{
    Kindred, chat,
    clients::digest,
    eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

const CHAT: &str = "/v1/chat/completions";
const PARENT: &str = "X-Dynamo-Parent-Session-ID";

fn yaml(fleet: &Fleet, ada: &str, more: &str) -> String {
    let client = |name: &str, more: &str| {
        let digest = digest(name);
        format!("  - {{name: {name}, api_keys_sha256: ['{digest}'], subagents: declared{more}}}\n")
    };
    fleet.yaml(&format!(
        "internal_request_auth_key: internal-key-that-nobody-may-see\n\
         conversation_affinity_header_for_subagents: {PARENT}\n{more}\ngateway:\n  clients:\n{}{}",
        client("ada", &format!(", {ada}")),
        client("ben", "")
    ))
}

fn ask(kindred: &Kindred, client: &str, more: &[(&str, &str)], text: &str) -> Answer {
    let key = format!("Bearer {client}");
    let mut headers = vec![("authorization", key.as_str())];
    headers.extend(more);
    raw::post(kindred.edge(), CHAT, &headers, &chat(text).to_string())
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header);
    value.unwrap_or_else(|| panic!("{header}")).parse().unwrap()
}

/// Asserts a refusal in OpenAI's shape with a way forward.
fn assert_refused(answer: &Answer, words: &str) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert!(number(answer, "retry-after") >= 1);
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "rate_limit_error");
    assert!(
        error["message"].as_str().unwrap().contains(words),
        "{error}"
    );
}

fn refusals(kindred: &Kindred, limit: &str, count: f64) {
    let label = format!("limit=\"{limit}\"");
    kindred.assert_metric("kindred_limit_refusals_total", &[&label], count);
}

#[test]
fn case_h23_too_many_requests_are_refused_with_a_way_forward() {
    let fleet = fleet::start(1, 1, |_| {});
    // So slow that no request comes back while the test runs.
    let limits = "limits: {requests_per_second: 1, burst: 3}";
    let file = yaml(&fleet, limits, "");
    let kindred = Kindred::serve(&file);
    let mut answers = Vec::new();
    let refused = eventually("the burst is over", || {
        let answer = ask(&kindred, "ada", &[], "hi");
        if answer.status == 429 {
            return Some(answer);
        }
        answers.push(answer);
        None
    });
    assert!(answers.len() >= 3);
    for (answer, remaining) in answers.iter().zip([2, 1, 0]) {
        assert_eq!(answer.status, 200);
        assert_eq!(number(answer, "x-ratelimit-limit-requests"), 3);
        assert!(number(answer, "x-ratelimit-remaining-requests") >= remaining);
        assert!(answer.header("x-ratelimit-reset-requests").is_some());
    }
    assert_refused(&refused, "limit of 3");
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(number(&refused, "x-ratelimit-remaining-requests"), 0);
    refusals(&kindred, "requests_per_second", 1.0);
    // Nobody else is meant.
    let other = ask(&kindred, "ben", &[], "hi");
    assert_eq!(other.status, 200);
    assert_eq!(other.header("x-ratelimit-limit-requests"), None);
    let served = fleet.requests(Role::Context).len();
    assert_eq!(served, answers.len() + 1, "refusals reach no worker");
    kindred.assert_idle();
}

#[test]
fn prompts_are_estimated_and_then_made_good() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&yaml(&fleet, "limits: {prompt_tokens_per_minute: 600}", ""));
    let left = |answer: &Answer| number(answer, "x-ratelimit-remaining-tokens");
    let text = "word ".repeat(500);
    let first = ask(&kindred, "ada", &[], &text);
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(number(&first, "x-ratelimit-limit-tokens"), 600);
    assert!(left(&first) <= 100, "about 500 are taken: {}", left(&first));
    let counted = first.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    kindred.assert_idle();
    kindred.assert_metric("kindred_requests_total", &["outcome=\"ok\""], 1.0);
    let second = ask(&kindred, "ada", &[], "x");
    match counted.cmp(&600) {
        // What a worker has counted is what it costs.
        std::cmp::Ordering::Less => {
            assert_eq!(second.status, 200);
            assert!(
                left(&second) + 2 >= 600 - counted,
                "{counted} {}",
                left(&second)
            );
        }
        _ => assert_refused(&second, "limit of 600 a minute"),
    }
    let never = ask(&kindred, "ada", &[], &"word ".repeat(1000));
    assert_eq!(never.status, 400);
    assert_eq!(never.json()["error"]["code"], "prompt_above_limit");
    assert_eq!(never.header("retry-after"), None);
    assert_eq!(ask(&kindred, "ben", &[], &text).status, 200);
}

#[test]
fn a_prompt_that_no_worker_computed_costs_nothing() {
    let fleet = fleet::start(1, 1, |_| {});
    let more = "max_retries: 0";
    let kindred = Kindred::serve(&yaml(
        &fleet,
        "limits: {prompt_tokens_per_minute: 600}",
        more,
    ));
    let text = "word ".repeat(450);
    for round in 1..=4 {
        fleet
            .of(Role::Context)
            .next()
            .unwrap()
            .fault(1, "status=400");
        let answer = ask(&kindred, "ada", &[], &text);
        assert_eq!(answer.status, 400, "{}", answer.text());
        kindred.assert_metric("kindred_requests_total", &[], f64::from(round));
    }
    refusals(&kindred, "prompt_tokens_per_minute", 0.0);
}

#[test]
fn the_sub_agents_of_one_parent_are_bounded_and_their_places_come_back() {
    let fleet = fleet::start(1, 1, |_| {});
    let ada = "limits: {subagents_in_flight: 2}";
    let kindred = Kindred::serve(&yaml(&fleet, ada, ""));
    let worker = fleet.of(Role::Context).next().unwrap();
    worker.fault(3, "delay=1h");
    let begin = |session: &str, parent: &str| {
        let before = worker.requests().len();
        let mut stream = TcpStream::connect(kindred.edge()).unwrap();
        let headers = [
            ("authorization", "Bearer ada"),
            ("x-session-id", session),
            (PARENT, parent),
        ];
        let request = raw::request(CHAT, &headers, chat("hi").to_string().as_bytes());
        stream.write_all(&request).unwrap();
        eventually("it is at work", || {
            (worker.requests().len() > before).then_some(())
        });
        stream
    };
    let held = [begin("a", "p"), begin("b", "p")];
    let third = [("x-session-id", "c"), (PARENT, "p")];
    let refused = ask(&kindred, "ada", &third, "hi");
    assert_refused(&refused, "2 requests of sub-agents");
    assert_eq!(number(&refused, "x-ratelimit-limit-subagents"), 2);
    refusals(&kindred, "subagents_in_flight", 1.0);
    // The parent itself, another family, and another client with the same ids are not meant.
    let other = begin("d", "q");
    assert_eq!(
        ask(&kindred, "ada", &[("x-session-id", "p")], "hi").status,
        200
    );
    assert_eq!(ask(&kindred, "ben", &third, "hi").status, 200);
    // Whoever leaves gives its place back.
    drop(held);
    eventually("there is room", || {
        (ask(&kindred, "ada", &third, "hi").status == 200).then_some(())
    });
    drop(other);
    kindred.assert_idle();
}

#[test]
fn requests_at_once_are_refused_with_a_way_forward() {
    let fleet = fleet::start(1, 1, |_| {});
    let ada = "max_in_flight: 1, limits: {requests_per_second: 1, burst: 2}";
    let kindred = Kindred::serve(&yaml(&fleet, ada, ""));
    let worker = fleet.of(Role::Context).next().unwrap();
    worker.fault(1, "delay=1h");
    let mut held = TcpStream::connect(kindred.edge()).unwrap();
    let headers = [("authorization", "Bearer ada")];
    let request = raw::request(CHAT, &headers, chat("hi").to_string().as_bytes());
    held.write_all(&request).unwrap();
    eventually("it is at work", || {
        (worker.requests().len() == 1).then_some(())
    });
    for _ in 0..5 {
        let refused = ask(&kindred, "ada", &[], "hi");
        assert_refused(&refused, "1 requests in flight");
        assert_eq!(number(&refused, "x-ratelimit-limit-in-flight"), 1);
    }
    refusals(&kindred, "max_in_flight", 5.0);
    drop(held);
    kindred.assert_idle();
    // None of them was taken from the burst.
    assert_eq!(ask(&kindred, "ada", &[], "hi").status, 200);
}

#[test]
fn limits_survive_a_reload_and_change_with_it() {
    let fleet = fleet::start(1, 1, |_| {});
    let limits = |tokens: u32| format!("limits: {{prompt_tokens_per_minute: {tokens}}}");
    let kindred = Kindred::serve(&yaml(&fleet, &limits(100), ""));
    let text = "word ".repeat(80);
    assert_eq!(ask(&kindred, "ada", &[], &text).status, 200);
    assert_refused(&ask(&kindred, "ada", &[], &text), "limit of 100");
    support::reload::reload(
        &kindred,
        &yaml(&fleet, &limits(100), "max_retries: 2"),
        "applied",
    );
    assert_refused(&ask(&kindred, "ada", &[], &text), "limit of 100");
    support::reload::reload(&kindred, &yaml(&fleet, &limits(100_000), ""), "applied");
    assert_eq!(ask(&kindred, "ada", &[], &text).status, 200);
}
