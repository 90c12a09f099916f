//! What health, draining and full instances mean to every router.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::{
    config::{DrainMode, HealthConfig, OverflowConfig, RouterConfig},
    fleet::{Rules, health::DrainedBy},
};

const TOKENS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

fn routers() -> [Router; 4] {
    [
        RouterConfig::RoundRobin,
        RouterConfig::LoadBalancing(Default::default()),
        RouterConfig::Conversation(Default::default()),
        RouterConfig::KvCacheAware(Default::default()),
    ]
    .map(|config| Router::new(&config))
}

fn fleet_with(urls: &[&str], slow_start: u64, overflow: OverflowConfig) -> Fleet {
    let health = HealthConfig {
        unhealthy_after: 1,
        healthy_after: 1,
        slow_start: std::time::Duration::from_secs(slow_start),
        ..Default::default()
    };
    let rules = Rules {
        overflow,
        ..Default::default()
    };
    Fleet::build(Role::Generation, urls, None).with_rules(&health, rules)
}

fn fleet(urls: &[&str]) -> Fleet {
    fleet_with(urls, 0, OverflowConfig::default())
}

fn at<'f>(fleet: &'f Fleet, address: &str) -> &'f Arc<Instance> {
    fleet.at(address).unwrap()
}

fn go_down(fleet: &Fleet, address: &str) {
    at(fleet, address).health().probed(Err("test".to_owned()));
}

fn come_back(fleet: &Fleet, address: &str) {
    at(fleet, address).health().probed(Ok(()));
}

fn drain(fleet: &Fleet, address: &str, mode: Option<DrainMode>) {
    at(fleet, address).health().drain(DrainedBy::Operator, mode);
}

/// A chat of one message, which is its session to whatever router.
struct Asked {
    session: String,
    messages: Box<RawValue>,
}

impl Asked {
    fn new(session: &str) -> Self {
        let messages = format!(r#"[{{"role": "user", "content": "of {session}"}}]"#);
        Self {
            session: session.to_owned(),
            messages: RawValue::from_string(messages).unwrap(),
        }
    }

    fn route(
        &self,
        router: &Router,
        fleet: &Fleet,
        exclude: Option<Exclusion>,
    ) -> Result<Pick, RouteError> {
        let prompt = Prompt::chat(Some(&self.messages), None);
        let query = Query {
            scope: 0,
            key: Some(&self.session),
            prompt: &prompt,
            exclude,
            tokens: Some(&TOKENS),
        };
        router.route(fleet, &query)
    }
}

fn pick(router: &Router, fleet: &Fleet, session: &str) -> (String, Decision) {
    let pick = Asked::new(session).route(router, fleet, None).unwrap();
    (pick.load.instance().address.to_string(), pick.decision)
}

fn places(router: &Router, fleet: &Fleet, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| pick(router, fleet, &format!("n{number}")).0)
        .collect()
}

#[test]
fn what_is_down_or_emptied_gets_nothing_new() {
    for router in routers() {
        let fleet = fleet(&["a:1", "b:1", "c:1"]);
        go_down(&fleet, "a:1");
        drain(&fleet, "b:1", Some(DrainMode::NewBindings));
        assert!(
            places(&router, &fleet, 6)
                .iter()
                .all(|place| place == "c:1")
        );
        come_back(&fleet, "a:1");
        drain(&fleet, "b:1", None);
        for address in ["a:1", "b:1"] {
            let mut others = (10..40).map(|number| pick(&router, &fleet, &number.to_string()).0);
            assert!(
                others.any(|place| place == address),
                "{address} is in again"
            );
        }
    }
}

#[test]
fn the_others_share_equally_what_one_does_not_get() {
    for router in routers() {
        let fleet = fleet(&["a:1", "b:1", "c:1"]);
        go_down(&fleet, "b:1");
        let places = places(&router, &fleet, 20);
        let of_a = places.iter().filter(|place| *place == "a:1").count();
        assert_eq!(of_a, 10, "{places:?}");
    }
}

