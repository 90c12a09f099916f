use std::sync::Arc;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::{
    config::RouterConfig,
    routing::{Decision, Exclusion, Router, kv_hash},
    telemetry::labels::FleetLabel,
    wire::Role,
};

const SIZE: u32 = 4;

fn config() -> KvCacheAwareConfig {
    KvCacheAwareConfig {
        tokens_per_block: Some(SIZE),
        ..Default::default()
    }
}

fn fleet(urls: &[&str]) -> Fleet {
    Fleet::build(Role::Generation, urls, None)
}

fn route(router: &KvCacheAware, fleet: &Fleet, tokens: &[u32]) -> Pick {
    ask(router, fleet, &Prompt::empty(), tokens).unwrap()
}

fn ask(
    router: &KvCacheAware,
    fleet: &Fleet,
    prompt: &Prompt<'_>,
    tokens: &[u32],
) -> Result<Pick, RouteError> {
    let query = Query {
        scope: 0,
        key: None,
        prompt,
        exclude: None,
        tokens: Some(tokens),
    };
    router.route(fleet, &query)
}

fn at(pick: &Pick) -> &str {
    &pick.load.instance().address
}

fn matched(pick: &Pick) -> (u64, u64) {
    let kv = pick.kv.as_ref().unwrap();
    (kv.match_length, kv.num_tokens)
}

fn prompt(first: u32, tokens: u32) -> Vec<u32> {
    (first..first + tokens).collect()
}

fn facts(algo: Option<&str>, size: Option<u32>) -> WorkerFacts {
    WorkerFacts {
        hash_algo: algo.map(str::to_owned),
        tokens_per_block: size,
    }
}

fn event(change: Change, blocks: Vec<u64>) -> Event {
    Event {
        change,
        blocks,
        hash_algo: None,
    }
}

#[test]
fn a_prompt_goes_where_its_blocks_are() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1", "c:1"]);
    let long = prompt(0, 13);
    let first = route(&router, &fleet, &long);
    assert_eq!((at(&first), matched(&first)), ("a:1", (0, 13)));
    assert_eq!(first.load.weight(), 13);
    router.finished(&first, true);
    drop(first);
    for _ in 0..3 {
        let again = route(&router, &fleet, &long);
        assert_eq!((at(&again), matched(&again)), ("a:1", (12, 13)));
        let longer = route(&router, &fleet, &prompt(0, 30));
        assert_eq!((at(&longer), matched(&longer)), ("a:1", (12, 30)));
    }
    let turns: Vec<_> = (0..3)
        .map(|_| route(&router, &fleet, &prompt(100, 13)))
        .collect();
    let places: Vec<&str> = turns.iter().map(at).collect();
    assert_eq!(
        places,
        ["b:1", "a:1", "c:1"],
        "the counter goes on at every pick"
    );
    assert!(turns.iter().all(|pick| matched(pick).0 == 0));
}

#[test]
fn what_failed_is_not_held_and_nothing_is_tracked_where_that_is_off() {
    for (config, success) in [
        (config(), false),
        (
            KvCacheAwareConfig {
                track_routed_blocks: false,
                ..config()
            },
            true,
        ),
    ] {
        let router = KvCacheAware::new(&config);
        let fleet = fleet(&["a:1"]);
        let pick = route(&router, &fleet, &prompt(0, 9));
        router.finished(&pick, success);
        assert_eq!(matched(&route(&router, &fleet, &prompt(0, 9))), (0, 9));
        assert_eq!(router.blocks(), 0);
    }
}

#[test]
fn requests_in_flight_weigh_against_blocks() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1"]);
    let tokens = prompt(0, 5);
    router.finished(&route(&router, &fleet, &tokens), true);
    let held: Vec<Pick> = (0..4).map(|_| route(&router, &fleet, &tokens)).collect();
    assert!(
        held.iter().all(|pick| at(pick) == "a:1"),
        "1 block against less than 4 x 0.25"
    );
    let two: Vec<Pick> = (0..2).map(|_| route(&router, &fleet, &tokens)).collect();
    let mut places: Vec<&str> = two.iter().map(at).collect();
    places.sort_unstable();
    assert!(places.contains(&"b:1"), "{places:?}");
}

