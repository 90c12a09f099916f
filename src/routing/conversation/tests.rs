use std::sync::Arc;

use serde_json::value::RawValue;

use super::*;
use crate::{
    config::RouterConfig,
    routing::{Exclusion, Router, Session},
    wire::{Role, prompt::Prompt},
};

fn router(max_sessions: usize) -> Arc<Router> {
    let config = ConversationConfig {
        max_sessions,
        tokens_per_block: 4,
        ..Default::default()
    };
    Arc::new(Router::new(&RouterConfig::Conversation(config)))
}

fn fleet(urls: &[&str], previous: Option<&Fleet>) -> Fleet {
    Fleet::build(Role::Context, urls, previous)
}

fn query<'a>(key: &'a str, prompt: &'a Prompt<'a>) -> Query<'a> {
    Query {
        scope: 0,
        key: Some(key),
        prompt,
        exclude: None,
        tokens: None,
    }
}

#[test]
fn a_key_stays_where_it_is_while_that_lives() {
    let router = router(8);
    let first = fleet(&["a:1", "b:1"], None);
    let prompt = Prompt::empty();
    let one = router.route(&first, &query("p", &prompt)).unwrap();
    assert_eq!(one.decision, Decision::New);
    let two = router.route(&first, &query("p", &prompt)).unwrap();
    assert_eq!(two.decision, Decision::Bound);
    assert_eq!(two.load.instance().id, one.load.instance().id);

    let second = fleet(&["b:1"], Some(&first));
    let three = router.route(&second, &query("p", &prompt)).unwrap();
    assert_eq!(three.decision, Decision::Failover);
    assert_eq!(&*three.load.instance().address, "b:1");
    let four = router.route(&second, &query("p", &prompt)).unwrap();
    assert_eq!(four.decision, Decision::Bound);

    router.forget(&[three.load.instance().id]);
    assert_eq!((router.bindings(), router.peek("p")), (0, None));
    let five = router.route(&second, &query("p", &prompt)).unwrap();
    assert_eq!(five.decision, Decision::New);
}

#[test]
fn exclusion_binds_anew_or_fails_without_a_trace() {
    let router = router(8);
    let fleet = fleet(&["a:1"], None);
    let prompt = Prompt::empty();
    let pick = router.route(&fleet, &query("p", &prompt)).unwrap();
    let excluded = Query {
        exclude: Some(Exclusion::rebinding(pick.load.instance().id)),
        ..query("p", &prompt)
    };
    assert_eq!(
        router.route(&fleet, &excluded).unwrap_err(),
        RouteError::Excluded {
            role: Role::Context
        }
    );
    assert_eq!(router.peek("p"), Some(pick.load.instance().id));
    let empty = Fleet::build::<&str>(Role::Context, &[], None);
    assert_eq!(
        router.route(&empty, &query("p", &prompt)).unwrap_err(),
        RouteError::Empty {
            role: Role::Context
        }
    );
}

#[test]
fn a_family_that_arrives_at_once_meets() {
    let router = router(1000);
    let urls: Vec<String> = (0..16).map(|host| format!("{host}:1")).collect();
    let fleet = Fleet::build(Role::Context, &urls, None);
    for family in 0..200 {
        let key = family.to_string();
        let places: Vec<InstanceId> = std::thread::scope(|scope| {
            let route = || {
                let prompt = Prompt::empty();
                router
                    .route(&fleet, &query(&key, &prompt))
                    .unwrap()
                    .load
                    .instance()
                    .id
            };
            let members: Vec<_> = (0..4).map(|_| scope.spawn(route)).collect();
            members
                .into_iter()
                .map(|member| member.join().unwrap())
                .collect()
        });
        assert!(places.iter().all(|place| *place == places[0]));
    }
    assert!(
        fleet
            .instances()
            .iter()
            .all(|instance| instance.load() == 0)
    );
}

fn text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).unwrap()
}

#[test]
fn a_key_that_avoids_its_instance_once_stays_bound() {
    let router = router(8);
    let fleet = fleet(&["a:1", "b:1"], None);
    let prompt = Prompt::empty();
    let first = router.route(&fleet, &query("p", &prompt)).unwrap();
    let bound = first.load.instance().id;
    let once = Query {
        exclude: Some(Exclusion::once(bound)),
        ..query("p", &prompt)
    };
    let second = router.route(&fleet, &once).unwrap();
    assert_eq!(second.decision, Decision::Overflow);
    assert_ne!(second.load.instance().id, bound);
    assert_eq!(router.peek("p"), Some(bound));
    let third = router.route(&fleet, &query("p", &prompt)).unwrap();
    assert_eq!(third.decision, Decision::Bound);
    assert_eq!(third.load.instance().id, bound);

    let unreachable = Query {
        exclude: Some(Exclusion::rebinding(bound)),
        ..query("p", &prompt)
    };
    let fourth = router.route(&fleet, &unreachable).unwrap();
    assert_eq!(fourth.decision, Decision::Failover);
    assert_eq!(router.peek("p"), Some(fourth.load.instance().id));
    let fresh = Query {
        exclude: Some(Exclusion::once(bound)),
        ..query("q", &prompt)
    };
    assert_eq!(
        router.route(&fleet, &fresh).unwrap().decision,
        Decision::New
    );
    assert!(router.peek("q").is_some_and(|other| other != bound));
}

