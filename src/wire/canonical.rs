//! Canonical JSON: the bytes that are signed.
//!
//! It is what Python's `json.dumps(sort_keys=True, separators=(",", ":"))` writes: ASCII only, every
//! character outside 20..7E escaped, DEL included (specification section 5.6). Any difference here
//! is a signature that does not hold, so nothing in this file may lean on another JSON writer.

use serde_json::value::RawValue;

use super::{escape, object::Object, python, scan, text::Text};

/// Appends any JSON value canonically; `None` where `raw` is not JSON or too large to re-encode.
///
/// Members are sorted by code point and of equal names the last one stays, as in Python.
pub fn json(out: &mut String, raw: &str) -> Option<()> {
    if raw.starts_with('"') {
        escape::text(out, &Text::from_json(raw)?);
        return Some(());
    }
    if raw.len() > python::MAX_NESTED_VALUE {
        return None;
    }
    scan::check_depth(raw).ok()?;
    value(out, raw)
}

fn value(out: &mut String, raw: &str) -> Option<()> {
    match raw.as_bytes().first()? {
        b'"' => escape::text(out, &Text::from_json(raw)?),
        b't' | b'f' | b'n' => out.push_str(raw),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                value(out, item.get())?;
            }
            out.push(']');
        }
        b'{' => members(out, raw)?,
        _ => python::number(out, raw, "Infinity")?,
    }
    Some(())
}

fn members(out: &mut String, raw: &str) -> Option<()> {
    let object = Object::parse(raw).ok()?;
    let mut members: Vec<(&str, &str)> = object.unique().collect();
    members.sort_unstable_by_key(|(name, _)| *name);
    out.push('{');
    for (position, (name, raw)) in members.into_iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        escape::string(out, name);
        out.push(':');
        value(out, raw)?;
    }
    out.push('}');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn re_encodes_nested_values_as_python_does() {
        let mut out = String::new();
        let raw = r#" {"b" : [1.0, -0, 1E+22, null], "a":"\u00e9\/", "b":{"z":true,"":0.00001}} "#;
        json(&mut out, raw.trim()).expect("JSON");
        assert_eq!(out, r#"{"a":"\u00e9/","b":{"":1e-05,"z":true}}"#);
    }

    #[test]
    fn refuses_to_recurse_without_bound() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert_eq!(json(&mut String::new(), &deep), None);
    }
}
