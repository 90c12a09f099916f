//! What one decision of routing and of rank placement costs.
//!
//! Prints nanoseconds for each decision and bytes for each session, with the machine's core count.
//! `cargo bench --bench routing`; a first argument that is a number scales the sessions down.

use std::{hint::black_box, num::NonZeroU32, sync::Barrier, thread, time::Instant};

use kindred::{
    affinity::{AffinityKey, BindingTable},
    config::{
        ConversationConfig, KvCacheAwareConfig, NewConversationPlacement, PlacementConfig,
        RouterConfig,
    },
    fleet::Fleet,
    routing::{Query, Router},
    wire::{Role, prompt::Prompt},
    worker::placement::{Ask, RankLoad, RankPlacer},
};
use serde_json::value::RawValue;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const INSTANCES: usize = 1_000;
const THREADS: usize = 16;
const DECISIONS: usize = 1_000_000;

fn main() {
    let scale = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(1);
    let sessions = 1_000_000 / scale;
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, {sessions} sessions, {INSTANCES} instances, ns for each decision");

    let before = resident();
    let config = ConversationConfig {
        max_sessions: sessions,
        ..Default::default()
    };
    let router = Router::new(&RouterConfig::Conversation(config));
    let urls: Vec<String> = (0..INSTANCES)
        .map(|number| format!("10.0.0.1:{number}"))
        .collect();
    let fleet = Fleet::build(Role::Context, &urls, None);
    let prompt = RawValue::from_string(format!("\"{}\"", "x".repeat(200))).expect("a JSON text");
    let prompt = Prompt::completion(Some(&prompt));
    let decide = |at: usize| {
        let id = Id::new(at);
        let query = Query {
            scope: 0,
            key: Some(id.text()),
            prompt: &prompt,
            exclude: None,
            tokens: None,
        };
        black_box(router.route(&fleet, &query).expect("an instance"));
    };

    let start = Instant::now();
    (0..sessions).for_each(decide);
    println!("new session: {}", per(start, sessions));
    println!(
        "resident bytes for each session: {}",
        resident().saturating_sub(before) / sessions
    );
    println!("table bytes for each entry: {}", table_bytes(sessions));

    let start = Instant::now();
    walk(1, DECISIONS, sessions, |at| {
        black_box(Id::new(at).text().len());
    });
    println!(
        "making a session's id, part of every figure: {}",
        per(start, DECISIONS)
    );
    for seed in 1..=3 {
        let start = Instant::now();
        walk(seed, DECISIONS, sessions, decide);
        println!("bound session, one thread: {}", per(start, DECISIONS));
    }
    contend(sessions, decide);
    place();
    by_cache(&fleet);
}

/// Every instance holds the system prompt; each conversation is on one of them.
fn by_cache(fleet: &Fleet) {
    const SYSTEM: u32 = 4_000;
    const TOKENS: u32 = 8_000;
    let router = Router::new(&RouterConfig::KvCacheAware(KvCacheAwareConfig::default()));
    let prompt = Prompt::empty();
    let route = |conversation: u32| {
        let own = (SYSTEM..TOKENS).map(|token| token ^ (conversation << 13));
        let tokens: Vec<u32> = (0..SYSTEM).chain(own).collect();
        let query = Query {
            scope: 0,
            key: None,
            prompt: &prompt,
            exclude: None,
            tokens: Some(&tokens),
        };
        router.route(fleet, &query).expect("an instance")
    };
    let held: Vec<_> = (0..INSTANCES as u32).map(route).collect();
    for pick in held {
        router.finished(&pick, true);
    }
    let decisions = 10_000;
    let start = Instant::now();
    walk(9, decisions, INSTANCES, |at| {
        black_box(route(at as u32));
    });
    println!(
        "prompt of {TOKENS} tokens by KV cache, hashing included: {}",
        per(start, decisions)
    );
}

/// A session's id, like the ones that agents send: 36 characters.
struct Id([u8; 36]);

impl Id {
    fn new(number: usize) -> Self {
        let mut text = *b"00000000-0000-4000-8000-000000000000";
        let mut rest = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for byte in text.iter_mut().filter(|byte| **byte == b'0').take(16) {
            *byte = b"0123456789abcdef"[(rest & 15) as usize];
            rest >>= 4;
        }
        Self(text)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits")
    }
}

/// Calls `act` with numbers below `bound` in no order.
fn walk(seed: usize, times: usize, bound: usize, mut act: impl FnMut(usize)) {
    let mut state = seed as u64;
    for _ in 0..times {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        act((state >> 33) as usize % bound);
    }
}

fn contend(sessions: usize, decide: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(THREADS + 1);
    let start = thread::scope(|scope| {
        for seed in 0..THREADS {
            let (barrier, decide) = (&barrier, &decide);
            scope.spawn(move || {
                barrier.wait();
                walk(seed + 7, DECISIONS / THREADS, sessions, decide);
            });
        }
        barrier.wait();
        Instant::now()
    });
    println!(
        "bound session, {THREADS} threads at once: {}",
        per(start, DECISIONS)
    );
}

fn place() {
    let sessions = 65_536;
    let mut placer = RankPlacer::new(&PlacementConfig {
        ranks: 8,
        max_active_per_rank: 64,
        conversation_affinity: true,
        max_sessions: sessions,
        fair_share_multiplier: 2.0,
        new_conversation: NewConversationPlacement::LeastTokens,
    });
    let loads = [RankLoad {
        requests: 12,
        tokens: 40_000,
    }; 8];
    let mut ask = |at: usize| {
        let ask = Ask::new(Some(AffinityKey::new(Id::new(at).text())), 2_000);
        black_box(placer.place_one(&loads, 64, ask));
    };
    (0..sessions).for_each(&mut ask);
    let start = Instant::now();
    walk(5, DECISIONS, sessions, ask);
    println!(
        "rank of a bound session, {sessions} sessions: {}",
        per(start, DECISIONS)
    );
}

fn table_bytes(entries: usize) -> usize {
    let mut table = BindingTable::<NonZeroU32>::new(entries);
    for number in 0..entries as u64 {
        let _ = table.insert(AffinityKey::synthetic(number), NonZeroU32::MIN);
    }
    table.allocated() / entries
}

fn per(start: Instant, times: usize) -> u128 {
    start.elapsed().as_nanos() / times.max(1) as u128
}

/// Bytes of this process that are in memory; 0 where the system does not say.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
