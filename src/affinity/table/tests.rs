use proptest::prelude::*;

use super::*;

fn key(number: u64) -> AffinityKey {
    AffinityKey::synthetic(number)
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut table = BindingTable::new(2);
    assert_eq!(table.insert(key(1), 'a'), None);
    assert_eq!(table.insert(key(2), 'b'), None);
    assert_eq!(table.get_touch(key(1)), Some('a'));
    assert_eq!(table.insert(key(3), 'c'), Some((key(2), 'b')));
    assert_eq!(table.peek(key(1)), Some('a'));
    assert_eq!(table.peek(key(2)), None);
    assert_eq!(table.len(), 2);
}

#[test]
fn a_bound_of_nothing_holds_one() {
    let mut table = BindingTable::new(0);
    table.insert(key(1), 1);
    assert_eq!(table.insert(key(2), 2), Some((key(1), 1)));
    assert_eq!(table.iter().collect::<Vec<_>>(), [(key(2), 2)]);
}

#[test]
fn an_entry_with_a_binding_costs_at_most_64_bytes() {
    type Binding = (std::num::NonZeroU32, Option<std::num::NonZeroU32>);
    let bound = 1 << 20;
    let mut table = BindingTable::<Binding>::new(bound);
    let binding = (std::num::NonZeroU32::MIN, None);
    for number in 0..bound as u64 + 200_000 {
        table.insert(key(number), binding);
    }
    assert_eq!(table.len(), bound);
    assert!(
        table.allocated() / bound <= 64,
        "{} bytes",
        table.allocated() / bound
    );
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u32),
    Touch(u64),
    Peek(u64),
    Remove(u64),
    RetainOdd,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..12u64, any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
        4 => (0..12u64).prop_map(Step::Touch),
        2 => (0..12u64).prop_map(Step::Peek),
        2 => (0..12u64).prop_map(Step::Remove),
        1 => Just(Step::RetainOdd),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn it_does_what_a_plain_list_does(bound in 1..8usize, steps in steps()) {
        let mut table = BindingTable::new(bound);
        let mut list: Vec<(u64, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(k, value) => {
                    let gone = if let Some(at) = list.iter().position(|e| e.0 == k) {
                        list.remove(at);
                        None
                    } else {
                        (list.len() == bound).then(|| list.remove(0))
                    };
                    list.push((k, value));
                    let gone = gone.map(|(k, value)| (key(k), value));
                    prop_assert_eq!(table.insert(key(k), value), gone);
                }
                Step::Touch(k) => {
                    let found = list.iter().position(|e| e.0 == k).map(|at| list.remove(at));
                    list.extend(found);
                    prop_assert_eq!(table.get_touch(key(k)), found.map(|e| e.1));
                }
                Step::Peek(k) => {
                    let found = list.iter().find(|e| e.0 == k).map(|e| e.1);
                    prop_assert_eq!(table.peek(key(k)), found);
                }
                Step::Remove(k) => {
                    let found = list.iter().position(|e| e.0 == k).map(|at| list.remove(at).1);
                    prop_assert_eq!(table.remove(key(k)), found);
                }
                Step::RetainOdd => {
                    list.retain(|e| e.1 % 2 == 1);
                    table.retain(|_, value| value % 2 == 1);
                }
            }
            let expected: Vec<_> = list.iter().map(|&(k, value)| (key(k), value)).collect();
            prop_assert_eq!(table.iter().collect::<Vec<_>>(), expected);
            prop_assert_eq!(table.len(), list.len());
        }
    }
}
