//! One value of the file, asked for as what it should be.
//!
//! Each question answers with the value, or puts a problem with its line and key into the report
//! and answers nothing. It never repeats a value of the wrong type in a message, since that could
//! be a secret in the wrong place.

use crate::config::words::{nearest, shown};
use std::{ops::RangeInclusive, time::Duration};

use bytesize::ByteSize;

use super::node::{Entry, Node, Value};
use crate::config::report::{Place, Report};

/// A value with the dotted path of its key.
pub(crate) struct Field {
    pub(crate) at: Place,
    pub(crate) value: Value,
}

impl Field {
    /// The file as a whole.
    pub(crate) fn root(node: Node) -> Self {
        Self {
            at: Place::file(),
            value: node.value,
        }
    }

    /// The value of `entry` inside the map at `at`.
    pub(crate) fn of(at: &Place, entry: Entry) -> Self {
        Self {
            at: at.key(&shown(&entry.key), entry.line),
            value: entry.node.value,
        }
    }

    /// Whether the key stands there without a value (or with `null`).
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    pub(crate) fn text(&self, report: &mut Report) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Bool(_) => self.no(
                report,
                "must be text, and an unquoted true, false, yes, no, on or off is none; put it in \
                 quotes",
            ),
            Value::Int(_) | Value::Float(_) => {
                self.no(report, "must be text, not a number; put it in quotes")
            }
            _ => self.wrong(report, "text"),
        }
    }

    pub(crate) fn boolean(&self, report: &mut Report) -> Option<bool> {
        match &self.value {
            Value::Bool(truth) => Some(*truth),
            Value::Text(_) => self.no(
                report,
                "must be a boolean, not text; write true or false without quotes",
            ),
            _ => self.wrong(report, "a boolean; write true or false"),
        }
    }

    /// A whole number in `range`.
    pub(crate) fn integer<N>(&self, report: &mut Report, range: RangeInclusive<N>) -> Option<N>
    where
        N: TryFrom<i128> + Into<i128> + Copy,
    {
        let (low, high) = (
            i128::from_number(*range.start()),
            i128::from_number(*range.end()),
        );
        match &self.value {
            Value::Int(number) if (low..=high).contains(number) => N::try_from(*number).ok(),
            Value::Int(number) => self.no(
                report,
                &format!("is {number}; it must be between {low} and {high}"),
            ),
            Value::Text(text) if leading_zero(text) => self.no(
                report,
                "begins with a zero, which some YAML readers take for octal; write the number \
                 without it (and without quotes)",
            ),
            Value::Text(text) if text.trim().parse::<f64>().is_ok() => self.no(
                report,
                "must be a whole number, not text; remove the quotes",
            ),
            Value::Float(_) => self.no(report, "must be a whole number, without a fraction"),
            _ => self.wrong(report, &format!("a whole number between {low} and {high}")),
        }
    }

    /// A finite number, at least `low`.
    pub(crate) fn number(&self, report: &mut Report, low: f64) -> Option<f64> {
        let number = match &self.value {
            #[expect(clippy::cast_precision_loss, reason = "a multiplier or a share")]
            Value::Int(number) => *number as f64,
            Value::Float(number) => *number,
            _ => return self.wrong(report, "a number"),
        };
        if number.is_finite() && number >= low {
            return Some(number);
        }
        self.no(report, &format!("is {number}; it must be at least {low}"))
    }

    /// A duration in `range`, written `250ms`, `5s`, `10m`.
    pub(crate) fn duration(
        &self,
        report: &mut Report,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        const HOW: &str = "a duration with its unit, such as 250ms, 5s or 10m";
        let text = match &self.value {
            Value::Text(text) => text,
            Value::Int(_) | Value::Float(_) => {
                return self.no(report, &format!("has no unit; write {HOW}"));
            }
            _ => return self.wrong(report, HOW),
        };
        let Ok(duration) = humantime::parse_duration(text.trim()) else {
            return self.no(report, &format!("is {}; write {HOW}", shown(text)));
        };
        if range.contains(&duration) {
            return Some(duration);
        }
        self.no(
            report,
            &format!(
                "is {}; it must be between {} and {}",
                humantime::format_duration(duration),
                humantime::format_duration(*range.start()),
                humantime::format_duration(*range.end()),
            ),
        )
    }

    /// A size in bytes in `range`, written `64KiB`, `32MiB`, or a plain number of bytes.
    pub(crate) fn size(&self, report: &mut Report, range: RangeInclusive<u64>) -> Option<usize> {
        const HOW: &str = "a size such as 64KiB or 32MiB";
        let bytes = match &self.value {
            Value::Int(number) => u64::try_from(*number).ok(),
            Value::Text(text) => text
                .trim()
                .parse::<ByteSize>()
                .ok()
                .map(|size| size.as_u64()),
            _ => return self.wrong(report, HOW),
        };
        match bytes.filter(|bytes| range.contains(bytes)) {
            Some(bytes) => usize::try_from(bytes).ok(),
            None => self.no(
                report,
                &format!(
                    "must be {HOW}, between {} and {}",
                    written_size(*range.start()),
                    written_size(*range.end())
                ),
            ),
        }
    }

    /// One of the named `choices`, upper or lower case.
    pub(crate) fn choice<T: Copy>(
        &self,
        report: &mut Report,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(report)?;
        let lower = text.trim().to_lowercase();
        if let Some((_, choice)) = choices
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&lower))
        {
            return Some(*choice);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let hint = nearest(&lower, names.iter().copied())
            .map(|name| format!(" (did you mean `{name}`?)"))
            .unwrap_or_default();
        self.no(
            report,
            &format!("is {}; use one of {}{hint}", shown(text), names.join(", ")),
        )
    }

    /// The items of a list; a missing value is an empty list.
    pub(crate) fn list(self, report: &mut Report) -> Vec<Field> {
        let at = self.at.clone();
        match self.value {
            Value::List(nodes) => nodes
                .into_iter()
                .enumerate()
                .map(|(index, node)| Field {
                    at: at.item(index, node.line),
                    value: node.value,
                })
                .collect(),
            Value::Null => Vec::new(),
            _ => {
                report.error(&at, "must be a list; begin each item with `- `");
                Vec::new()
            }
        }
    }

    fn wrong<T>(&self, report: &mut Report, expected: &str) -> Option<T> {
        let what = match &self.value {
            Value::Null => {
                format!("has no value; it must be {expected}, or remove the key for its default")
            }
            Value::Bool(_) => format!("must be {expected}, not true or false"),
            Value::Int(_) | Value::Float(_) => format!("must be {expected}, not a number"),
            Value::Text(_) => format!("must be {expected}, not other text"),
            Value::List(_) => format!("must be {expected}, not a list"),
            Value::Map(_) => format!("must be {expected}, not a group of keys"),
        };
        self.no(report, &what)
    }

    fn no<T>(&self, report: &mut Report, what: &str) -> Option<T> {
        report.error(&self.at, what);
        None
    }
}

/// `i128::from`, reachable from a generic bound.
trait FromNumber {
    fn from_number<N: Into<i128>>(number: N) -> i128;
}

impl FromNumber for i128 {
    fn from_number<N: Into<i128>>(number: N) -> i128 {
        number.into()
    }
}

fn leading_zero(text: &str) -> bool {
    let digits = text.trim().trim_start_matches(['+', '-']);
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A size as a file would write it, exactly: `32MiB`, or plain bytes.
pub(crate) fn written_size(bytes: u64) -> String {
    for (unit, name) in [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}