#[test]
fn a_full_instance_is_left_out_unless_all_are_full() {
    let router = KvCacheAware::new(&KvCacheAwareConfig {
        max_batch_size: 2,
        load_cap: 1.0,
        load_weight: 0.0,
        ..config()
    });
    let fleet = fleet(&["a:1", "b:1"]);
    let tokens = prompt(0, 9);
    router.finished(&route(&router, &fleet, &tokens), true);
    let held: Vec<Pick> = (0..6).map(|_| route(&router, &fleet, &tokens)).collect();
    let places: Vec<&str> = held.iter().map(at).collect();
    assert_eq!(places, ["a:1", "a:1", "b:1", "b:1", "a:1", "a:1"]);
}

fn chat(content: &str) -> Box<RawValue> {
    let messages = serde_json::json!([{"role": "user", "content": content}]);
    serde_json::value::to_raw_value(&messages).unwrap()
}

#[test]
fn a_pin_wins_over_every_score_and_follows_the_winner() {
    let router = KvCacheAware::new(&KvCacheAwareConfig {
        max_batch_size: 1,
        load_cap: 1.0,
        ..config()
    });
    let fleet = fleet(&["a:1", "b:1"]);
    let (one, other) = (chat("one"), chat("other"));
    let one = Prompt::chat(Some(&one), None);
    let other = Prompt::chat(Some(&other), None);
    let go = |prompt: &Prompt<'_>, tokens: &[u32]| ask(&router, &fleet, prompt, tokens).unwrap();
    let first = go(&one, &prompt(0, 9));
    assert_eq!((at(&first), first.decision), ("a:1", Decision::New));
    drop(first);
    let second = go(&other, &prompt(50, 9));
    assert_eq!((at(&second), second.decision), ("b:1", Decision::New));
    router.finished(&second, true);
    drop(second);
    let pinned = go(&one, &prompt(50, 9));
    assert_eq!((at(&pinned), pinned.decision), ("a:1", Decision::Bound));
    let moved = go(&one, &prompt(0, 9));
    assert_eq!(
        (at(&moved), moved.decision),
        ("b:1", Decision::Failover),
        "the pinned one is full"
    );
    drop((pinned, moved));
    assert_eq!(at(&go(&one, &prompt(0, 9))), "b:1", "the pin has moved");
    assert_eq!(router.bindings(), 2);
}

#[test]
fn events_say_what_is_held() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1"]);
    let tokens = prompt(0, 13);
    drop(route(&router, &fleet, &tokens));
    let [a, b] = [0, 1].map(|at| fleet.instances()[at].id);
    router
        .learn(b, &facts(Some("v2_sha256"), Some(SIZE)))
        .unwrap();
    let hashes = kv_hash::v2_sha256_64(&tokens, SIZE, None);
    router.apply_events(
        b,
        &[
            event(Change::Created, Vec::new()),
            event(Change::Stored, hashes.clone()),
        ],
    );
    let pick = route(&router, &fleet, &tokens);
    assert_eq!((at(&pick), matched(&pick)), ("b:1", (12, 13)));
    router.apply_events(b, &[event(Change::Updated, hashes.clone())]);
    router.apply_events(b, &[event(Change::Removed, hashes[1..].to_vec())]);
    assert_eq!(matched(&route(&router, &fleet, &tokens)), (4, 13));
    // Of an algorithm that is not known, and of an instance that is not.
    let strange = Event {
        hash_algo: Some("v9".to_owned()),
        ..event(Change::Stored, hashes.clone())
    };
    router.apply_events(b, &[strange]);
    assert_eq!(matched(&route(&router, &fleet, &tokens)), (4, 13));
    // An event names the algorithm that its worker did not.
    router.learn(a, &facts(None, None)).unwrap();
    let named = Event {
        hash_algo: Some("v2_sha256_64".to_owned()),
        ..event(Change::Stored, hashes)
    };
    router.apply_events(a, &[named]);
    let pick = route(&router, &fleet, &tokens);
    assert_eq!((at(&pick), matched(&pick)), ("a:1", (12, 13)));
}

