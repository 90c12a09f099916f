//! Text as a Python worker holds it.
//!
//! Python strings can hold lone surrogates, Rust strings cannot, and a worker's JSON parser lets them
//! in as `\ud800`. Where Kindred must say what a worker would sign it uses [`Text`]; everything it
//! forwards itself is plain Unicode, because [`super::body::BodyView`] refuses the rest.

use std::borrow::Cow;

use super::headers::is_stripped;

/// Unicode text, or UTF-16 units where the text has lone surrogates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text<'a> {
    /// Text without lone surrogates.
    Plain(Cow<'a, str>),
    /// Text with at least one lone surrogate.
    Wide(Vec<u16>),
}

impl<'a> Text<'a> {
    /// The text of a JSON string token; `None` where `raw` is no such token.
    pub fn from_json(raw: &'a str) -> Option<Self> {
        let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
        if !inner.contains('\\') {
            return Some(Self::Plain(Cow::Borrowed(inner)));
        }
        match serde_json::from_str::<String>(raw) {
            Ok(text) => Some(Self::Plain(Cow::Owned(text))),
            Err(_) => units(inner).map(Self::Wide),
        }
    }

    /// The text where it is plain Unicode.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Wide(_) => None,
        }
    }

    /// The text with U+FFFD for lone surrogates.
    pub fn to_lossy(&self) -> Cow<'_, str> {
        match self {
            Self::Plain(text) => Cow::Borrowed(text),
            Self::Wide(units) => Cow::Owned(String::from_utf16_lossy(units)),
        }
    }

    /// The text without what Python's `str.strip` removes; `None` where nothing is left.
    pub fn stripped(self) -> Option<Self> {
        match self {
            Self::Plain(Cow::Borrowed(text)) => {
                let text = super::headers::strip(text);
                (!text.is_empty()).then_some(Self::Plain(Cow::Borrowed(text)))
            }
            Self::Plain(Cow::Owned(text)) => {
                let kept = super::headers::strip(&text);
                (!kept.is_empty()).then(|| Self::Plain(Cow::Owned(kept.to_owned())))
            }
            Self::Wide(units) => {
                let blank = |unit: &u16| char::from_u32(u32::from(*unit)).is_some_and(is_stripped);
                let start = units.iter().position(|unit| !blank(unit))?;
                let end = units.iter().rposition(|unit| !blank(unit))?;
                units.get(start..=end).map(|kept| Self::Wide(kept.to_vec()))
            }
        }
    }

    /// The same text, owned.
    pub fn into_owned(self) -> Text<'static> {
        match self {
            Self::Plain(text) => Text::Plain(Cow::Owned(text.into_owned())),
            Self::Wide(units) => Text::Wide(units),
        }
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::Plain(Cow::Borrowed(text))
    }
}

/// Decodes the inside of a valid JSON string token to UTF-16 units.
fn units(inner: &str) -> Option<Vec<u16>> {
    let mut units = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
            continue;
        }
        units.push(match rest.next()? {
            'b' => 0x08,
            'f' => 0x0c,
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'u' => {
                let digits = rest.as_str().get(..4)?;
                rest = rest.as_str().get(4..)?.chars();
                u16::from_str_radix(digits, 16).ok()?
            }
            other => u16::try_from(u32::from(other)).ok()?,
        });
    }
    Some(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrows_where_nothing_is_escaped() {
        let text = Text::from_json("\"caf\u{e9}\"").expect("a string");
        assert!(matches!(text, Text::Plain(Cow::Borrowed("caf\u{e9}"))));
    }

    #[test]
    fn keeps_lone_surrogates_and_joins_pairs() {
        let lone = Text::from_json(r#""a\ud800\n\/""#).expect("a string");
        assert_eq!(lone, Text::Wide(vec![0x61, 0xd800, 0x0a, 0x2f]));
        assert_eq!(lone.to_lossy(), "a\u{fffd}\n/");
        let pair = Text::from_json(r#""\ud83d\ude00""#).expect("a string");
        assert_eq!(pair.as_str(), Some("\u{1f600}"));
    }

    #[test]
    fn strips_both_kinds() {
        let wide = Text::Wide(vec![0x20, 0xdc00, 0x3000]);
        assert_eq!(wide.stripped(), Some(Text::Wide(vec![0xdc00])));
        assert_eq!(Text::from(" \u{85}").stripped(), None);
    }
}
