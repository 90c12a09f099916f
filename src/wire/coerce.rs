//! How a worker's request models read a JSON value that has another type than they declare.
//!
//! Workers validate bodies with pydantic in its lax mode: an integer field takes `"42"` and `42.0`, a
//! boolean takes `"yes"` (specification section 5.8, expected values of `wire_body`). What is signed
//! is the coerced value, so both the edge and the worker filter must coerce alike. The rules were
//! checked against pydantic 2.

use std::fmt;

use super::{python::MAX_INTEGER_DIGITS, text::Text};

/// A whole number of any size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Integer(Number);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Number {
    Small(i128),
    /// Decimal digits without leading zeros, with a `-` where negative.
    Large(Box<str>),
}

impl Integer {
    /// The number where it fits.
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Number::Small(value) => u64::try_from(*value).ok(),
            Number::Large(_) => None,
        }
    }

    fn from_digits(negative: bool, digits: &str) -> Option<Self> {
        let digits = digits.trim_start_matches('0');
        if digits.len() > MAX_INTEGER_DIGITS {
            return None;
        }
        if digits.is_empty() {
            return Some(Self(Number::Small(0)));
        }
        let text = format!("{}{digits}", if negative { "-" } else { "" });
        Some(Self(match text.parse() {
            Ok(small) => Number::Small(small),
            Err(_) => Number::Large(text.into()),
        }))
    }
}

impl From<u64> for Integer {
    fn from(value: u64) -> Self {
        Self(Number::Small(value.into()))
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Number::Small(value) => value.fmt(f),
            Number::Large(digits) => f.write_str(digits),
        }
    }
}

/// Why a value is not what a field wants, in words that follow "must be".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit(pub &'static str);

const INTEGER: Unfit = Unfit("a whole number");
const BOOLEAN: Unfit = Unfit("true or false");
const STRING: Unfit = Unfit("a string");

/// Reads an integer field from a JSON value.
pub fn integer(raw: &str) -> Result<Integer, Unfit> {
    match raw.as_bytes().first() {
        Some(b't') => Ok(Integer::from(1)),
        Some(b'f') => Ok(Integer::from(0)),
        Some(b'"') => {
            let text = Text::from_json(raw).ok_or(INTEGER)?;
            integer_of_text(text.as_str().ok_or(INTEGER)?).ok_or(INTEGER)
        }
        Some(b'-' | b'0'..=b'9') => integer_of_number(raw).ok_or(INTEGER),
        _ => Err(INTEGER),
    }
}

fn integer_of_number(raw: &str) -> Option<Integer> {
    if raw.contains(['.', 'e', 'E']) {
        let value: f64 = raw.parse().ok()?;
        // 2^63 itself does not fit an i64, and pydantic refuses both ends.
        let fits = value.fract() == 0.0 && value.abs() < 9_223_372_036_854_775_808.0;
        return fits
            .then(|| Integer::from_digits(value < 0.0, &format!("{:.0}", value.abs())))
            .flatten();
    }
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    Integer::from_digits(raw.starts_with('-'), digits)
}

/// White space around, one sign, digits with single underscores between them (any number of them
/// after a leading zero), and `.0` at most.
fn integer_of_text(text: &str) -> Option<Integer> {
    let text = text.trim();
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let whole = match unsigned.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => whole,
        Some(_) => return None,
        None => unsigned,
    };
    let significant = match whole.starts_with('0') && !whole.ends_with('_') && !negative {
        true => whole.trim_start_matches(['0', '_']),
        false => whole,
    };
    if significant.is_empty() && !whole.is_empty() {
        return Integer::from_digits(false, "");
    }
    let mut digits = String::with_capacity(significant.len());
    for group in significant.split('_') {
        if group.is_empty() || !group.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.push_str(group);
    }
    Integer::from_digits(negative, &digits)
}

