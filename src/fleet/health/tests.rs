use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::*;
use crate::{
    config::EjectionConfig,
    fleet::{Fleet, Instance, Rules},
    wire::Role,
};

const SECOND: Duration = Duration::from_secs(1);

fn rules() -> HealthConfig {
    HealthConfig {
        slow_start: 10 * SECOND,
        ejection: EjectionConfig {
            min_requests: 4,
            ..EjectionConfig::default()
        },
        ..HealthConfig::default()
    }
}

fn fleet(urls: &[&str]) -> Fleet {
    Fleet::build(Role::Context, urls, None).with_rules(&rules(), Rules::default())
}

fn at<'f>(fleet: &'f Fleet, address: &str) -> &'f Arc<Instance> {
    fleet.at(address).unwrap()
}

fn observe(instance: &Instance, observation: Observation, count: u32, now: Instant) {
    (0..count).for_each(|_| instance.health().observe_at(observation, now));
}

fn bad() -> Result<(), String> {
    Err("no connection could be made".to_owned())
}

fn go_down(instance: &Instance) {
    let changes: Vec<Change> = (0..3).map(|_| instance.health().probed(bad())).collect();
    assert_eq!(changes.last(), Some(&Change::Down));
}

fn is_done(future: impl Future<Output = ()>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).poll(&mut context) == Poll::Ready(())
}

#[test]
fn probes_in_a_row_decide() {
    let fleet = fleet(&["a:1"]);
    let health = at(&fleet, "a:1").health();
    assert!(health.is_usable(), "before the first probe answers");
    assert_eq!(health.probed(bad()), Change::Nothing);
    assert_eq!(health.probed(bad()), Change::Nothing);
    assert_eq!(health.probed(Ok(())), Change::Nothing);
    assert_eq!(health.probed(bad()), Change::Nothing);
    assert_eq!(health.probed(bad()), Change::Nothing);
    assert!(health.is_usable(), "never three in a row");
    assert_eq!(health.probed(bad()), Change::Down);
    assert!(!health.is_usable());
    assert_eq!(health.describe().name, "down");
    assert_eq!(
        health.describe().why.unwrap(),
        "3 bad probes in a row: no connection could be made"
    );
    assert_eq!(health.probed(Ok(())), Change::Nothing);
    assert_eq!(health.probed(Ok(())), Change::Up);
    assert!(health.is_usable());
}

#[test]
fn an_ejection_ends_by_itself_and_the_share_grows() {
    let fleet = fleet(&["a:1", "b:1"]);
    let (now, instance) = (Instant::now(), at(&fleet, "a:1"));
    let health = instance.health();
    observe(instance, Observation::Reset, 4, now);
    assert_eq!(health.describe().name, "ejected");
    assert_eq!(
        health.describe().why.unwrap(),
        "4 of 4 requests failed (reset)"
    );
    assert_eq!(health.standing_at(now + 9 * SECOND), EJECTED);
    let back = now + 10 * SECOND;
    assert_eq!(health.standing_at(back), SLOW);
    assert_eq!(health.weight_at(back), LEAST_WEIGHT);
    let half = health.weight_at(back + 5 * SECOND);
    assert!((half - 0.5).abs() < 0.01, "{half}");
    assert_eq!(health.weight_at(back + 10 * SECOND), 1.0);
    assert_eq!(health.standing_at(back), 0);
}

#[test]
fn case_h21_the_last_usable_instance_is_never_ejected() {
    let now = Instant::now();
    let one = fleet(&["a:1"]);
    observe(at(&one, "a:1"), Observation::Connect, 100, now);
    assert!(at(&one, "a:1").health().is_usable());

    let three = fleet(&["a:1", "b:1", "c:1"]);
    for address in ["a:1", "b:1", "c:1"] {
        observe(at(&three, address), Observation::Connect, 100, now);
    }
    let usable = |fleet: &Fleet| {
        let all = fleet.instances().iter();
        all.filter(|instance| instance.health().is_usable()).count()
    };
    assert_eq!(usable(&three), 2, "half of three is one");

    let two = fleet(&["a:1", "b:1"]);
    go_down(at(&two, "a:1"));
    observe(at(&two, "b:1"), Observation::Connect, 100, now);
    assert_eq!(usable(&two), 1, "the other one is down by probes");
}

#[test]
fn an_instance_that_left_is_not_counted_any_more() {
    let now = Instant::now();
    let first = fleet(&["a:1", "b:1"]);
    observe(at(&first, "a:1"), Observation::Connect, 4, now);
    let second = Fleet::build(Role::Context, &["b:1", "c:1"], Some(&first));
    observe(at(&second, "b:1"), Observation::Connect, 4, now);
    assert!(!at(&second, "b:1").health().is_usable());
    assert_eq!(at(&first, "a:1").health().describe().name, "removed");
}

#[test]
fn health_survives_a_change_of_the_fleet_and_ends_with_its_rules() {
    let first = fleet(&["a:1", "b:1"]);
    go_down(at(&first, "a:1"));
    let second = Fleet::build(Role::Context, &["a:1", "c:1"], Some(&first));
    assert!(!at(&second, "a:1").health().is_usable());
    let unprobed = HealthConfig {
        active: false,
        ..rules()
    };
    let third = Fleet::build(Role::Context, &["a:1"], Some(&second))
        .with_rules(&unprobed, Rules::default());
    assert!(at(&third, "a:1").health().is_usable());
}

#[test]
fn of_two_words_the_stricter_empties() {
    let fleet = fleet(&["a:1"]);
    let health = at(&fleet, "a:1").health();
    health.drain(DrainedBy::Operator, Some(DrainMode::NewBindings));
    assert!(!health.takes_new(true) && health.takes_bound(false));
    health.drain(DrainedBy::Configuration, Some(DrainMode::NewRequests));
    assert!(!health.takes_bound(true));
    health.drain(DrainedBy::Configuration, None);
    assert!(health.takes_bound(false) && !health.is_usable());
    health.drain(DrainedBy::Operator, None);
    assert!(health.is_usable());
}

#[test]
fn a_loss_is_told_to_what_was_placed_before() {
    let first = fleet(&["a:1", "b:1"]);
    let instance = at(&first, "a:1");
    let (lost, placed) = (instance.lost(), instance.reserve(1));
    let mut lost = pin!(lost);
    assert!(!is_done(lost.as_mut()));
    go_down(instance);
    assert!(is_done(lost));
    assert!(is_done(placed.lost()));
    // What is sent there all the same, since nothing else is left, may go on.
    let late = instance.reserve(1);
    assert!(!is_done(late.lost()));
    let _second = Fleet::build(Role::Context, &["b:1"], Some(&first));
    assert!(is_done(late.lost()));
}

#[test]
fn an_instance_that_is_emptied_or_answers_errors_is_not_lost() {
    let fleet = fleet(&["a:1", "b:1"]);
    let instance = at(&fleet, "a:1");
    let placed = instance.reserve(1);
    let drain = Some(DrainMode::NewRequests);
    instance.health().drain(DrainedBy::Operator, drain);
    instance.health().drain(DrainedBy::Operator, None);
    observe(instance, Observation::ServerError, 4, Instant::now());
    assert_eq!(instance.health().describe().name, "ejected");
    assert!(!is_done(placed.lost()));
}
