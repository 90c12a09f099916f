//! Canonical JSON: it says the same as the text it was made of, in ASCII, and is in its canonical form
//! already.
#![no_main]

use kindred::wire::canonical;
use libfuzzer_sys::fuzz_target;
use serde_json::{Number, Value, value::RawValue};

fuzz_target!(|text: &str| {
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return;
    }
    let mut once = String::new();
    if canonical::json(&mut once, text.trim()).is_none() {
        return;
    }
    assert!(once.bytes().all(|byte| matches!(byte, b' '..=b'~')));
    // This reader takes no deep nesting, no half of a surrogate pair and no number beyond a float, for
    // which Python writes a word that is not JSON.
    let value = serde_json::from_str::<Value>(text);
    if value.is_err() && once.contains("Infinity") {
        return;
    }
    serde_json::from_str::<&RawValue>(&once).expect("JSON");
    let mut twice = String::new();
    canonical::json(&mut twice, &once).expect("canonical JSON can be made canonical");
    assert_eq!(once, twice);
    if let Ok(value) = value {
        let again: Value = serde_json::from_str(&once).expect("what could be read before");
        assert!(is_same(&value, &again), "{value} is not {again}");
    }
});

fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => is_same_number(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |name, value| b.get(name).is_some_and(|other| is_same(value, other));
            a.len() == b.len() && a.iter().all(|(name, value)| has(name, value))
        }
        (a, b) => a == b,
    }
}

/// Whole numbers are compared exactly; of others serde_json may read the last bit wrong.
fn is_same_number(a: &Number, b: &Number) -> bool {
    if !a.is_f64() && !b.is_f64() {
        return a == b;
    }
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= a.abs() * 1e-15 + 1e-320,
        _ => false,
    }
}
