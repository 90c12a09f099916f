//! Scenarios, run through the real routing code.
//!
//! Decides how the scenarios of `kindred replay` are read and how their outcomes are written, in the
//! format of upstream's expected values. Choosing is left to routing and placement: this only turns
//! texts into their inputs and their answers into texts. A scenario that cannot be read is an error
//! that names it and its field, never a guess.

pub mod adp;
mod field;
pub mod router;

use std::io::{self, Write};

use serde_json::{Value, json};

use field::Field;

/// Why scenarios cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the scenarios are not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("scenario {scenario}: {field}: {problem}")]
    Field {
        scenario: String,
        field: String,
        problem: String,
    },
    #[error("the outcome cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Runs scenarios of the conversation router, given as an object with a list `scenarios` or as such
/// a list, and writes one line of JSON for each: `{"name", "outcome"}`.
pub fn replay_router(document: &str, out: &mut impl Write) -> Result<(), ReplayError> {
    replay(document, out, router::outcome)
}

/// Runs scenarios of the attention-DP placement; otherwise as [`replay_router`].
pub fn replay_adp(document: &str, out: &mut impl Write) -> Result<(), ReplayError> {
    replay(document, out, adp::outcome)
}

fn replay(
    document: &str,
    out: &mut impl Write,
    outcome: fn(&Value) -> Result<Vec<Value>, ReplayError>,
) -> Result<(), ReplayError> {
    for scenario in scenarios(document)? {
        let line = json!({ "name": name(&scenario), "outcome": outcome(&scenario)? });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The scenarios of a document.
pub(crate) fn scenarios(document: &str) -> Result<Vec<Value>, ReplayError> {
    let list = match serde_json::from_str(document)? {
        Value::Object(mut document) => document.remove("scenarios").unwrap_or_default(),
        other => other,
    };
    match list {
        Value::Array(scenarios) => Ok(scenarios),
        _ => Err(ReplayError::Field {
            scenario: "document".to_owned(),
            field: "scenarios".to_owned(),
            problem: "must be a list of scenarios".to_owned(),
        }),
    }
}

/// What a scenario is called; `null` in the outcome of one without a name.
pub(crate) fn name(scenario: &Value) -> Value {
    scenario.get("name").cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
