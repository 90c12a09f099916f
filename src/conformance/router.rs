//! The conversation router against its expected values.
//!
//! Every operation of every scenario must come out as expected. Only where sessions share equally
//! long prefixes with a prompt may another of them be chosen than upstream's unordered sets yielded;
//! then the outcome and the expected values must each be right by the rules, told by a plain model
//! of them.

mod model;

use serde_json::Value;

use super::{EntryResult, scenarios};
use crate::simulate::replay::router;
use model::Model;

/// Runs every scenario of a document in the format of `conversation_router.json`.
pub fn check(document: &str) -> Vec<EntryResult> {
    scenarios::check(document, difference)
}

fn difference(scenario: &Value) -> Option<String> {
    let expected = match scenarios::expected(scenario, "ops") {
        Ok(expected) => expected,
        Err(problem) => return Some(problem),
    };
    let outcome = match router::outcome(scenario) {
        Ok(outcome) => outcome,
        Err(error) => return Some(error.to_string()),
    };
    judge(scenario, expected, &outcome)
}

fn judge(scenario: &Value, expected: &[Value], outcome: &[Value]) -> Option<String> {
    let first = expected
        .iter()
        .zip(outcome)
        .zip(1..)
        .find_map(|((expected, outcome), number)| {
            Some((number, scenarios::first_difference(expected, outcome)?))
        });
    let (number, difference) = first?;
    let report = format!("operation {number}: {difference}");
    let (Ok(expected), Ok(outcome)) = (
        model::follow(scenario, expected),
        model::follow(scenario, outcome),
    ) else {
        return Some(report);
    };
    let tie = |run: &Model| run.ties.contains(&number);
    (!tie(&expected) || !tie(&outcome)).then_some(report)
}

#[cfg(test)]
mod tests;
