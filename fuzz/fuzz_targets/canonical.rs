//! Canonical JSON: JSON comes out, and in its canonical form already.
#![no_main]

use kindred::wire::canonical;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

fuzz_target!(|text: &str| {
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return;
    }
    let mut once = String::new();
    if canonical::json(&mut once, text.trim()).is_none() {
        return;
    }
    serde_json::from_str::<&RawValue>(&once).expect("JSON");
    let mut twice = String::new();
    canonical::json(&mut twice, &once).expect("canonical JSON can be made canonical");
    assert_eq!(once, twice);
});
