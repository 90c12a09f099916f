use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const VECTORS: &str = include_str!("../../../tests/vectors/conversation_router.json");

#[test]
fn every_scenario_comes_out_as_expected() {
    let results = check(VECTORS);
    assert!(results.len() >= 36);
    let wrong: Vec<_> = results
        .iter()
        .filter(|result| result.difference.is_some())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_model_agrees_with_every_expected_value() {
    for scenario in crate::simulate::replay::scenarios(VECTORS).unwrap() {
        let expected = scenarios::expected(&scenario, "ops").unwrap();
        assert!(
            model::follow(&scenario, expected).is_ok(),
            "{}",
            scenario["name"]
        );
    }
}

/// Every number of every expected value, raised by one, must be noticed; also where sessions tie.
#[test]
fn a_changed_value_is_noticed() {
    for scenario in crate::simulate::replay::scenarios(VECTORS).unwrap() {
        let outcome = router::outcome(&scenario).unwrap();
        let expected = scenario["expected"].as_array().unwrap();
        for step in 0..expected.len() {
            for field in [
                "server",
                "weight",
                "rr_counter",
                "loads",
                "sessions_lru_to_mru",
            ] {
                let mut changed = expected.clone();
                let Some(value) = changed[step].get_mut(field) else {
                    continue;
                };
                *value = match &*value {
                    Value::Number(number) => json!(number.as_u64().unwrap() + 1),
                    Value::String(text) => json!(format!("{text}x")),
                    Value::Object(_) => json!({ "s0": 123_456 }),
                    _ => json!([["zz", "s0", 0]]),
                };
                assert!(judge(&scenario, &changed, &outcome).is_some());
            }
        }
    }
}

fn tied(third: &str) -> Value {
    let op = |id, exclude: Option<&str>| json!({"op": "route", "id": id, "prompt": "abcdefghi", "exclude": exclude});
    let step = |server: &str, s0, s1, turn, table| json!({"server": server, "weight": 8, "loads": {"s0": s0, "s1": s1}, "rr_counter": turn, "sessions_lru_to_mru": table});
    let (one, two) = (
        json!(["conv_id:0_1", "s0", 2]),
        json!(["conv_id:0_2", "s1", 2]),
    );
    let last = match third {
        "s0" => step("s0", 16, 8, 2, json!([two, one])),
        _ => step("s1", 8, 16, 2, json!([one, two])),
    };
    json!({
        "name": "tied",
        "servers": ["s0", "s1"],
        "args": {"tokens_per_block": 4},
        "ops": [op("1", None), op("2", Some("s0")), op("3", None)],
        "expected": [step("s0", 8, 0, 1, json!([one])), step("s1", 8, 8, 2, json!([one, two])), last],
    })
}

#[test]
fn any_of_the_tied_sessions_is_right() {
    assert_eq!(difference(&tied("s0")), None);
    assert_eq!(difference(&tied("s1")), None);
}

#[test]
fn a_scenario_that_cannot_be_read_differs() {
    let results = check(
        r#"{"scenarios": [{"name": "n", "servers": ["a"], "ops": [{"op": "jump"}], "expected": [{}]}]}"#,
    );
    assert_eq!(
        results[0].difference.as_deref(),
        Some("scenario `n`: ops[0].op: must be route, finish, add or remove")
    );
    assert!(check("[]").is_empty());
    assert_eq!(check("{}").len(), 1);
}

fn ops() -> impl Strategy<Value = Vec<Value>> {
    let server = || (0..4u8).prop_map(|number| format!("s{number}"));
    let text =
        |name: &'static str| prop::option::of((0..4u8).prop_map(move |n| format!("{name}{n}")));
    let prompt = prop::collection::vec(prop_oneof![Just("aaaa"), Just("bb"), Just("c")], 0..6);
    let route = (
        0..6u8,
        text("c"),
        text("p"),
        prop::option::of(server()),
        prompt,
    )
        .prop_map(|(id, conv, parent, exclude, prompt)| {
            let parent = conv.as_ref().and(parent);
            json!({
                "op": "route", "id": id.to_string(), "conv": conv, "parent": parent,
                "exclude": exclude, "prompt": prompt.concat(),
            })
        });
    let other = (prop_oneof![Just("add"), Just("remove")], server())
        .prop_map(|(op, server)| json!({"op": op, "server": server}));
    let finish = (0..6u8).prop_map(|id| json!({"op": "finish", "id": id.to_string()}));
    prop::collection::vec(prop_oneof![5 => route, 2 => finish, 1 => other], 0..40)
}

/// A request's id is not given again while it is in flight.
fn with_distinct_ids(ops: Vec<Value>) -> Vec<Value> {
    let mut in_flight = std::collections::HashSet::new();
    let kept = ops.into_iter().filter(|op| match op["op"].as_str() {
        Some("route") => in_flight.insert(op["id"].to_string()),
        Some("finish") => {
            in_flight.remove(&op["id"].to_string());
            true
        }
        _ => true,
    });
    kept.collect()
}

proptest! {
    #[test]
    fn the_router_keeps_the_rules(
        ops in ops(),
        max_sessions in 1..6u8,
        threshold in prop_oneof![Just(0.0), Just(0.5), Just(0.75), Just(1.0)],
        skip in 0..2u8,
    ) {
        let mut ops = with_distinct_ids(ops);
        ops.extend((0..6).map(|id| json!({"op": "finish", "id": id.to_string()})));
        let scenario = json!({
            "name": "random",
            "servers": ["s0", "s1", "s2"],
            "args": {
                "tokens_per_block": 2, "max_sessions": max_sessions,
                "match_threshold": threshold, "hash_skip_count": skip,
            },
            "ops": ops,
        });
        let outcome = router::outcome(&scenario).unwrap();
        if let Err(number) = model::follow(&scenario, &outcome) {
            prop_assert!(false, "operation {number} of {scenario}: {:?}", outcome.get(number - 1));
        }
        let idle = outcome.last().map(|last| last["loads"].as_object().unwrap().values().all(|load| *load == 0));
        prop_assert!(idle.unwrap_or(true));
    }
}
