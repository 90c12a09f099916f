//! JSON strings as Python writes them: the leaves of canonical JSON.
//!
//! With `ensure_ascii`, which is the rule, every character outside 20..7E is escaped, DEL included
//! (specification section 5.6); without it only quotes, backslashes and characters below 20.

use super::text::Text;

/// Appends `text` as a canonical JSON string, quotes included.
pub fn string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    loop {
        let (plain, other) = rest.split_at(plain_length(rest.as_bytes()));
        out.push_str(plain);
        let mut chars = other.chars();
        let Some(c) = chars.next() else { break };
        for &unit in c.encode_utf16(&mut [0; 2]).iter() {
            unit_escaped(out, unit);
        }
        rest = chars.as_str();
    }
    out.push('"');
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\')
}

/// How many bytes at the beginning stay as they are; whole chunks are looked at at once, because an
/// opaque state is one long text that nothing has to be escaped in.
fn plain_length(bytes: &[u8]) -> usize {
    const CHUNK: usize = 32;
    let all_plain =
        |chunk: &[u8; CHUNK]| chunk.iter().fold(true, |all, &byte| all & is_plain(byte));
    let (chunks, _) = bytes.as_chunks::<CHUNK>();
    let start = CHUNK * chunks.iter().take_while(|chunk| all_plain(chunk)).count();
    let rest = bytes.iter().skip(start);
    start + rest.take_while(|&&byte| is_plain(byte)).count()
}

/// Appends `text` as Python writes it without `ensure_ascii`, quotes included.
pub fn unicode_string(out: &mut String, text: &str) {
    out.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte < b' ' || byte == b'"' || byte == b'\\' {
            out.push_str(text.get(plain_from..at).unwrap_or_default());
            plain_from = at + 1;
            unit_escaped(out, byte.into());
        }
    }
    out.push_str(text.get(plain_from..).unwrap_or_default());
    out.push('"');
}

/// Appends `text` as a canonical JSON string; lone surrogates keep their escapes.
pub fn text(out: &mut String, text: &Text) {
    match text {
        Text::Plain(text) => string(out, text),
        Text::Wide(units) => {
            out.push('"');
            for &unit in units {
                match u8::try_from(unit) {
                    Ok(byte @ 0x20..=0x7e) if byte != b'"' && byte != b'\\' => {
                        out.push(char::from(byte));
                    }
                    _ => unit_escaped(out, unit),
                }
            }
            out.push('"');
        }
    }
}

/// Appends `text` or `null`.
pub fn optional(out: &mut String, value: Option<&Text>) {
    match value {
        Some(value) => text(out, value),
        None => out.push_str("null"),
    }
}

fn unit_escaped(out: &mut String, unit: u16) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let short = match unit {
        0x22 => "\\\"",
        0x5c => "\\\\",
        0x0a => "\\n",
        0x0d => "\\r",
        0x09 => "\\t",
        0x08 => "\\b",
        0x0c => "\\f",
        _ => {
            out.push_str("\\u");
            for shift in [12, 8, 4, 0] {
                let digit = usize::from(unit >> shift & 15);
                out.push(HEX.get(digit).copied().unwrap_or('0'));
            }
            return;
        }
    };
    out.push_str(short);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &str) -> String {
        let mut out = String::new();
        string(&mut out, text);
        out
    }

    /// The rule, said as plainly as it can be.
    fn reference(text: &str) -> String {
        let mut out = String::from("\"");
        for unit in text.encode_utf16() {
            out += &match unit {
                0x22 => "\\\"".to_owned(),
                0x5c => "\\\\".to_owned(),
                0x08 => "\\b".to_owned(),
                0x09 => "\\t".to_owned(),
                0x0a => "\\n".to_owned(),
                0x0c => "\\f".to_owned(),
                0x0d => "\\r".to_owned(),
                0x20..=0x7e => String::from_utf16_lossy(&[unit]),
                _ => format!("\\u{unit:04x}"),
            };
        }
        out + "\""
    }

    #[test]
    fn escapes_del_and_splits_astral_characters() {
        assert_eq!(
            encoded("a\u{7f}/\u{1f600}\u{e9}"),
            r#""a\u007f/\ud83d\ude00\u00e9""#
        );
    }

    proptest! {
        #[test]
        fn equals_the_reference(text in any::<String>()) {
            prop_assert_eq!(encoded(&text), reference(&text));
        }

        #[test]
        fn equals_the_reference_near_ascii(text in "[\\x00-\\xff\u{d7ff}\u{e000}\u{ffff}\u{10000}]{0,40}") {
            prop_assert_eq!(encoded(&text), reference(&text));
        }

        #[test]
        fn equals_the_reference_after_long_plain_text(text in "[ -~]{0,100}\\PC?[a-z]{0,100}") {
            prop_assert_eq!(encoded(&text), reference(&text));
        }

        #[test]
        fn unicode_escapes_only_what_it_must(text in "[\\x00-\\xff\u{ffff}\u{10000}]{0,40}") {
            let mut out = String::new();
            unicode_string(&mut out, &text);
            let must = |c: char| c < ' ' || c == '"' || c == '\\';
            let kept: String = text.chars().filter(|c| !must(*c)).collect();
            prop_assert!(!out.chars().any(|c| c < ' '));
            prop_assert_eq!(serde_json::from_str::<String>(&out).expect("JSON"), &*text);
            if kept == text {
                prop_assert_eq!(out, format!("\"{text}\""));
            }
        }

        #[test]
        fn is_ascii_and_decodes_to_the_same_text(text in any::<String>()) {
            let out = encoded(&text);
            prop_assert!(out.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
            prop_assert_eq!(serde_json::from_str::<String>(&out).expect("JSON"), text);
        }
    }
}
