//! Which ADP rank a request runs on.

use std::time::Duration;

use kindred::{
    simulate::worker::SimulatedWorkerConfig,
    wire::{
        Role,
        headers::{AFFINITY_AUTH, AFFINITY_ID},
    },
};
use serde_json::Value;

use crate::support::raw;
use crate::{CHAT, Filtered, Held, KEY, context_body, sign, told_rank, whole_body};

pub fn adp(ranks: u32, policy: &str, more: &str) -> String {
    format!(
        ", enable_attention_dp: true, tensor_parallel_size: {ranks}{more}, attention_dp_config: \
         {{kv_cache_routing_conversation_affinity: true, kv_cache_routing_new_conv_placement: {policy}}}"
    )
}

/// A worker whose answers of one token come at once, and whose longer answers never end.
pub fn endless(ranks: u32) -> impl Fn(&mut SimulatedWorkerConfig) {
    move |config| {
        config.engine.ranks = ranks;
        config.engine.decode_interval = Duration::from_secs(3600);
    }
}

fn open(ranks: u32, policy: &str, more: &str) -> Filtered {
    Filtered::open(Role::Aggregated, &adp(ranks, policy, more), endless(ranks))
}

pub fn short(session: &str) -> Value {
    let mut body = whole_body(session);
    body["max_tokens"] = 1.into();
    body
}

