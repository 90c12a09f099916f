use proptest::prelude::*;

use super::*;

fn aliases(fleet: &Fleet) -> Vec<&str> {
    fleet
        .instances()
        .iter()
        .map(|instance| &*instance.alias)
        .collect()
}

#[test]
fn instances_that_stay_keep_their_counts_and_names() {
    let first = Fleet::build(Role::Context, &["a:1", "b:1", "c:1"], None);
    let guard = first.at("b:1").unwrap().reserve(7);
    let second = Fleet::build(Role::Context, &["c:1", "b:1", "d:1"], Some(&first));
    assert_eq!(aliases(&second), ["context-2", "context-1", "context-3"]);
    let kept = second.get(guard.instance().id).unwrap();
    assert_eq!((kept.in_flight(), kept.load()), (1, 7));
    drop(guard);
    assert_eq!((kept.in_flight(), kept.load()), (0, 0));
    assert_eq!(second.removed_since(&first), [first.at("a:1").unwrap().id]);
    let third = Fleet::build(Role::Context, &["c:1", "b:1", "d:1", "a:1"], Some(&second));
    assert_eq!(&*third.at("a:1").unwrap().alias, "context-0");
}

#[test]
fn a_removed_instance_is_seen_until_its_last_request_is_over() {
    let first = Fleet::build(Role::Generation, &["a:1", "b:1"], None);
    let guard = first.at("a:1").unwrap().reserve(1);
    let second = Fleet::build(Role::Generation, &["b:1"], Some(&first));
    assert!(second.get(guard.instance().id).is_none());
    assert_eq!(second.visible().count(), 2);
    let third = Fleet::build(Role::Generation, &["b:1", "a:1"], Some(&second));
    assert_eq!(aliases(&third), ["generation-1", "generation-2"]);
    assert_eq!(third.at("a:1").unwrap().in_flight(), 0);
    assert_eq!(third.visible().count(), 3);
    drop(guard);
    assert_eq!(third.visible().count(), 2);
    assert_eq!(third.at("a:1").unwrap().in_flight(), 0);
}

#[test]
fn a_request_that_arrives_by_an_old_snapshot_is_seen_too() {
    let first = Fleet::build(Role::Context, &["a:1"], None);
    let second = Fleet::build(Role::Context, &["b:1"], Some(&first));
    let late = first.at("a:1").unwrap().reserve(1);
    assert_eq!(second.visible().count(), 2);
    drop(late);
    assert_eq!(second.visible().count(), 1);
}

#[test]
fn an_address_given_twice_counts_once() {
    let fleet = Fleet::build(Role::Aggregated, &["a:1", "a:1"], None);
    assert_eq!(aliases(&fleet), ["aggregated-0"]);
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(usize, u64),
    Drop(usize),
    Rebuild(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<usize>(), 0..1000u64).prop_map(|(at, weight)| Step::Reserve(at, weight)),
        3 => any::<usize>().prop_map(Step::Drop),
        2 => prop::collection::vec(0..5u8, 0..6).prop_map(Step::Rebuild),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn loads_are_what_is_held_and_end_at_zero(steps in steps()) {
        let mut fleet = Fleet::build(Role::Context, &["0:1", "1:1"], None);
        let mut guards: Vec<LoadGuard> = Vec::new();
        let mut all: Vec<Arc<Instance>> = fleet.instances().to_vec();
        for step in steps {
            match step {
                Step::Reserve(at, weight) => {
                    if let Some(instance) = fleet.instances().get(at % fleet.instances().len().max(1)) {
                        guards.push(instance.reserve(weight));
                    }
                }
                Step::Drop(at) if !guards.is_empty() => drop(guards.swap_remove(at % guards.len())),
                Step::Drop(_) => {}
                Step::Rebuild(hosts) => {
                    let urls: Vec<String> = hosts.iter().map(|host| format!("{host}:1")).collect();
                    fleet = Fleet::build(Role::Context, &urls, Some(&fleet));
                    all.extend(fleet.instances().iter().cloned());
                }
            }
            for instance in &all {
                let held = guards.iter().filter(|guard| guard.instance().id == instance.id);
                prop_assert_eq!(instance.in_flight(), held.clone().count() as u64);
                prop_assert_eq!(instance.load(), held.map(LoadGuard::weight).sum::<u64>());
            }
            let visible: Vec<_> = fleet.visible().map(|instance| &instance.alias).collect();
            let distinct: HashSet<_> = visible.iter().collect();
            prop_assert_eq!(distinct.len(), visible.len());
            for guard in &guards {
                prop_assert!(fleet.visible().any(|instance| instance.id == guard.instance().id));
            }
        }
        guards.clear();
        prop_assert!(all.iter().all(|instance| instance.in_flight() == 0 && instance.load() == 0));
    }
}
