//! The commands that run expected values: `sign`, `verify`, `replay` and `conformance`.

mod support;

use std::{collections::HashMap, fs, path::Path};

use serde_json::{Value, json, value::RawValue};
use support::run;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");

fn vectors(file: &str) -> Value {
    let text = fs::read_to_string(Path::new(VECTORS).join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

/// The entries of some sections of `signing.json`: each as a line with its numbers as they are
/// written, and to look at.
fn entries(sections: &[&str]) -> Vec<(String, Value)> {
    let text = fs::read_to_string(Path::new(VECTORS).join("signing.json")).unwrap();
    let file: HashMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap();
    let mut entries = Vec::new();
    for section in sections {
        let raw: Vec<Box<RawValue>> = serde_json::from_str(file[*section].get()).unwrap();
        entries.extend(raw.iter().map(|raw| {
            let line = raw.get().replace('\n', " ");
            (line, serde_json::from_str(raw.get()).unwrap())
        }));
    }
    entries
}

/// Runs entries as JSON lines; one answer for each.
fn lines(command: &str, entries: &[(String, Value)]) -> (i32, Vec<Value>) {
    let input: String = entries
        .iter()
        .map(|(line, _)| format!("{line}\n"))
        .collect();
    let (code, out, err) = run(&[command], &input);
    assert!(!err.contains("panicked"), "{err}");
    let answers = out.lines().map(|line| serde_json::from_str(line).unwrap());
    let answers: Vec<Value> = answers.collect();
    assert_eq!(answers.len(), entries.len(), "{err}");
    for ((_, entry), answer) in entries.iter().zip(&answers) {
        assert_eq!(answer["name"], entry["name"]);
    }
    (code, answers)
}

/// One entry that a test made.
fn entry(value: Value) -> (String, Value) {
    (value.to_string(), value)
}

/// Header names in lower case; a list of pairs or an object.
fn headers(value: &Value) -> Vec<(String, Value)> {
    let Some(object) = value.as_object() else {
        return Vec::new();
    };
    let pairs = object.iter().filter(|(_, value)| !value.is_null());
    let mut pairs: Vec<_> = pairs
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs
}

#[test]
fn sign_gives_the_expected_headers_or_an_error() {
    let entries = entries(&["affinity", "disagg_auth"]);
    let (code, answers) = lines("sign", &entries);
    assert_eq!(code, 0, "a refused entry is an answer");
    let mut refused = 0;
    for ((_, entry), answer) in entries.iter().zip(&answers) {
        if entry.get("error").is_some_and(|error| !error.is_null()) {
            assert!(answer["error"].is_string(), "{entry}\n{answer}");
            assert_eq!(answer.get("headers"), None, "{answer}");
            refused += 1;
        } else {
            assert_eq!(answer.get("error"), None, "{entry}\n{answer}");
            assert_eq!(
                headers(&answer["headers"]),
                headers(&entry["headers"]),
                "{entry}"
            );
        }
    }
    assert!(refused > 0 && refused < entries.len());
}

#[test]
fn verify_gives_the_expected_verdicts() {
    let entries = entries(&["validate_affinity", "validate_disagg_auth"]);
    let (code, answers) = lines("verify", &entries);
    assert_eq!(code, 1, "some checks do not hold, as the entries say");
    for ((_, entry), answer) in entries.iter().zip(&answers) {
        let name = entry["name"].as_str().unwrap();
        if name.starts_with("dup") && answer["verdict"] == "error" {
            // Of two copies upstream takes one; here nobody is believed.
            continue;
        }
        assert_eq!(answer["verdict"], entry["verdict"], "{entry}\n{answer}");
        let id = entry.get("affinity_id").unwrap_or(&Value::Null);
        assert_eq!(&answer["affinity_id"], id, "{entry}\n{answer}");
    }
    let refused = answers.iter().filter(|answer| answer["verdict"] == "error");
    assert!(refused.count() > 10);
}

#[test]
fn two_copies_of_an_internal_header_are_refused() {
    let mut entries = entries(&["validate_affinity", "validate_disagg_auth"]);
    entries.retain(|(_, entry)| entry["name"].as_str().unwrap().starts_with("dup"));
    assert!(!entries.is_empty());
    for answer in lines("verify", &entries).1 {
        assert_eq!(answer["verdict"], "error", "{answer}");
    }
}

#[test]
fn a_line_that_cannot_be_used_is_said_in_place_and_the_others_still_count() {
    let good = json!({"name": "good", "key": "k", "encoded_opaque_state": "s", "ctx_info_endpoint": null,
                      "headers": []});
    for (command, answer) in [("sign", "headers"), ("verify", "verdict")] {
        for bad in [
            "{\"name\":\"bad\"",
            "5",
            "[]",
            "{\"name\":\"bad\"}",
            "\u{0}",
            "{\"name\":\"bad\",\"encoded_opaque_state\":{",
        ] {
            let input = format!("{good}\n\n{bad}\n{good}");
            let (code, out, err) = run(&[command], &input);
            assert_eq!(code, 2, "{bad}: {out}{err}");
            let lines: Vec<Value> = out
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(lines.len(), 3, "{out}");
            assert!(
                lines[0].get(answer).is_some() && lines[2].get(answer).is_some(),
                "{out}"
            );
            let said = lines[1]["error"].as_str().unwrap();
            assert!(said.contains('3'), "it names its line: {said}");
            assert!(lines[1].as_object().unwrap().contains_key("name"));
        }
    }
    assert_eq!(run(&["sign"], ""), (0, String::new(), String::new()));
}

#[test]
fn what_sign_signs_verify_believes() {
    let unsigned = json!({"name": "n", "key": "secret", "role": "CONTEXT", "model": "m\u{7f}é😀", "conversation_id": " c ",
        "subagent_affinity_id": "caf\u{c3}\u{a9}", "request_type": "context_only", "disagg_request_id": 1u64 << 40,
        "has_disagg_params": true});
    let (code, answers) = lines("sign", &[entry(unsigned.clone())]);
    assert_eq!(code, 0);
    let mut signed = unsigned;
    let pairs = headers(&answers[0]["headers"]);
    assert_eq!(pairs.len(), 2);
    signed["headers"] = json!(pairs);
    signed
        .as_object_mut()
        .unwrap()
        .remove("subagent_affinity_id");
    let (_, answers) = lines("verify", &[entry(signed.clone())]);
    assert_eq!(answers[0]["verdict"], "ok", "{}", answers[0]);
    assert_eq!(answers[0]["affinity_id"], "caf\u{c3}\u{a9}");
    for (field, other) in [
        ("model", json!("x")),
        ("conversation_id", json!("d")),
        ("role", json!("GENERATION")),
        ("disagg_request_id", json!(7)),
        ("key", json!("other")),
    ] {
        let mut changed = signed.clone();
        changed[field] = other;
        let (_, answers) = lines("verify", &[entry(changed)]);
        assert_eq!(answers[0]["verdict"], "error", "{field}");
    }
}

/// The scenario whose last operation finds two sessions with the very same prompt: either is right.
const TIE: &str = "implicit_excluded_server";

#[test]
fn replay_gives_what_is_expected_of_every_scenario() {
    for (what, file) in [("router", "conversation_router.json"), ("adp", "adp.json")] {
        let document = vectors(file);
        let scenarios = list(&document["scenarios"]);
        let (code, out, err) = run(&["replay", what], &document.to_string());
        assert_eq!(code, 0, "{err}");
        let answers: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(answers.len(), scenarios.len());
        let mut differ = Vec::new();
        for (scenario, answer) in scenarios.iter().zip(&answers) {
            assert_eq!(answer["name"], scenario["name"]);
            let mut expected = scenario["expected"].clone();
            if scenario["name"] == TIE {
                let any = &answer["outcome"][list(&expected).len() - 1];
                *expected.as_array_mut().unwrap().last_mut().unwrap() = any.clone();
            }
            if !same(&expected, &answer["outcome"]) {
                differ.push(format!(
                    "{}\n  expected {}\n  got      {}",
                    scenario["name"], scenario["expected"], answer["outcome"]
                ));
            }
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
    }
}

/// Whether everything that is expected is there.
fn same(expected: &Value, got: &Value) -> bool {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => expected
            .iter()
            .all(|(name, value)| got.get(name).is_some_and(|got| same(value, got))),
        (Value::Array(expected), Value::Array(got)) => {
            expected.len() == got.len() && expected.iter().zip(got).all(|(e, g)| same(e, g))
        }
        (expected, got) => expected == got,
    }
}

#[test]
fn a_scenario_that_cannot_be_read_is_named() {
    for (input, named) in [
        ("{", ""),
        ("{}", "scenarios"),
        (r#"[{"name":"odd"}]"#, "odd"),
    ] {
        for what in ["router", "adp"] {
            let (code, _, err) = run(&["replay", what], input);
            assert_eq!(code, 2, "{err}");
            assert!(err.contains(named) && !err.contains("panicked"), "{err}");
        }
    }
}

#[test]
fn conformance_passes_on_the_vectors_and_counts_them() {
    let (code, out, err) = run(&["conformance", VECTORS], "");
    assert_eq!(code, 0, "{out}{err}");
    let mut entries = 0;
    for (name, section) in vectors("signing.json").as_object().unwrap() {
        entries += if name == "meta" {
            0
        } else {
            list(section).len()
        };
    }
    for file in ["adp.json", "conversation_router.json"] {
        entries += list(&vectors(file)["scenarios"]).len();
    }
    assert_eq!(out, format!("{entries} passed, 0 failed\n"));
}

#[test]
fn conformance_names_the_entry_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let mut changed = vectors("adp.json");
    let name = changed["scenarios"][2]["name"].as_str().unwrap().to_owned();
    changed["scenarios"][2]["expected"][0]["ranks"][0] = json!(3_000);
    fs::write(folder.path().join("adp.json"), changed.to_string()).unwrap();
    let (code, out, err) = run(&["conformance", folder.path().to_str().unwrap()], "");
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.lines().any(|line| line.contains(&name)), "{out}");
    let entries = list(&changed["scenarios"]).len();
    let last = format!("{} passed, 1 failed", entries - 1);
    assert_eq!(out.lines().last(), Some(&*last));
}

#[test]
fn conformance_says_in_words_why_a_folder_cannot_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let refused = |path: &str| {
        let (code, out, err) = run(&["conformance", path], "");
        assert_eq!(code, 2, "{out}{err}");
        assert!(!out.contains("0 failed"), "{out}");
        assert!(err.contains(path) && err.len() > path.len() + 10, "{err}");
    };
    refused("/nowhere/at/all");
    refused(path);
    for unfit in [r#"{"something":"else"}"#, "[]", "{", r#"{"scenarios":[]}"#] {
        fs::write(folder.path().join("x.json"), unfit).unwrap();
        refused(path);
    }
}