#[test]
fn case_h21_health_is_ignored_where_nothing_is_usable() {
    for router in routers() {
        let fleet = fleet(&["a:1", "b:1", "c:1"]);
        let (bound, _) = pick(&router, &fleet, "s");
        for address in ["a:1", "b:1", "c:1"] {
            go_down(&fleet, address);
        }
        drain(&fleet, "c:1", Some(DrainMode::NewRequests));
        let places = places(&router, &fleet, 12);
        for address in ["a:1", "b:1"] {
            assert!(places.iter().any(|place| place == address), "{places:?}");
        }
        assert!(
            places.iter().all(|place| place != "c:1"),
            "an order stays one"
        );
        if let (place, Decision::Bound) = pick(&router, &fleet, "s") {
            assert_eq!(place, bound);
        }
    }
}

#[test]
fn a_healthy_instance_that_is_excluded_is_better_than_one_that_is_down() {
    for router in routers() {
        let fleet = fleet(&["a:1", "b:1"]);
        go_down(&fleet, "b:1");
        let exclude = Some(Exclusion::once(at(&fleet, "a:1").id));
        let error = Asked::new("s").route(&router, &fleet, exclude).unwrap_err();
        let role = Role::Generation;
        assert_eq!(error, RouteError::Excluded { role });
        drain(&fleet, "a:1", Some(DrainMode::NewBindings));
        drain(&fleet, "b:1", Some(DrainMode::NewRequests));
        let error = Asked::new("t").route(&router, &fleet, None).unwrap_err();
        assert_eq!(error, RouteError::Draining { role });
    }
}

/// The routers with bindings, and a session that is bound to the first instance of three.
fn bound(overflow: OverflowConfig) -> [(Router, Fleet, Asked); 2] {
    let [_, _, conversation, by_cache] = routers();
    [conversation, by_cache].map(|router| {
        let fleet = fleet_with(&["a:1", "b:1", "c:1"], 0, overflow);
        let mut sessions = (0..9).map(|number| format!("s{number}"));
        let session = sessions.find(|session| pick(&router, &fleet, session).0 == "a:1");
        let asked = Asked::new(&session.unwrap());
        (router, fleet, asked)
    })
}

#[test]
fn a_bound_session_fails_over_once_and_stays() {
    for (router, fleet, asked) in bound(OverflowConfig::default()) {
        go_down(&fleet, "a:1");
        let (place, decision) = pick(&router, &fleet, &asked.session);
        assert_eq!(decision, Decision::Failover);
        assert_ne!(place, "a:1");
        come_back(&fleet, "a:1");
        for _ in 0..4 {
            let (now, decision) = pick(&router, &fleet, &asked.session);
            assert_eq!((now, decision), (place.clone(), Decision::Bound));
        }
    }
}

#[test]
fn an_instance_that_is_emptied_keeps_its_sessions_or_loses_them_as_told() {
    for (router, fleet, asked) in bound(OverflowConfig::default()) {
        drain(&fleet, "a:1", Some(DrainMode::NewBindings));
        let kept = pick(&router, &fleet, &asked.session);
        assert_eq!(kept, ("a:1".to_owned(), Decision::Bound));
        drain(&fleet, "a:1", Some(DrainMode::NewRequests));
        let (place, decision) = pick(&router, &fleet, &asked.session);
        assert_eq!(decision, Decision::Failover);
        assert_ne!(place, "a:1");
    }
}

#[test]
fn a_full_instance_sends_its_sessions_elsewhere_for_once() {
    let overflow = OverflowConfig {
        max_in_flight: Some(2),
        max_tokens: None,
    };
    for (router, fleet, asked) in bound(overflow) {
        let busy: Vec<Pick> = (0..2)
            .map(|_| asked.route(&router, &fleet, None).unwrap())
            .collect();
        assert!(busy.iter().all(|pick| pick.decision == Decision::Bound));
        let b = at(&fleet, "b:1").reserve(1);
        let over = asked.route(&router, &fleet, None).unwrap();
        let place = &*over.load.instance().address;
        assert_eq!((place, over.decision), ("c:1", Decision::Overflow));
        drop(busy);
        let back = pick(&router, &fleet, &asked.session);
        assert_eq!(
            back,
            ("a:1".to_owned(), Decision::Bound),
            "the binding stays"
        );

        let full: Vec<LoadGuard> = fleet
            .instances()
            .iter()
            .flat_map(|instance| [instance.reserve(1), instance.reserve(1)])
            .collect();
        let stays = pick(&router, &fleet, &asked.session);
        assert_eq!(stays, ("a:1".to_owned(), Decision::Bound), "all are full");
        drop((full, b));
    }
}

