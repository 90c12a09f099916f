//! JSON strings and lists of numbers as text, without copying them.
//!
//! Decides how many code points a JSON string has and which, by looking at its escapes where it
//! lies. It takes strings that a JSON parser has accepted; of others it makes some text, never a
//! failure.

use serde_json::value::RawValue;

/// Where a prompt's text goes.
pub(super) trait Sink {
    /// Text as it is.
    fn plain(&mut self, text: &str);
    /// The inside of a JSON string, escapes and all.
    fn json(&mut self, inside: &str);
}

/// Counts code points.
#[derive(Default)]
pub(super) struct Count {
    pub code_points: u64,
}

impl Sink for Count {
    fn plain(&mut self, text: &str) {
        self.code_points += text.chars().count() as u64;
    }

    fn json(&mut self, inside: &str) {
        self.code_points += code_points(inside);
    }
}

/// Collects code points.
#[derive(Default)]
pub(super) struct CodePoints(pub Vec<u32>);

impl Sink for CodePoints {
    fn plain(&mut self, text: &str) {
        self.0.extend(text.chars().map(u32::from));
    }

    fn json(&mut self, inside: &str) {
        let mut rest = inside;
        while let Some((before, after)) = rest.split_once('\\') {
            self.plain(before);
            let (point, after) = escape(after);
            self.0.push(point);
            rest = after;
        }
        self.plain(rest);
    }
}

/// The inside of a value that is a JSON string.
pub(super) fn string(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

/// Whether a value is made of numbers, brackets and commas only.
pub(super) fn is_list_of_numbers(value: &RawValue) -> bool {
    let fits = |byte: u8| byte.is_ascii_digit() || b"[],- \t\r\n".contains(&byte);
    value.get().starts_with('[') && value.get().bytes().all(fits)
}

/// Python prints such a list as it stands, but with exactly one blank after each comma.
pub(super) fn write_numbers(value: &RawValue, sink: &mut impl Sink) {
    for part in value.get().split_inclusive(',') {
        for word in part.split_ascii_whitespace() {
            sink.plain(word);
        }
        if part.ends_with(',') {
            sink.plain(" ");
        }
    }
}

/// Code points of the inside of a JSON string.
pub(super) fn code_points(inside: &str) -> u64 {
    let mut count = 0;
    let mut rest = inside;
    while let Some((before, after)) = rest.split_once('\\') {
        count += before.chars().count() as u64 + 1;
        rest = escape(after).1;
    }
    count + rest.chars().count() as u64
}

/// The code point of an escape whose backslash has been read, and what follows it.
fn escape(text: &str) -> (u32, &str) {
    let mut rest = text.chars();
    let Some(letter) = rest.next() else {
        return (u32::from('\\'), "");
    };
    let point = match letter {
        'b' => 0x08,
        'f' => 0x0C,
        'n' => 0x0A,
        'r' => 0x0D,
        't' => 0x09,
        'u' => return unicode(rest.as_str()),
        other => u32::from(other),
    };
    (point, rest.as_str())
}

fn unicode(text: &str) -> (u32, &str) {
    let Some((unit, rest)) = hex(text) else {
        return (u32::from('u'), text);
    };
    if (0xD800..0xDC00).contains(&unit)
        && let Some((low, rest)) = rest.strip_prefix("\\u").and_then(hex)
        && (0xDC00..0xE000).contains(&low)
    {
        return (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), rest);
    }
    (unit, rest)
}

fn hex(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_at_checked(4)?;
    Some((u32::from_str_radix(digits, 16).ok()?, rest))
}
