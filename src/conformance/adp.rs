//! The attention-DP placement against its expected values.
//!
//! Every batch of every scenario must come out as expected: ranks, order, expected active requests,
//! cursor and table. Where upstream crashed, nothing is expected from there on: an order or an error
//! of ours is right.

use serde_json::Value;

use super::{EntryResult, scenarios};
use crate::simulate::replay::{self, adp};

/// Runs every scenario of a document in the format of `adp.json`.
pub fn check(document: &str) -> Vec<EntryResult> {
    scenarios::check(document, difference)
}

fn difference(scenario: &Value) -> Option<String> {
    let expected = match scenarios::expected(scenario, "batches") {
        Ok(expected) => expected,
        Err(problem) => return Some(problem),
    };
    let crashes = scenario.get("error").is_some()
        || expected.iter().any(|batch| batch.get("error").is_some());
    let outcome = match adp::outcome(scenario) {
        Ok(outcome) => outcome,
        Err(replay::ReplayError::Field { .. }) if crashes => return None,
        Err(error) => return Some(error.to_string()),
    };
    let before_crash = expected
        .iter()
        .take_while(|batch| batch.get("error").is_none());
    let mut batches = before_crash.zip(&outcome).zip(1..);
    batches.find_map(|((expected, outcome), number)| {
        Some(format!(
            "batch {number}: {}",
            scenarios::first_difference(expected, outcome)?
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTORS: &str = include_str!("../../tests/vectors/adp.json");

    #[test]
    fn every_scenario_comes_out_as_expected() {
        let results = check(VECTORS);
        assert!(results.len() >= 33);
        let wrong: Vec<_> = results
            .iter()
            .filter(|result| result.difference.is_some())
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_changed_value_is_noticed() {
        let changed = VECTORS.replacen("\"cursor\": 2", "\"cursor\": 3", 1);
        assert_ne!(changed, VECTORS);
        assert!(
            check(&changed)
                .iter()
                .any(|result| result.difference.is_some())
        );
    }

    #[test]
    fn nothing_is_expected_where_upstream_crashed() {
        let crash = |relax: &str| {
            format!(
                r#"[{{"name": "relax_none_breaks_sort", "config": {{"ranks": 2}},
                    "batches": [{{"active": [0, 0], "max": 4,
                        "requests": [{{"conv": "a", "relax": {relax}}}, {{"conv": "b"}}]}}],
                    "expected": [{{"error": "TypeError"}}]}}]"#
            )
        };
        assert_eq!(check(&crash("null"))[0].difference, None);
        assert_eq!(check(&crash("7"))[0].difference, None);
    }
}