#[test]
fn a_key_stays_bound_to_an_instance_that_failed_before_the_last_one() {
    let router = router(8);
    let fleet = fleet(&["a:1", "b:1", "c:1"], None);
    let prompt = Prompt::empty();
    let route = |exclude| {
        let query = Query {
            exclude,
            ..query("p", &prompt)
        };
        let pick = router.route(&fleet, &query);
        pick.map(|pick| (pick.load.instance().id, pick.decision))
    };
    let (first, _) = route(None).unwrap();
    let (second, _) = route(Some(Exclusion::once(first))).unwrap();
    let both = Exclusion::rebinding(second).after(&[first]);
    let (third, decision) = route(Some(both)).unwrap();
    assert!(![first, second].contains(&third));
    assert_eq!(decision, Decision::Overflow);
    assert_eq!(router.peek("p"), Some(first));
    let all = Exclusion::once(third).after(&[first, second]);
    assert!(matches!(route(Some(all)), Err(RouteError::Excluded { .. })));
    let bound = Exclusion::rebinding(first).after(&[second]);
    assert_eq!(route(Some(bound)).unwrap(), (third, Decision::Failover));
}

#[test]
fn fewer_exclusions_are_the_last_one_and_then_none() {
    let fleet = fleet(&["a:1", "b:1"], None);
    let [one, two] = [0, 1].map(|at| fleet.instances()[at].id);
    let prompt = Prompt::empty();
    let all = Query {
        exclude: Some(Exclusion::once(one).after(&[two])),
        ..query("p", &prompt)
    };
    let last = all.with_fewer().unwrap();
    assert_eq!(last.exclude, Some(Exclusion::once(one)));
    let none = last.with_fewer().unwrap();
    assert_eq!(none.exclude, None);
    assert!(none.with_fewer().is_none());
}

#[test]
fn a_session_found_by_its_prompt_stays_where_it_is_too() {
    let router = router(8);
    let fleet = fleet(&["a:1", "b:1"], None);
    let prompt = text("abcdefghijklmnopZ");
    let prompt = Prompt::completion(Some(&prompt));
    let route = |exclude| {
        let query = Query {
            scope: 0,
            key: None,
            prompt: &prompt,
            exclude,
            tokens: None,
        };
        router.route(&fleet, &query).unwrap().load.instance().id
    };
    let first = route(None);
    assert_ne!(route(Some(Exclusion::once(first))), first);
    assert_eq!((route(None), router.bindings()), (first, 1));
}

fn sessions(router: &Router) -> Vec<Session> {
    router.conversation().unwrap().sessions()
}

#[test]
fn a_growing_prompt_without_a_key_finds_its_session() {
    let router = router(2);
    let fleet = fleet(&["a:1", "b:1"], None);
    let route = |prompt: &str| {
        let prompt = text(prompt);
        let prompt = Prompt::completion(Some(&prompt));
        let query = Query {
            scope: 0,
            key: None,
            prompt: &prompt,
            exclude: None,
            tokens: None,
        };
        router.route(&fleet, &query).unwrap()
    };
    let first = route("abcdefghijklmnopZ");
    assert_eq!(
        (first.decision, first.load.weight()),
        (Decision::Unkeyed, 16)
    );
    let grown = route("abcdefghijklmnopqrstZ");
    assert_eq!(grown.load.instance().id, first.load.instance().id);
    assert_eq!(
        sessions(&router)
            .iter()
            .map(|session| session.blocks)
            .collect::<Vec<_>>(),
        [5]
    );
    let other = route("something else altogether");
    assert_ne!(other.load.instance().id, first.load.instance().id);
    assert_eq!(router.bindings(), 2);
    route("and a third one, which evicts the first");
    assert_eq!((router.bindings(), router.evictions()), (2, 1));
}

#[test]
fn new_settings_keep_the_bindings() {
    let router = router(8);
    let fleet = fleet(&["a:1"], None);
    let prompt = Prompt::empty();
    for key in ["a", "b", "c"] {
        let _ = router.route(&fleet, &query(key, &prompt)).unwrap();
    }
    let long = text("a prompt with several blocks");
    let long = Prompt::completion(Some(&long));
    let _ = router
        .route(
            &fleet,
            &Query {
                scope: 0,
                key: None,
                prompt: &long,
                exclude: None,
                tokens: None,
            },
        )
        .unwrap();
    let smaller = ConversationConfig {
        max_sessions: 2,
        ..Default::default()
    };
    let same = router.reconfigured(&RouterConfig::Conversation(smaller));
    assert!(Arc::ptr_eq(&same, &router));
    assert_eq!((router.bindings(), router.evictions()), (2, 2));
    assert!(router.peek("c").is_some());
    assert!(sessions(&router).iter().all(|session| session.blocks == 0));
    let other = router.reconfigured(&RouterConfig::RoundRobin);
    assert_eq!(other.bindings(), 0);
}

#[test]
fn the_threshold_is_a_share_of_the_blocks() {
    for blocks in 1..200usize {
        for threshold in [0.0, 0.1, 0.5, 0.75, 0.9, 1.0] {
            let least = (0..=blocks).find(|&n| n as f64 / blocks as f64 >= threshold);
            assert_eq!(Some(enough(blocks, threshold)), least);
        }
    }
    assert!(enough(10, 1.5) > 10);
    assert_eq!(enough(10, f64::NAN), usize::MAX);
}