impl Filtered {
    /// The rank of a request that is answered at once.
    pub fn rank_of(&self, headers: &[(&str, &str)], body: &Value) -> u32 {
        let answer = self.post(headers, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let seen = self.last();
        let rank = told_rank(&seen).unwrap();
        assert_eq!(seen.rank, Some(rank), "the worker runs it where it is told");
        assert_eq!(
            answer.header("x-kindred-rank"),
            Some(rank.to_string().as_str())
        );
        rank
    }

    pub fn hold_session(&self, session: &str) -> Held {
        self.hold(&[], &whole_body(session))
    }
}

#[test]
fn round_robin_takes_the_ranks_in_turn() {
    let site = open(3, "round_robin", "");
    let ranks: Vec<_> = (0..7)
        .map(|at| site.rank_of(&[], &short(&format!("s{at}"))))
        .collect();
    let first = ranks[0];
    let turns: Vec<_> = (0..7).map(|at| (first + at) % 3).collect();
    assert_eq!(ranks, turns);
    assert_eq!(site.placed("new"), 7.0);
    site.kindred.assert_idle();
}

#[test]
fn least_queued_takes_the_rank_with_the_fewest_requests() {
    let site = open(3, "least_queued", "");
    let mut held: Vec<_> = (0..3)
        .map(|at| site.hold_session(&format!("s{at}")))
        .collect();
    let mut ranks: Vec<_> = held.iter().map(|held| held.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    for at in [1, 0, 1] {
        let left = held.remove(at);
        let rank = left.rank;
        left.leave(&site);
        let session = format!("after-{at}-{rank}");
        held.push(site.hold_session(&session));
        assert_eq!(held.last().unwrap().rank, rank, "the only idle rank");
    }
    drop(held);
    site.kindred.assert_idle();
}

#[test]
fn least_tokens_takes_the_rank_with_the_fewest_prompt_tokens() {
    let site = open(2, "least_tokens", "");
    let mut long = whole_body("long");
    long["messages"][0]["content"] = "word ".repeat(2000).into();
    let long = site.hold(&[], &long);
    let others: Vec<_> = (0..3)
        .map(|at| site.hold_session(&format!("s{at}")))
        .collect();
    assert!(others.iter().all(|held| held.rank != long.rank));
    let tokens = |rank: u32| {
        site.kindred
            .metric("kindred_rank_tokens", &[&format!("rank=\"{rank}\"")])
    };
    assert!(tokens(long.rank) > tokens(others[0].rank) && tokens(others[0].rank) > 0.0);
    let idle = long.rank;
    long.leave(&site);
    let next = site.hold_session("next");
    assert_eq!(next.rank, idle);
    drop((others, next));
    site.kindred.assert_idle();
}

#[test]
fn a_session_stays_on_its_rank_and_its_subagents_come_to_it() {
    let more = format!(", server_role: context{}", adp(4, "round_robin", ""));
    let site = Filtered::open(Role::Context, &more, |config| config.engine.ranks = 4);
    let home = site.rank_of(&[], &context_body("parent"));
    for child in ["child-a", "child-b", "child-a"] {
        assert_ne!(
            site.rank_of(&[], &context_body(&format!("stranger-{child}"))),
            home,
            "{child}"
        );
        let body = context_body(child);
        let auth = sign(KEY, Role::Context, "parent", &body);
        let rank = site.rank_of(&[(AFFINITY_ID, "parent"), (AFFINITY_AUTH, &auth)], &body);
        assert_eq!(rank, home, "{child}");
    }
    assert_eq!(site.rank_of(&[], &context_body("parent")), home);
    assert_eq!((site.placed("new"), site.placed("sticky")), (3.0, 5.0));
    // What ran with its parent has no rank of its own.
    let alone = site.rank_of(&[], &context_body("child-a"));
    assert_eq!(site.placed("new"), 4.0);
    assert_eq!(site.rank_of(&[], &context_body("child-a")), alone);
}

#[test]
fn a_request_of_no_session_is_placed_and_bound_to_nothing() {
    let site = open(2, "round_robin", "");
    let mut body = short("-");
    body.as_object_mut().unwrap().remove("conversation_params");
    let ranks: Vec<_> = (0..4).map(|_| site.rank_of(&[], &body)).collect();
    assert_eq!([ranks[0], ranks[1]], [ranks[2], ranks[3]]);
    assert_ne!(ranks[0], ranks[1]);
    assert_eq!(site.placed("unkeyed"), 4.0);
}

#[test]
fn a_full_rank_overflows_and_the_binding_stays() {
    let site = open(2, "round_robin", ", max_batch_size: 2");
    let first = site.hold_session("family");
    let (home, second) = (first.rank, site.hold_session("family"));
    assert_eq!(second.rank, home);
    assert_eq!(site.in_flight(home), 2.0);
    let guest = site.hold_session("family");
    assert_ne!(guest.rank, home, "the rank is full");
    assert_ne!(site.rank_of(&[], &short("family")), home, "still full");
    assert_eq!(site.placed("overflow"), 2.0);
    second.leave(&site);
    assert_eq!(site.rank_of(&[], &short("family")), home, "bound as before");
    assert_eq!(site.placed("new"), 1.0);
    drop((first, guest));
    site.kindred.assert_idle();
}

#[test]
fn requests_above_every_ranks_bound_are_served_all_the_same() {
    let site = open(2, "least_queued", ", max_batch_size: 1");
    let held: Vec<_> = (0..4)
        .map(|at| site.hold_session(&format!("s{at}")))
        .collect();
    assert!(held.iter().all(|held| held.rank < 2));
    assert_eq!((site.in_flight(0), site.in_flight(1)), (2.0, 2.0));
    drop(held);
    site.kindred.assert_idle();
}

#[test]
fn ranks_are_given_back_however_a_request_ends() {
    let site = open(2, "round_robin", "");
    let mut stream = whole_body("s");
    stream["stream"] = true.into();
    for (fault, body) in [
        ("status=503", short("s")),
        ("status=400", short("s")),
        ("reset", short("s")),
        ("invalid-json", short("s")),
        ("die-after=1", short("s")),
        ("die-after=1", stream.clone()),
    ] {
        site.worker().fault(1, fault);
        let bytes = raw::request(CHAT, &[], body.to_string().as_bytes());
        let mut connection = raw::connect(site.address());
        std::io::Write::write_all(&mut connection, &bytes).unwrap();
        // Broken off or not: it has to end.
        let _ = raw::try_read_answer(&mut connection);
        site.kindred.assert_idle();
    }
    assert_eq!(site.post(&[], &short("s")).status, 200);
    site.kindred.assert_idle();
    for body in [whole_body("s"), stream] {
        let held = site.hold(&[], &body);
        assert_eq!(site.in_flight(held.rank), 1.0);
        held.leave(&site);
        crate::support::eventually("the worker's client leaves too", || {
            site.last().client_left.then_some(())
        });
    }
    site.kindred.assert_idle();
}

#[test]
fn an_unreachable_worker_holds_no_rank() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let kindred = crate::support::Kindred::serve(&format!(
        "internal_request_auth_key: {KEY}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
         - {{name: w, listen: '127.0.0.1:0', worker: '{nobody}'{}}}\n",
        adp(2, "round_robin", "")
    ));
    for _ in 0..3 {
        let answer = raw::post(kindred.filters[0].1, CHAT, &[], &short("s").to_string());
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(
            !answer.text().contains(&nobody.to_string()),
            "{}",
            answer.text()
        );
    }
    kindred.assert_idle();
}
