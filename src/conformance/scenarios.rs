//! What the two files of scenarios have in common.
//!
//! Decides how scenarios are paired with their expected values and how a difference is told. A
//! scenario that cannot be read, or whose list of expected values is too short, differs.

use serde_json::Value;

use super::EntryResult;
use crate::{simulate::replay, wire::object::Object};

/// Whether a file holds scenarios whose steps go by this name.
pub(super) fn recognises(file: &Object, steps: &str) -> bool {
    let scenarios = replay::scenarios(file.source()).unwrap_or_default();
    let mut scenarios = scenarios.iter();
    scenarios.any(|scenario| scenario.get(steps).is_some())
}

/// Runs a file's scenarios.
pub(super) fn run(
    file: &Object,
    check: fn(&str) -> Vec<EntryResult>,
) -> Result<Vec<EntryResult>, String> {
    Ok(check(file.source()))
}

/// Judges every scenario of a document; a document that cannot be read is one entry that differs.
pub(super) fn check(document: &str, difference: fn(&Value) -> Option<String>) -> Vec<EntryResult> {
    match replay::scenarios(document) {
        Ok(scenarios) => scenarios
            .iter()
            .map(|scenario| entry(scenario, difference))
            .collect(),
        Err(error) => vec![EntryResult::failed("scenarios", error.to_string())],
    }
}

fn entry(scenario: &Value, difference: fn(&Value) -> Option<String>) -> EntryResult {
    let name = replay::name(scenario);
    let name = format!("scenarios/{}", name.as_str().unwrap_or("without a name"));
    EntryResult {
        name,
        difference: difference(scenario),
    }
}

/// The expected values of a scenario, one for each member of its list `steps`.
pub(super) fn expected<'a>(scenario: &'a Value, steps: &str) -> Result<&'a [Value], String> {
    let list = |name: &str| scenario.get(name).and_then(Value::as_array);
    match (list("expected"), list(steps)) {
        (Some(expected), Some(steps)) if expected.len() == steps.len() => Ok(expected),
        (None, _) if scenario.get("error").is_some() => Ok(&[]),
        _ => Err(format!(
            "`expected` must be a list with one member for each of `{steps}`"
        )),
    }
}

/// The first member that two objects do not have alike.
pub(super) fn first_difference(expected: &Value, outcome: &Value) -> Option<String> {
    let (Some(wanted), Some(got)) = (expected.as_object(), outcome.as_object()) else {
        return Some(format!("expected {expected}, got {outcome}"));
    };
    let names = wanted
        .keys()
        .chain(got.keys().filter(|name| !wanted.contains_key(*name)));
    names.into_iter().find_map(|name| {
        let (wanted, got) = (wanted.get(name), got.get(name));
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        (wanted != got).then(|| format!("{name}: expected {}, got {}", show(wanted), show(got)))
    })
}
