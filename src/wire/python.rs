//! What Python's `str()` and number printing make of a JSON value.
//!
//! A worker turns a conversation id of any JSON type into text with `str()` and signs numbers as
//! Python prints them (specification sections 5.2 and 5.6). This file says what that text is. Values
//! beyond [`MAX_NESTED_VALUE`] bytes are refused: no honest id is that large.

use std::fmt::Write;

use serde_json::value::RawValue;

use super::{object::Object, scan, text::Text};

/// Bytes of JSON above which a list or a map is not turned into text.
pub const MAX_NESTED_VALUE: usize = 64 * 1024;

/// Digits above which Python refuses to convert an integer.
pub const MAX_INTEGER_DIGITS: usize = 4300;

/// Python's `str(json.loads(raw))`; `None` where `raw` is not JSON, or too large or too deep.
pub fn str_of(raw: &str) -> Option<Text<'_>> {
    if raw.starts_with('"') {
        return Text::from_json(raw);
    }
    if raw.len() > MAX_NESTED_VALUE {
        return None;
    }
    scan::check_depth(raw).ok()?;
    let mut out = String::new();
    repr(&mut out, raw)?;
    Some(Text::Plain(out.into()))
}

/// Appends a JSON number as Python prints it, `infinity` where it overflows a float.
pub(super) fn number(out: &mut String, raw: &str, infinity: &str) -> Option<()> {
    if raw.contains(['.', 'e', 'E']) {
        float(out, raw.parse().ok()?, infinity);
        return Some(());
    }
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    if digits.len() > MAX_INTEGER_DIGITS {
        return None;
    }
    out.push_str(if raw == "-0" { "0" } else { raw });
    Some(())
}

/// Appends a float as Python's `repr` prints it.
fn float(out: &mut String, value: f64, infinity: &str) {
    if value.is_sign_negative() {
        out.push('-');
    }
    if value.is_infinite() {
        out.push_str(infinity);
        return;
    }
    let scientific = format!("{:e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let _ = if (-4..16).contains(&exponent) {
        write!(out, "{:?}", PlainFloat(value.abs()))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:02}", exponent.abs())
    };
}

/// Prints without an exponent and with at least one decimal.
struct PlainFloat(f64);

impl std::fmt::Debug for PlainFloat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text)?;
        if text.contains('.') {
            Ok(())
        } else {
            f.write_str(".0")
        }
    }
}

fn repr(out: &mut String, raw: &str) -> Option<()> {
    match raw.as_bytes().first()? {
        b'"' => repr_text(out, &Text::from_json(raw)?),
        b't' => out.push_str("True"),
        b'f' => out.push_str("False"),
        b'n' => out.push_str("None"),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push_str(", ");
                }
                repr(out, item.get())?;
            }
            out.push(']');
        }
        b'{' => {
            let object = Object::parse(raw).ok()?;
            out.push('{');
            for (position, (name, raw)) in object.unique().enumerate() {
                if position > 0 {
                    out.push_str(", ");
                }
                repr_text(out, &Text::from(name));
                out.push_str(": ");
                repr(out, raw)?;
            }
            out.push('}');
        }
        _ => number(out, raw, "inf")?,
    }
    Some(())
}

/// Appends Python's `repr` of a string.
fn repr_text(out: &mut String, text: &Text) {
    let units: Vec<u16> = match text {
        Text::Plain(text) => text.encode_utf16().collect(),
        Text::Wide(units) => units.clone(),
    };
    let has = |quote: char| units.contains(&(quote as u16));
    let quote = if has('\'') && !has('"') { '"' } else { '\'' };
    out.push(quote);
    for decoded in char::decode_utf16(units.iter().copied()) {
        let _ = match decoded {
            Err(lone) => write!(out, "\\u{:04x}", lone.unpaired_surrogate()),
            Ok(c) if c == quote || c == '\\' => write!(out, "\\{c}"),
            Ok('\n') => write!(out, "\\n"),
            Ok('\r') => write!(out, "\\r"),
            Ok('\t') => write!(out, "\\t"),
            Ok(c) if is_printable(c) => write!(out, "{c}"),
            Ok(c) if u32::from(c) <= 0xff => write!(out, "\\x{:02x}", u32::from(c)),
            Ok(c) if u32::from(c) <= 0xffff => write!(out, "\\u{:04x}", u32::from(c)),
            Ok(c) => write!(out, "\\U{:08x}", u32::from(c)),
        };
    }
    out.push(quote);
}

/// Python's `str.isprintable` of one character: Rust's debug escaping follows the same categories,
/// save for combining characters at the beginning of a string, hence the letter before it.
fn is_printable(c: char) -> bool {
    if matches!(c, '"' | '\'' | '\\') {
        return true;
    }
    let text: String = ['a', c].into_iter().collect();
    text.escape_debug().eq(text.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(raw: &str) -> String {
        str_of(raw).map_or_else(|| "-".to_owned(), |text| text.to_lossy().into_owned())
    }

    #[test]
    fn scalars_print_as_in_python() {
        for (raw, expected) in [
            ("42", "42"),
            ("-0", "0"),
            ("1180591620717411303424", "1180591620717411303424"),
            ("1.5", "1.5"),
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("1e16", "1e+16"),
            ("1E15", "1000000000000000.0"),
            ("123456789012345680", "123456789012345680"),
            ("0.0001", "0.0001"),
            ("0.00001234", "1.234e-05"),
            ("1e-7", "1e-07"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("5e-324", "5e-324"),
            ("0.1", "0.1"),
            ("1e400", "inf"),
            ("-1e400", "-inf"),
            ("true", "True"),
            ("null", "None"),
            (r#""a\u0000b""#, "a\0b"),
        ] {
            assert_eq!(shown(raw), expected, "{raw}");
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        for (raw, expected) in [
            (r#"{"a":null}"#, "{'a': None}"),
            (r#"[1,"a",[],{}]"#, "[1, 'a', [], {}]"),
            (r#"["it's"]"#, r#"["it's"]"#),
            (r#"["it's \"x\""]"#, r#"['it\'s "x"']"#),
            (
                r#"["\n\t\u0000\u007f\u00a0\u00ad\u00e9\u2028"]"#,
                r"['\n\t\x00\x7f\xa0\xad\u00e9\u2028']",
            ),
            (
                r#"["\ud83d\ude00","\ud800","\udb40\udc01"]"#,
                "['\u{1f600}', '\\ud800', '\\U000e0001']",
            ),
            (r#"["\u0301"]"#, "['\u{301}']"),
            (r#"{"a":1,"b":2,"a":3}"#, "{'a': 3, 'b': 2}"),
        ] {
            let expected = expected.replace("\\u00e9", "\u{e9}");
            assert_eq!(shown(raw), expected, "{raw}");
        }
    }

    #[test]
    fn refuses_what_is_too_large() {
        assert_eq!(shown(&"9".repeat(4301)), "-");
        assert_eq!(shown(&format!("[{}]", "1,".repeat(40_000))), "-");
        assert_eq!(shown(&("[".repeat(300) + &"]".repeat(300))), "-");
    }
}