/// Reads a boolean field from a JSON value.
pub fn boolean(raw: &str) -> Result<bool, Unfit> {
    match raw.as_bytes().first() {
        Some(b't') => Ok(true),
        Some(b'f') => Ok(false),
        Some(b'"') => {
            let text = Text::from_json(raw).ok_or(BOOLEAN)?;
            let word = text.as_str().ok_or(BOOLEAN)?.to_ascii_lowercase();
            match word.as_str() {
                "1" | "on" | "t" | "true" | "y" | "yes" => Ok(true),
                "0" | "off" | "f" | "false" | "n" | "no" => Ok(false),
                _ => Err(BOOLEAN),
            }
        }
        Some(b'-' | b'0'..=b'9') => match raw.parse::<f64>() {
            Ok(0.0) => Ok(false),
            Ok(1.0) => Ok(true),
            _ => Err(BOOLEAN),
        },
        _ => Err(BOOLEAN),
    }
}

/// Reads a string field from a JSON value: nothing is coerced to a string.
pub fn string(raw: &str) -> Result<Text<'_>, Unfit> {
    Text::from_json(raw).ok_or(STRING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(raw: &str) -> Option<String> {
        integer(raw).ok().map(|value| value.to_string())
    }

    #[test]
    fn takes_the_integers_that_pydantic_takes() {
        for (raw, expected) in [
            ("42", "42"),
            ("-0", "0"),
            ("42.0", "42"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("1.0E+2", "100"),
            ("9007199254740993.0", "9007199254740992"),
            ("true", "1"),
            ("false", "0"),
            ("1180591620717411303424", "1180591620717411303424"),
            ("-9223372036854775809", "-9223372036854775809"),
            ("\"42\"", "42"),
            ("\" 42 \"", "42"),
            ("\"\\n\\u00a042\\u3000\\u0085\"", "42"),
            ("\"1_000\"", "1000"),
            ("\"+42\"", "42"),
            ("\"-42.00\"", "-42"),
            ("\"042\"", "42"),
            ("\"0_0\"", "0"),
            ("\"9223372036854775808.0\"", "9223372036854775808"),
        ] {
            assert_eq!(read(raw).as_deref(), Some(expected), "{raw}");
        }
        assert!(read(&"9".repeat(4300)).is_some());
        assert!(read(&format!("\"{}1\"", "0".repeat(5000))).is_some());
    }

    #[test]
    fn refuses_the_integers_that_pydantic_refuses() {
        for raw in [
            "42.5",
            "1e19",
            "-1e400",
            "9.3e18",
            "null",
            "[]",
            "{}",
            "\"\"",
            "\" \"",
            "\"42.\"",
            "\"42.5\"",
            "\".0\"",
            "\"1__0\"",
            "\"_1\"",
            "\"1_\"",
            "\"+_1\"",
            "\"+ 1\"",
            "\"--1\"",
            "\"1e3\"",
            "\"0x10\"",
            "\"true\"",
            "\"1.0_0\"",
            "\"1_.0\"",
            "\"\\u001c42\"",
            "\"\\u0661\"",
            "\"\\ud800\"",
            "\"42\\u0000\"",
        ] {
            assert_eq!(read(raw), None, "{raw}");
        }
        assert_eq!(read(&"9".repeat(4301)), None);
    }

    #[test]
    fn takes_the_booleans_that_pydantic_takes() {
        for raw in ["true", "1", "1.0", "\"YES\"", "\"on\"", "\"T\"", "\"1\""] {
            assert_eq!(boolean(raw), Ok(true), "{raw}");
        }
        for raw in ["false", "0", "-0.0", "\"No\"", "\"off\"", "\"f\""] {
            assert_eq!(boolean(raw), Ok(false), "{raw}");
        }
        for raw in ["2", "0.5", "null", "\" true\"", "\"\"", "[]"] {
            assert_eq!(boolean(raw), Err(BOOLEAN), "{raw}");
        }
    }
}