#[test]
fn tokens_in_flight_fill_an_instance_too() {
    let overflow = OverflowConfig {
        max_in_flight: None,
        max_tokens: Some(100),
    };
    for (router, fleet, asked) in bound(overflow) {
        let most = at(&fleet, "a:1").reserve(99);
        let below = pick(&router, &fleet, &asked.session);
        assert_eq!(below, ("a:1".to_owned(), Decision::Bound));
        let one_more = at(&fleet, "a:1").reserve(1);
        assert_eq!(pick(&router, &fleet, &asked.session).1, Decision::Overflow);
        drop((most, one_more));
    }
}

#[test]
fn case_h04_a_busy_instance_moves_nobody_elses_session() {
    for overflow in [None, Some(4)] {
        let overflow = OverflowConfig {
            max_in_flight: overflow,
            max_tokens: None,
        };
        for (router, fleet, asked) in bound(overflow) {
            let others: Vec<_> = (20..40)
                .map(|number| number.to_string())
                .map(|session| (pick(&router, &fleet, &session).0, session))
                .filter(|(place, _)| place != "a:1")
                .collect();
            assert!(!others.is_empty());
            let hot: Vec<LoadGuard> = (0..50).map(|_| at(&fleet, "a:1").reserve(1000)).collect();
            for (place, session) in &others {
                let now = pick(&router, &fleet, session);
                assert_eq!(now, (place.clone(), Decision::Bound));
            }
            drop(hot);
            let own = pick(&router, &fleet, &asked.session);
            assert_eq!(own, ("a:1".to_owned(), Decision::Bound));
        }
    }
}

#[test]
fn what_came_back_gets_its_share_little_by_little() {
    for router in routers() {
        let fleet = fleet_with(&["a:1", "b:1"], 3600, OverflowConfig::default());
        go_down(&fleet, "a:1");
        come_back(&fleet, "a:1");
        let places = places(&router, &fleet, 100);
        let of_a = places.iter().filter(|place| *place == "a:1").count();
        assert!((1..=8).contains(&of_a), "{of_a} of 100");
        // What is alone is not spared.
        go_down(&fleet, "b:1");
        assert_eq!(pick(&router, &fleet, "alone").0, "a:1");
    }
}

#[test]
fn what_came_back_is_not_flooded_for_being_idle() {
    let [_, by_load, ..] = routers();
    let urls = ["a:1", "b:1", "c:1", "d:1"];
    let fleet = fleet_with(&urls, 3600, OverflowConfig::default());
    let busy: Vec<LoadGuard> = urls[1..]
        .iter()
        .flat_map(|url| (0..20).map(|_| at(&fleet, url).reserve(1)))
        .collect();
    go_down(&fleet, "a:1");
    come_back(&fleet, "a:1");
    let held: Vec<Pick> = (0..60)
        .map(|number| {
            let asked = Asked::new(&number.to_string());
            asked.route(&by_load, &fleet, None).unwrap()
        })
        .collect();
    let of_a = at(&fleet, "a:1").in_flight();
    assert!((1..=3).contains(&of_a), "{of_a} of 60 where others have 20");
    drop((held, busy));
}

proptest! {
    /// Whatever is down and emptied, a usable instance is chosen where there is one, and somebody
    /// wherever anybody may be.
    #[test]
    fn usable_instances_first_and_nobody_is_refused_for_health(
        standing in prop::collection::vec(0..4u8, 1..6),
        sessions in prop::collection::vec(0..5u8, 1..12),
    ) {
        let urls: Vec<String> = (0..standing.len()).map(|host| format!("{host}:1")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        for router in routers() {
            let fleet = fleet(&urls);
            for (url, standing) in urls.iter().zip(&standing) {
                if standing & 1 != 0 {
                    go_down(&fleet, url);
                }
                if standing & 2 != 0 {
                    drain(&fleet, url, Some(DrainMode::NewRequests));
                }
            }
            let usable = standing.contains(&0);
            for session in &sessions {
                let asked = Asked::new(&session.to_string());
                match asked.route(&router, &fleet, None) {
                    Ok(pick) => {
                        let health = pick.load.instance().health();
                        prop_assert_eq!(health.is_usable(), usable);
                        prop_assert!(!health.is_draining());
                    }
                    Err(error) => {
                        let role = Role::Generation;
                        prop_assert_eq!(error, RouteError::Draining { role });
                        prop_assert!(standing.iter().all(|standing| standing & 2 != 0));
                    }
                }
            }
        }
    }
}
