//! `kindred sign` and `kindred verify`: one JSON line in, one JSON line out.
//!
//! A line has the fields of an entry of expected values; which kind it is follows from them. A line
//! that cannot be used gives a line that says why, and the [`Tally`] tells the caller, who decides
//! what that means for the exit code.

use std::io::{self, BufRead, Write};

use serde_json::{Map, Value, json};

use super::entry::{Entry, FieldError, Refused};
use crate::wire::verify::Refusal;

/// What became of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Signed, or verified.
    Good,
    /// The request is refused: there is nothing to sign it with, or its signature does not hold.
    Refused,
    /// The line is not JSON or lacks a field.
    Unusable,
}

/// One line's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The JSON line to print.
    pub json: Value,
    pub outcome: Outcome,
}

/// How many lines came to which outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub good: u64,
    pub refused: u64,
    pub unusable: u64,
}

/// Signs every line of `input`; blank lines are passed over.
pub fn sign_all(input: impl BufRead, out: impl Write) -> io::Result<Tally> {
    run(input, out, sign)
}

/// Verifies every line of `input`; blank lines are passed over.
pub fn verify_all(input: impl BufRead, out: impl Write) -> io::Result<Tally> {
    run(input, out, verify)
}

fn run(
    mut input: impl BufRead,
    mut out: impl Write,
    answer: fn(usize, &str) -> Line,
) -> io::Result<Tally> {
    let mut tally = Tally::default();
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        if input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = match std::str::from_utf8(&bytes) {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => answer(number, text.trim()),
            Err(_) => unusable(number, "", "is not UTF-8"),
        };
        match line.outcome {
            Outcome::Good => tally.good += 1,
            Outcome::Refused => tally.refused += 1,
            Outcome::Unusable => tally.unusable += 1,
        }
        writeln!(out, "{}", line.json)?;
    }
    out.flush()?;
    Ok(tally)
}

/// Signs line `number`: `{"name","headers"}`, or `{"name","error"}`.
pub fn sign(number: usize, line: &str) -> Line {
    answer(number, line, |entry| {
        let signed = if entry.has("subagent_affinity_id") {
            entry.sign_affinity()?
        } else if is_transfer(entry) {
            entry.sign_transfer()?
        } else {
            let fields = "is missing, and so are the fields of a KV transfer";
            return Err(FieldError::new("subagent_affinity_id", fields));
        };
        Ok(match signed.headers {
            Ok(headers) => {
                let headers = headers.into_iter();
                let headers = headers.map(|(name, value)| (name.to_owned(), Value::from(value)));
                let headers: Map<String, Value> = headers.collect();
                (json!({"headers": headers}), Outcome::Good)
            }
            Err(message) => (json!({"error": message}), Outcome::Refused),
        })
    })
}

/// Verifies line `number`: `{"name","verdict","affinity_id"}`, with `http_status` and `message`
/// where it is refused.
pub fn verify(number: usize, line: &str) -> Line {
    answer(number, line, |entry| {
        let verdict = if is_transfer(entry) {
            entry.verify_transfer()?.map(|()| None)
        } else {
            entry.verify_affinity()?
        };
        Ok(match verdict {
            Ok(id) => (json!({"verdict": "ok", "affinity_id": id}), Outcome::Good),
            Err(Refused { message, .. }) => {
                let status = Refusal::HTTP_STATUS;
                let members = json!({"verdict": "error", "affinity_id": null,
                    "http_status": status, "message": message});
                (members, Outcome::Refused)
            }
        })
    })
}

fn is_transfer(entry: &Entry) -> bool {
    entry.has("encoded_opaque_state") || entry.has("ctx_info_endpoint")
}

fn answer(
    number: usize,
    line: &str,
    run: impl Fn(&Entry) -> Result<(Value, Outcome), FieldError>,
) -> Line {
    let entry = match Entry::parse(line) {
        Ok(entry) => entry,
        Err(error) => return unusable(number, "", &format!("is not a JSON object: {error}")),
    };
    let name = entry.name();
    match run(&entry) {
        Ok((members, outcome)) => {
            let mut json = Map::new();
            json.insert("name".to_owned(), name.into());
            json.extend(members.as_object().cloned().unwrap_or_default());
            Line {
                json: json.into(),
                outcome,
            }
        }
        Err(error) => unusable(number, &name, &error.to_string()),
    }
}

fn unusable(number: usize, name: &str, problem: &str) -> Line {
    let name = (!name.is_empty()).then_some(name);
    Line {
        json: json!({"name": name, "error": format!("line {number}: {problem}")}),
        outcome: Outcome::Unusable,
    }
}