#[test]
fn blocks_are_of_one_size() {
    let auto = KvCacheAware::new(&KvCacheAwareConfig::default());
    let fleet = fleet(&["a:1", "b:1", "c:1"]);
    let [a, b, c] = [0, 1, 2].map(|at| fleet.instances()[at].id);
    let v1 = Some("v1_block_key");
    let learned = auto.learn(a, &facts(None, None)).unwrap();
    assert!(learned.assumed_hash && learned.events);
    assert_eq!(learned.tokens_per_block, 32);
    assert_eq!(
        auto.learn(a, &facts(v1, Some(64)))
            .unwrap()
            .tokens_per_block,
        64
    );
    let other = auto.learn(b, &facts(v1, Some(32))).unwrap();
    assert_eq!(
        (other.tokens_per_block, other.events),
        (64, false),
        "the first is adopted"
    );
    assert!(auto.wants_events(a) && !auto.wants_events(b));
    auto.apply_events(b, &[event(Change::Stored, vec![1])]);
    assert_eq!(auto.blocks(), 0);
    let unfit = auto.learn(c, &facts(v1, Some(48))).unwrap_err();
    assert_eq!(
        unfit,
        Unfit::BlockSize {
            router: 64,
            worker: 48
        }
    );
    let unfit = auto.learn(c, &facts(Some("v9"), Some(64))).unwrap_err();
    assert!(
        unfit.to_string().contains("v1_block_key, v2_sha256"),
        "{unfit}"
    );
    let places: Vec<Pick> = (0..6)
        .map(|_| route(&auto, &fleet, &prompt(0, 9)))
        .collect();
    assert!(places.iter().all(|pick| at(pick) != "c:1"));
    let untold = Query {
        scope: 0,
        key: Some("session"),
        prompt: &Prompt::empty(),
        exclude: None,
        tokens: None,
    };
    assert!((0..6).all(|_| at(&auto.route(&fleet, &untold).unwrap()) != "c:1"));

    auto.learn(a, &facts(Some("v9"), None)).unwrap_err();
    auto.learn(b, &facts(Some("v9"), None)).unwrap_err();
    let none = ask(&auto, &fleet, &Prompt::empty(), &[1]).unwrap_err();
    assert_eq!(
        none,
        RouteError::Unfit {
            role: Role::Generation
        }
    );
    assert_eq!(auto.route(&fleet, &untold).unwrap_err(), none);
    assert!(
        auto.learn(c, &facts(v1, Some(48))).unwrap().events,
        "the only one sets the size"
    );
    assert_eq!(at(&route(&auto, &fleet, &prompt(0, 9))), "c:1");
}

#[test]
fn without_tokens_a_session_stays_and_the_fallback_is_counted() {
    let router = Router::new(&RouterConfig::KvCacheAware(config()));
    let fleet = fleet(&["a:1", "b:1"]);
    let messages = chat("hello");
    let prompt = Prompt::chat(Some(&messages), None);
    let query = Query {
        scope: 0,
        key: Some("session"),
        prompt: &prompt,
        exclude: None,
        tokens: None,
    };
    let labels = (FleetLabel::Generation, FallbackReason::ChatWithoutTokens);
    let counter = telemetry::metrics().router_fallbacks.get(labels);
    let before = counter.get();
    let first = router.route(&fleet, &query).unwrap();
    let second = router.route(&fleet, &query).unwrap();
    assert_eq!(
        (first.decision, second.decision),
        (Decision::New, Decision::Bound)
    );
    assert_eq!(at(&first), at(&second));
    assert!(first.kv.is_none() && first.needs_context(u64::MAX));
    assert!(counter.get() >= before + 2);
    assert_eq!(router.peek("session"), Some(first.load.instance().id));
    router.finished(&first, true);
    assert_eq!(router.kv_cache_aware().unwrap().blocks(), 0);
    router.forget(&[first.load.instance().id]);
    assert_eq!(router.peek("session"), None);
}

