//! Where `kv_cache_aware` sends requests, and what it learns from whom (specification sections 2.4 to
//! 2.6).

mod support;

use std::io::{Read, Write};

use kindred::{simulate::worker::SimulatedWorkerConfig, wire::Role};
use serde_json::{Value, json};
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    model, raw,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const CONVERSATION: &str = "{type: conversation}";
/// Tokens of a worker's block.
const BLOCK: usize = 4;

fn small_blocks(config: &mut SimulatedWorkerConfig) {
    config.engine.block_size = BLOCK;
}

fn yaml(fleet: &Fleet, context: &str, generation: &str, more: &str) -> String {
    let yaml = fleet.yaml(more);
    let (before, after) = yaml.split_once("generation_servers").unwrap();
    format!(
        "{}generation_servers{}",
        before.replace(CONVERSATION, context),
        after.replace(CONVERSATION, generation)
    )
}

fn serve(fleet: &Fleet, context: &str, generation: &str) -> Kindred {
    Kindred::serve(&yaml(fleet, context, generation, ""))
}

fn ids(first: u32, count: u32) -> Value {
    json!((first..first + count).collect::<Vec<u32>>())
}

/// Asks for a completion of `prompt`; returns the answer's text.
fn complete(kindred: &Kindred, prompt: &Value) -> String {
    let body = json!({"model": "m", "max_tokens": 4, "prompt": prompt}).to_string();
    let answer = raw::post(kindred.edge(), COMPLETIONS, &[], &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer: Value = serde_json::from_str(&answer.text()).unwrap();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Asks for the answer to a chat with a system prompt.
fn chat(kindred: &Kindred, system: &str, user: &str) {
    let body = json!({"model": "m", "max_tokens": 4, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": user}]});
    let answer = raw::post(kindred.edge(), CHAT, &[], &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// How many requests each worker of a role got.
fn counts(fleet: &Fleet, role: Role) -> Vec<usize> {
    fleet
        .of(role)
        .map(|worker| worker.requests().len())
        .collect()
}

/// How many requests of this path the workers of a role got.
fn asked(fleet: &Fleet, role: Role, path: &str) -> usize {
    let recorded = fleet.of(role).flat_map(|worker| worker.recorder.since(0));
    recorded.filter(|request| request.path == path).count()
}

fn blocks(kindred: &Kindred, role: &str) -> usize {
    kindred.metric("kindred_kv_blocks", &[&format!("fleet=\"{role}\"")]) as usize
}

fn fallbacks(kindred: &Kindred, role: &str) -> usize {
    let label = format!("fleet=\"{role}\"");
    kindred.metric("kindred_router_fallbacks_total", &[&label]) as usize
}

fn know(kindred: &Kindred, role: &str, expected: usize) {
    let label = format!("fleet=\"{role}\"");
    kindred.assert_metric("kindred_kv_blocks", &[&label], expected as f64);
}

#[test]
fn the_workers_events_say_who_holds_a_prompt() {
    let fleet = fleet::start(2, 1, small_blocks);
    let router = "{type: kv_cache_aware, track_routed_blocks: false}";
    let kindred = serve(&fleet, router, CONVERSATION);
    // Nobody holds anything: each gets its turn.
    complete(&kindred, &ids(100, 41));
    know(&kindred, "context", 10);
    complete(&kindred, &ids(200, 41));
    know(&kindred, "context", 20);
    assert_eq!(counts(&fleet, Role::Context), [1, 1]);
    for turn in 1..=3 {
        complete(&kindred, &ids(100, 42));
        complete(&kindred, &ids(100, 43));
        assert_eq!(counts(&fleet, Role::Context), [1 + 2 * turn, 1]);
    }
    for turn in 1..=3 {
        complete(&kindred, &ids(200, 42));
        complete(&kindred, &ids(200, 43));
        assert_eq!(counts(&fleet, Role::Context), [7, 1 + 2 * turn]);
    }
    assert!(asked(&fleet, Role::Context, "/kv_cache_events") >= 2);
    assert_eq!(asked(&fleet, Role::Generation, "/kv_cache_events"), 0);
    assert_eq!(fallbacks(&kindred, "context"), 0);
    kindred.assert_idle();
}

#[test]
fn a_block_that_a_worker_dropped_is_held_no_more() {
    let fleet = fleet::start(2, 1, |config| {
        small_blocks(config);
        config.engine.cache_blocks = 12;
    });
    let router = "{type: kv_cache_aware, track_routed_blocks: false}";
    let kindred = serve(&fleet, router, CONVERSATION);
    // The third one fills the first worker's cache, and nothing of the first one stays.
    for (first, count, known) in [(100, 41, 10), (200, 41, 20), (300, 49, 22)] {
        complete(&kindred, &ids(first, count));
        know(&kindred, "context", known);
    }
    assert_eq!(counts(&fleet, Role::Context), [2, 1]);
    complete(&kindred, &ids(100, 41));
    assert_eq!(counts(&fleet, Role::Context), [2, 2], "as of a new prompt");
    kindred.assert_idle();
}

#[test]
fn requests_that_ended_well_say_who_holds_a_prompt() {
    let fleet = fleet::start(2, 1, small_blocks);
    // With blocks of another size the events are of no use, and are left to the worker.
    let router = "{type: kv_cache_aware, tokens_per_block: 8}";
    let kindred = serve(&fleet, router, CONVERSATION);
    complete(&kindred, &ids(100, 41));
    complete(&kindred, &ids(200, 41));
    assert_eq!(blocks(&kindred, "context"), 10);
    for turn in 1..=3 {
        complete(&kindred, &ids(100, 50));
        assert_eq!(counts(&fleet, Role::Context), [1 + turn, turn]);
        complete(&kindred, &ids(200, 50));
        assert_eq!(counts(&fleet, Role::Context), [1 + turn, 1 + turn]);
    }
    assert_eq!(asked(&fleet, Role::Context, "/kv_cache_events"), 0);
    eventually("the log says why no events are read", || {
        kindred.log().contains("events are not read").then_some(())
    });
    kindred.assert_idle();
}

#[test]
fn chats_are_written_with_the_template_of_the_tokenizers_folder() {
    let folder = tempfile::tempdir().unwrap();
    model::write(folder.path());
    let fleet = fleet::start(2, 1, small_blocks);
    let router = format!(
        "{{type: kv_cache_aware, tokens_per_block: 8, tokenizer_dir: '{}'}}",
        folder.path().display()
    );
    let kindred = serve(&fleet, &router, CONVERSATION);
    let system = [model::words(0, 60), model::words(100, 60)];
    chat(&kindred, &system[0], &model::words(200, 10));
    let first = (model::chat_tokens(&[60, 10]) - 1).div_ceil(8);
    assert_eq!(blocks(&kindred, "context"), first);
    chat(&kindred, &system[1], &model::words(300, 10));
    assert_eq!(blocks(&kindred, "context"), 2 * first);
    assert_eq!(counts(&fleet, Role::Context), [1, 1]);
    // Another user's words after the same system prompt: no pin leads there, the blocks do.
    for turn in 1..=3 {
        chat(&kindred, &system[0], &model::words(400 + turn, 10));
        chat(&kindred, &system[0], &model::words(500 + turn, 10));
        assert_eq!(counts(&fleet, Role::Context), [1 + 2 * turn, 1]);
    }
    // The words of a completion are turned into tokens by the same folder.
    let known = blocks(&kindred, "context");
    complete(&kindred, &json!(model::words(600, 41)));
    assert_eq!(blocks(&kindred, "context"), known + 5);
    assert_eq!(fallbacks(&kindred, "context"), 0);
    assert_eq!(asked(&fleet, Role::Context, "/_internal/tokenize"), 0);
    kindred.assert_idle();
}

#[test]
fn without_a_tokenizer_a_worker_is_asked_for_a_completions_tokens() {
    let fleet = fleet::start(2, 1, small_blocks);
    let kindred = serve(&fleet, "{type: kv_cache_aware}", CONVERSATION);
    for (first, expected) in [
        (0, [1, 0]),
        (100, [1, 1]),
        (0, [2, 1]),
        (0, [3, 1]),
        (100, [3, 2]),
    ] {
        complete(&kindred, &json!(model::words(first, 41)));
        assert_eq!(counts(&fleet, Role::Context), expected);
    }
    complete(&kindred, &json!([model::words(100, 41)]));
    assert_eq!(counts(&fleet, Role::Context), [3, 3], "a list of one");
    assert_eq!(asked(&fleet, Role::Context, "/_internal/tokenize"), 6);
    assert_eq!(fallbacks(&kindred, "context"), 0);
    know(&kindred, "context", 20);
    kindred.assert_idle();
}

#[test]
fn a_chat_without_tokens_is_placed_by_conversation_and_counted() {
    let fleet = fleet::start(2, 2, small_blocks);
    let kindred = serve(&fleet, "{type: kv_cache_aware}", "{type: kv_cache_aware}");
    let body = support::chat("hello").to_string();
    for turn in 1..=4 {
        let answer = raw::post(kindred.edge(), CHAT, &[("x-session-id", "s")], &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut context = counts(&fleet, Role::Context);
        context.sort_unstable();
        assert_eq!(context, [0, turn]);
    }
    let metric = "kindred_router_fallbacks_total";
    let labels = ["fleet=\"context\"", "reason=\"chat_without_tokens\""];
    assert_eq!(kindred.metric(metric, &labels), 4.0);
    // The context worker has told the generation leg's tokens.
    assert_eq!(fallbacks(&kindred, "generation"), 0);
    // What a generation leg leaves behind is known once it is over.
    kindred.assert_idle();
    assert!(blocks(&kindred, "generation") > 0);
}

#[test]
fn a_worker_whose_blocks_do_not_fit_gets_no_requests() {
    let fleet = fleet::start(2, 1, |config| {
        config.engine.block_size = if config.name == "context-0" { 6 } else { BLOCK };
    });
    let router = "{type: kv_cache_aware, tokens_per_block: 4}";
    let kindred = serve(&fleet, router, CONVERSATION);
    for turn in 0..3 {
        complete(&kindred, &ids(100 * turn, 41));
        chat(&kindred, "alder", &format!("birch {turn}"));
    }
    assert_eq!(counts(&fleet, Role::Context), [0, 6]);
    let remedy = "align kv_cache_config.tokens_per_block";
    eventually("the log says what to align", || {
        kindred.log().contains(remedy).then_some(())
    });
    assert_eq!(kindred.log().matches(remedy).count(), 1);
    kindred.assert_idle();
}

#[test]
fn both_legs_of_generation_first_are_learnt_from() {
    let fleet = fleet::start(1, 1, small_blocks);
    let router = "{type: kv_cache_aware}";
    let yaml = yaml(&fleet, router, router, "schedule_style: generation_first");
    let kindred = Kindred::serve(&yaml);
    let body = json!({"model": "m", "max_tokens": 4, "stream": true, "prompt": ids(100, 41)});
    let answer = raw::post(kindred.edge(), COMPLETIONS, &[], &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    for role in ["context", "generation"] {
        eventually("its blocks are known", || {
            (blocks(&kindred, role) >= 10).then_some(())
        });
        assert_eq!(fallbacks(&kindred, role), 0);
    }
    kindred.assert_idle();
}

#[test]
fn a_worker_that_is_not_there_yet_is_chosen_once_it_is() {
    let fleet = fleet::start(1, 1, small_blocks);
    // Nothing listens there: it is asked for nothing that anybody waits for.
    let absent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = absent.local_addr().unwrap();
    drop(absent);
    let yaml = yaml(&fleet, "{type: kv_cache_aware}", CONVERSATION, "");
    let yaml = yaml.replacen(
        "num_instances: 1, urls: [",
        &format!("num_instances: 2, urls: ['{address}', "),
        1,
    );
    let kindred = Kindred::serve(&yaml);
    for turn in 1..=3 {
        complete(&kindred, &ids(100, 41 + turn));
    }
    assert_eq!(counts(&fleet, Role::Context), [3]);
    kindred.assert_idle();
}

#[test]
fn many_at_once_and_those_who_leave_are_counted_out() {
    let fleet = fleet::start(2, 2, |config| {
        small_blocks(config);
        config.engine.decode_interval = std::time::Duration::from_millis(2);
    });
    let kindred = serve(&fleet, "{type: kv_cache_aware}", "{type: kv_cache_aware}");
    let endless = json!({"model": "m", "stream": true, "ignore_eos": true, "max_tokens": 100_000,
                         "prompt": ids(500, 41)});
    let endless = raw::request(COMPLETIONS, &[], endless.to_string().as_bytes());
    std::thread::scope(|threads| {
        for thread in 0..6 {
            let (kindred, endless) = (&kindred, &endless);
            threads.spawn(move || {
                for turn in 0..6 {
                    complete(kindred, &ids(100 * thread, 41 + turn));
                    let mut leaver = raw::connect(kindred.edge());
                    leaver.write_all(endless).unwrap();
                    let mut head = [0; 12];
                    leaver.read_exact(&mut head).unwrap();
                    assert_eq!(&head, b"HTTP/1.1 200");
                }
            });
        }
    });
    kindred.assert_idle();
    for role in [Role::Context, Role::Generation] {
        assert!(asked(&fleet, role, "/kv_cache_events") <= fleet.requests(role).len());
    }
    assert!(blocks(&kindred, "generation") >= 60);
}
