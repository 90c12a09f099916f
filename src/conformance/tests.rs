use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Map, Value, json, value::RawValue};

use super::*;

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// The sections of a file; entries stay raw, so that large numbers survive.
type Sections = BTreeMap<String, Vec<Box<RawValue>>>;

fn signing() -> Sections {
    let text = fs::read_to_string(vectors().join("signing.json")).expect("the expected values");
    let mut file: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).expect("JSON");
    file.remove("meta");
    let entries = |raw: &RawValue| serde_json::from_str(raw.get()).expect("a list");
    file.iter()
        .map(|(name, raw)| (name.clone(), entries(raw)))
        .collect()
}

fn entries(section: &str) -> Vec<Value> {
    let file = signing();
    let raw = file[section].iter();
    raw.map(|raw| serde_json::from_str(raw.get()).expect("JSON"))
        .collect()
}

/// The file with one entry changed: the first that has the field.
fn changed(section: &str, field: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Sections {
    let mut file = signing();
    let at = entries(section)
        .iter()
        .position(|entry| entry.get(field).is_some());
    let raw = &mut file.get_mut(section).expect("a section")[at.expect("an entry")];
    let mut entry = serde_json::from_str(raw.get()).expect("an object");
    change(&mut entry);
    *raw = serde_json::value::to_raw_value(&entry).expect("JSON");
    file
}

/// Runs a folder that holds just this file.
fn run(file: &impl serde::Serialize) -> (Result<Summary, ConformanceError>, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let text = serde_json::to_string(file).expect("JSON");
    fs::write(dir.path().join("signing.json"), text).expect("a file");
    let mut out = Vec::new();
    let summary = run_dir(dir.path(), &mut out);
    (summary, String::from_utf8(out).expect("text"))
}

#[test]
fn every_entry_of_signing_is_as_expected() {
    let (summary, out) = run(&signing());
    let summary = summary.expect("a known shape");
    assert_eq!(out, format!("{} passed, 0 failed\n", summary.passed));
    assert_eq!(summary.passed, 185);
}

#[test]
fn one_changed_value_in_each_section_is_found() {
    for (section, field, value) in [
        ("affinity", "expected", json!("sha256=00")),
        ("affinity", "canonical", json!("{}")),
        ("affinity", "headers", json!({})),
        ("affinity", "error", json!("refused")),
        ("affinity", "key", json!("other")),
        ("affinity", "canonical_sha256", json!("00")),
        (
            "disagg_auth",
            "headers",
            json!({"x-trtllm-disagg-auth": "sha256=00"}),
        ),
        ("disagg_auth", "requires_auth", json!("maybe")),
        ("validate_affinity", "affinity_id", json!("other")),
        ("validate_affinity", "verdict", json!("error")),
        ("validate_disagg_auth", "verdict", json!("error")),
        ("validate_disagg_auth", "headers", json!([])),
        ("conversation_id", "resolved", json!("other")),
        (
            "conversation_id",
            "forwarded_conversation_params",
            json!(null),
        ),
        ("conversation_id", "verdict", json!("validation_error")),
        ("wire_body", "verdict", json!("validation_error")),
        ("wire_body", "canonical", json!("{}")),
        ("wire_body", "body", json!("[]")),
    ] {
        let file = changed(section, field, |entry| {
            entry.insert(field.to_owned(), value);
        });
        let (summary, out) = run(&file);
        let summary = summary.expect("a known shape");
        assert_eq!(summary.failed, 1, "{section}.{field}: {out}");
        assert!(
            out.starts_with(&format!("signing.json {section}/")),
            "{out}"
        );
    }
}

#[test]
fn a_refusal_must_keep_its_status_and_message() {
    for (section, field) in [
        ("validate_affinity", "message"),
        ("validate_affinity", "http_status"),
        ("validate_disagg_auth", "message"),
        ("conversation_id", "http_status"),
        ("wire_body", "http_status"),
    ] {
        let file = changed(section, field, |entry| {
            entry.insert(field.to_owned(), json!(999));
        });
        let (summary, out) = run(&file);
        assert_eq!(
            summary.expect("a known shape").failed,
            1,
            "{section}: {out}"
        );
    }
}

#[test]
fn a_missing_section_or_field_is_never_passed_over() {
    let mut file = signing();
    file.remove("wire_body");
    let (summary, out) = run(&file);
    assert_eq!(out, "");
    let error = summary.expect_err("a section is missing").to_string();
    assert!(error.ends_with("lacks the section 'wire_body'"), "{error}");

    let mut file = signing();
    file.insert("affinity".to_owned(), Vec::new());
    let error = run(&file).0.expect_err("no entries").to_string();
    assert!(
        error.ends_with("has no entries in the section 'affinity'"),
        "{error}"
    );

    let file = changed("affinity", "headers", |entry| {
        entry.remove("headers");
    });
    let (summary, out) = run(&file);
    assert_eq!(summary.expect("a known shape").failed, 1);
    assert!(out.contains("field 'headers' is missing"), "{out}");

    let mut file = signing();
    file.insert("novelty".to_owned(), Vec::new());
    let error = run(&file).0.expect_err("an unknown section").to_string();
    assert!(
        error.ends_with("has an unknown section 'novelty'"),
        "{error}"
    );
}

#[test]
fn unknown_files_and_empty_folders_are_errors() {
    let error = run(&json!({"cases": []})).0.expect_err("an unknown shape");
    assert!(
        matches!(error, ConformanceError::UnknownShape { .. }),
        "{error}"
    );
    let error = run(&json!([])).0.expect_err("no object");
    assert!(matches!(error, ConformanceError::NotJson { .. }), "{error}");
    let dir = tempfile::tempdir().expect("a folder");
    let error = run_dir(dir.path(), &mut Vec::new()).expect_err("an empty folder");
    assert!(matches!(error, ConformanceError::Empty { .. }), "{error}");
    let error = run_dir(&dir.path().join("none"), &mut Vec::new()).expect_err("no folder");
    assert!(matches!(error, ConformanceError::Read { .. }), "{error}");
}

mod command_lines {
    use super::super::lines::{Outcome, Tally, sign, sign_all, verify, verify_all};
    use super::*;

    fn section(name: &str) -> String {
        let entries = signing().remove(name).expect("a section");
        let line = |entry: &RawValue| entry.get().replace('\n', " ") + "\n";
        entries.iter().map(|entry| line(entry)).collect()
    }

    fn answers(out: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(out).expect("text");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    #[test]
    fn sign_answers_every_entry() {
        for name in ["affinity", "disagg_auth"] {
            let mut out = Vec::new();
            let tally = sign_all(section(name).as_bytes(), &mut out).expect("a line each");
            assert_eq!(tally.unusable, 0);
            for (entry, answer) in entries(name).iter().zip(answers(&out)) {
                assert_eq!(answer["name"], entry["name"]);
                match &entry["headers"] {
                    Value::Null => assert!(answer["error"].is_string(), "{answer}"),
                    headers => assert_eq!(&answer["headers"], headers),
                }
            }
        }
    }

    #[test]
    fn verify_answers_every_entry() {
        for name in ["validate_affinity", "validate_disagg_auth"] {
            let mut out = Vec::new();
            verify_all(section(name).as_bytes(), &mut out).expect("a line each");
            for (entry, answer) in entries(name).iter().zip(answers(&out)) {
                if entry["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with("dup"))
                {
                    assert_eq!(
                        answer["verdict"], "error",
                        "two copies are refused: {entry}"
                    );
                    continue;
                }
                assert_eq!(answer["verdict"], entry["verdict"], "{entry}");
                assert_eq!(
                    answer["affinity_id"],
                    *entry.get("affinity_id").unwrap_or(&Value::Null)
                );
                assert_eq!(answer.get("message"), entry.get("message"));
                assert_eq!(answer.get("http_status"), entry.get("http_status"));
            }
        }
    }

    #[test]
    fn unusable_lines_say_which_line_and_field() {
        let line = sign(3, "nonsense");
        assert_eq!(line.outcome, Outcome::Unusable);
        assert!(
            line.json["error"]
                .as_str()
                .expect("text")
                .starts_with("line 3: is not a JSON object")
        );
        let line = sign(
            4,
            r#"{"name":"a","subagent_affinity_id":"p","key":"k","role":"CONTEXT"}"#,
        );
        assert_eq!(
            line.json,
            json!({"name": "a", "error": "line 4: field 'model' is missing"})
        );
        let line = sign(5, r#"{"name":"b","key":"k"}"#);
        assert_eq!(line.outcome, Outcome::Unusable);
        let line = verify(
            6,
            r#"{"name":"c","key":"k","role":"CONTEXT","headers":{"a":1}}"#,
        );
        let error = line.json["error"].as_str().expect("text").to_owned();
        assert!(
            error.starts_with("line 6: field 'headers' must be"),
            "{error}"
        );
    }

    #[test]
    fn blank_lines_are_passed_over_and_bad_bytes_are_not() {
        let mut out = Vec::new();
        let tally = sign_all(&b"\n \n\xff\n"[..], &mut out).expect("lines");
        let expected = Tally {
            unusable: 1,
            ..Tally::default()
        };
        assert_eq!(tally, expected);
        assert_eq!(answers(&out)[0]["error"], "line 3: is not UTF-8");
    }
}