#[test]
fn what_an_instance_held_is_gone_with_it() {
    let router = KvCacheAware::new(&config());
    let first = fleet(&["a:1", "b:1"]);
    let tokens = prompt(0, 13);
    let pick = route(&router, &first, &tokens);
    router.finished(&pick, true);
    let second = Fleet::build(Role::Generation, &["b:1"], Some(&first));
    router.forget(&second.removed_since(&first));
    assert_eq!(router.blocks(), 0);
    router.finished(&pick, true);
    assert_eq!(
        router.blocks(),
        0,
        "a late end of a request brings nothing back"
    );
    let third = Fleet::build(Role::Generation, &["b:1", "a:1"], Some(&second));
    let again = route(&router, &third, &tokens);
    assert_eq!(
        matched(&again),
        (0, 13),
        "the slot is used again, its blocks are not"
    );
    router.finished(&again, true);
    assert_eq!(matched(&route(&router, &third, &tokens)), (12, 13));
}

#[test]
fn instances_that_nobody_says_are_gone_make_room_too() {
    let router = KvCacheAware::new(&config());
    let mut fleet = fleet(&["x:0"]);
    for number in 1..500 {
        fleet = Fleet::build(Role::Generation, &[format!("x:{number}")], Some(&fleet));
        let pick = route(&router, &fleet, &prompt(number, 13));
        router.finished(&pick, true);
    }
    assert!(router.workers.read().slots() < 100);
    assert!(router.blocks() <= 100 * 3);
}

#[test]
fn exclusion_leaves_the_others_or_says_so() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1"]);
    let empty_prompt = Prompt::empty();
    let query = |exclude: usize| Query {
        scope: 0,
        key: None,
        prompt: &empty_prompt,
        exclude: Some(Exclusion::rebinding(fleet.instances()[exclude].id)),
        tokens: Some(&[1, 2, 3]),
    };
    assert_eq!(at(&router.route(&fleet, &query(0)).unwrap()), "b:1");
    router
        .learn(fleet.instances()[1].id, &facts(Some("v9"), None))
        .unwrap_err();
    let error = router.route(&fleet, &query(0)).unwrap_err();
    assert_eq!(
        error,
        RouteError::Excluded {
            role: Role::Generation
        }
    );
    let empty = Fleet::build::<&str>(Role::Generation, &[], None);
    let error = router.route(&empty, &query(0)).unwrap_err();
    assert_eq!(
        error,
        RouteError::Empty {
            role: Role::Generation
        }
    );
}

#[test]
fn a_pin_stays_at_an_instance_that_is_avoided_once() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1"]);
    let messages =
        RawValue::from_string(r#"[{"role": "user", "content": "hello"}]"#.to_owned()).unwrap();
    let prompt = Prompt::chat(Some(&messages), None);
    let route = |exclude| {
        let query = Query {
            scope: 0,
            key: None,
            prompt: &prompt,
            exclude,
            tokens: Some(&[1, 2, 3]),
        };
        let pick = router.route(&fleet, &query).unwrap();
        (pick.load.instance().id, pick.decision)
    };
    let (pinned, decision) = route(None);
    assert_eq!(decision, Decision::New);
    let (other, decision) = route(Some(Exclusion::once(pinned)));
    assert_eq!(decision, Decision::Overflow);
    assert_ne!(other, pinned);
    assert_eq!(route(None), (pinned, Decision::Bound));
    let unreachable = Some(Exclusion::rebinding(pinned));
    assert_eq!(route(unreachable), (other, Decision::Failover));
    assert_eq!(route(None), (other, Decision::Bound));
}

#[test]
fn a_changed_configuration_keeps_what_is_known() {
    let router = Arc::new(Router::new(&RouterConfig::KvCacheAware(config())));
    let fleet = fleet(&["a:1", "b:1"]);
    let empty_prompt = Prompt::empty();
    let query = |tokens| Query {
        scope: 0,
        key: None,
        prompt: &empty_prompt,
        exclude: None,
        tokens: Some(tokens),
    };
    let tokens = prompt(0, 13);
    let pick = router.route(&fleet, &query(&tokens)).unwrap();
    router.finished(&pick, true);
    let lighter = KvCacheAwareConfig {
        load_weight: 0.1,
        ..config()
    };
    let same = router.reconfigured(&RouterConfig::KvCacheAware(lighter));
    assert!(Arc::ptr_eq(&same, &router));
    assert_eq!(
        matched(&same.route(&fleet, &query(&tokens)).unwrap()),
        (12, 13)
    );
    let wider = KvCacheAwareConfig {
        tokens_per_block: Some(8),
        ..config()
    };
    router.reconfigured(&RouterConfig::KvCacheAware(wider));
    assert_eq!(
        matched(&same.route(&fleet, &query(&tokens)).unwrap()),
        (0, 13)
    );
}

#[test]
fn salted_prompts_share_only_with_their_salt() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1"]);
    let tokens = prompt(0, 13);
    let route = |salt: &str| {
        let body = format!(r#"{{"prompt": "x", "cache_salt": {salt}}}"#);
        let view = crate::wire::body::BodyView::parse(body.as_bytes()).unwrap();
        let pick = ask(&router, &fleet, &Prompt::of(&view), &tokens).unwrap();
        router.finished(&pick, true);
        matched(&pick).0
    };
    assert_eq!((route("\"one\""), route("\"one\"")), (0, 12));
    assert_eq!((route("\"two\""), route("null"), route("null")), (0, 0, 12));
}

#[test]
fn a_context_leg_is_needed_unless_nearly_all_is_held() {
    let kv = |match_length, num_tokens| KvMatch {
        match_length,
        num_tokens,
        family: Family::V1,
        blocks: Vec::new(),
    };
    assert!(kv(0, 1).needs_context(1_000), "nothing is held");
    assert!(kv(64, 165).needs_context(100));
    assert!(!kv(64, 164).needs_context(100));
    assert!(
        !kv(64, 40).needs_context(0),
        "a block that is not full counts as full"
    );
}

proptest! {
    /// The choice is the one that upstream's rules make from the instances' own sets of blocks.
    #[test]
    fn the_choice_is_by_the_rules(
        requests in prop::collection::vec((0..3_u32, 1..40_u32, any::<bool>()), 1..40),
    ) {
        let router = KvCacheAware::new(&config());
        let fleet = fleet(&["a:1", "b:1", "c:1"]);
        let mut sets = vec![std::collections::HashSet::new(); 3];
        let mut flying: Vec<Pick> = Vec::new();
        for (turn, (kind, length, ends)) in requests.into_iter().enumerate() {
            let tokens = prompt(kind * 1_000, length);
            let hashes = kv_hash::v1_block_keys(&tokens, SIZE, None);
            let depth = |set: &std::collections::HashSet<u64>| {
                hashes.iter().take_while(|hash| set.contains(*hash)).count()
            };
            let active = |at: usize| fleet.instances()[at].in_flight() as f64;
            let scores: Vec<f64> = (0..3)
                .map(|at| depth(&sets[at]) as f64 - 0.25 * active(at))
                .collect();
            let best = scores.iter().copied().fold(f64::MIN, f64::max);
            let tied: Vec<usize> = (0..3).filter(|at| scores[*at] == best).collect();
            let expected = tied[turn % tied.len()];
            let held = depth(&sets[expected]) as u64 * u64::from(SIZE);
            let pick = route(&router, &fleet, &tokens);
            prop_assert_eq!(pick.load.instance().id, fleet.instances()[expected].id);
            prop_assert_eq!(matched(&pick), (held, u64::from(length)));
            if ends {
                router.finished(&pick, true);
                sets[expected].extend(hashes);
            } else {
                flying.push(pick);
            }
        }
        drop(flying);
        prop_assert!(fleet.instances().iter().all(|instance| instance.load() == 0));
    }
}

#[test]
fn threads_agree_on_the_end() {
    let router = KvCacheAware::new(&config());
    let fleet = fleet(&["a:1", "b:1", "c:1", "d:1"]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (router, fleet) = (&router, &fleet);
            scope.spawn(move || {
                for number in 0..200 {
                    let pick = route(router, fleet, &prompt(thread * 10 + number % 7, 21));
                    router.finished(&pick, true);
                    router
                        .learn(pick.load.instance().id, &facts(None, Some(SIZE)))
                        .unwrap();
                    router
                        .apply_events(fleet.instances()[0].id, &[event(Change::Removed, vec![1])]);
                }
            });
        }
    });
    assert!(
        fleet
            .instances()
            .iter()
            .all(|instance| instance.in_flight() == 0)
    );
    assert!(router.blocks() > 0);
}
