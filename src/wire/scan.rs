//! Checks over a whole JSON text that its parser does not make.
//!
//! How deep it is nested, since Python's parser recurses and other readers may too, and whether it has
//! half of a surrogate pair, which no UTF-8 can carry (specification section 5.7). The text may be
//! hostile: every check is iterative and takes one pass at most, most of it many bytes at a time.

use memchr::memchr;

/// Lists and maps inside each other above which a text is refused; Python's parser recurses.
pub const MAX_DEPTH: usize = 200;

/// A text is nested deeper than [`MAX_DEPTH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

/// Checks how deep a JSON text is nested.
pub fn check_depth(text: &str) -> Result<(), TooDeep> {
    let bytes = text.as_bytes();
    if openers(bytes) <= MAX_DEPTH {
        return Ok(());
    }
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = after_string(bytes, at),
            _ => {}
        }
    }
    Ok(())
}

/// How many lists and maps open at most. Counts in bytes, a block at a time, so that the compiler
/// compares many at once.
fn openers(bytes: &[u8]) -> usize {
    let opens = |block: &[u8]| -> u8 {
        let opens = block.iter().map(|byte| u8::from(byte | 0x20 == b'{'));
        opens.fold(0, u8::wrapping_add)
    };
    let blocks = bytes.chunks(usize::from(u8::MAX));
    blocks.map(|block| usize::from(opens(block))).sum()
}

/// Where a string whose inside begins at `start` has ended. Only quotes are searched for, since most
/// escapes are of something else; one that an odd number of backslashes precedes is escaped.
fn after_string(bytes: &[u8], start: usize) -> usize {
    let mut from = start;
    while let Some(next) = memchr(b'"', bytes.get(from..).unwrap_or_default()) {
        let inside = bytes.get(start..from + next).unwrap_or_default();
        from += next + 1;
        let backslashes = inside.iter().rev().take_while(|&&byte| byte == b'\\');
        if backslashes.count() % 2 == 0 {
            return from;
        }
    }
    bytes.len()
}

/// Whether a JSON text has an escape of half a surrogate pair; the offset of the first one.
pub fn lone_surrogate(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if !may_have_surrogate(bytes) {
        return None;
    }
    let mut at = 0;
    while let Some(next) = memchr(b'\\', bytes.get(at..).unwrap_or_default()) {
        at += next;
        match escaped_unit(bytes, at) {
            Some(0xd800..=0xdbff) => match escaped_unit(bytes, at + 6) {
                Some(0xdc00..=0xdfff) => at += 12,
                _ => return Some(at),
            },
            Some(0xdc00..=0xdfff) => return Some(at),
            Some(_) => at += 6,
            None => at += 2,
        }
    }
    None
}

/// Whether `\ud` occurs at all; written so that the compiler compares many bytes at once.
fn may_have_surrogate(bytes: &[u8]) -> bool {
    let second = bytes.get(1..).unwrap_or_default();
    let third = bytes.get(2..).unwrap_or_default();
    let triples = bytes.iter().zip(second).zip(third);
    let found = triples.fold(0, |found, ((a, b), c)| {
        found | (u8::from(*a == b'\\') & u8::from(*b == b'u') & u8::from(c | 0x20 == b'd'))
    });
    found > 0
}

/// The unit of a `\uXXXX` escape at this offset.
fn escaped_unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn depth_is_counted_outside_strings_and_without_recursion() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(check_depth(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check_depth(&nested(MAX_DEPTH + 1)), Err(TooDeep));
        assert_eq!(check_depth(&nested(100_000)), Err(TooDeep));
        assert_eq!(check_depth(&"[]".repeat(1000)), Ok(()));
        let quoted = format!("\"{}\\\"{}\"", "[".repeat(300), "{".repeat(300));
        assert_eq!(check_depth(&quoted), Ok(()));
    }

    #[test]
    fn finds_half_surrogate_pairs_only() {
        for text in [
            r#""\ud83d\ude00""#,
            r#""\\ud800""#,
            r#""\uD83D\uDE00\ud83d\ude00""#,
            r#""\u00e9 ud800""#,
        ] {
            assert_eq!(lone_surrogate(text), None, "{text}");
        }
        for (text, at) in [
            (r#""\ud800""#, 1),
            (r#""\uDC00""#, 1),
            (r#""a\ud83d\ud83d\ude00""#, 2),
            (r#""\\\ud83dx""#, 3),
            (r#""\ud83d\n""#, 1),
        ] {
            assert_eq!(lone_surrogate(text), Some(at), "{text}");
        }
    }

    /// The depth, counted one byte after another.
    fn depth(text: &str) -> usize {
        let (mut depth, mut deepest, mut inside, mut escaped) = (0usize, 0, false, false);
        for byte in text.bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if inside => escaped = true,
                b'"' => inside = !inside,
                b'[' | b'{' if !inside => depth += 1,
                b']' | b'}' if !inside => depth = depth.saturating_sub(1),
                _ => {}
            }
            deepest = deepest.max(depth);
        }
        deepest
    }

    proptest! {
        #[test]
        fn depth_equals_a_plain_count(text in "([\\[{\\]}a]|\"([^\"\\\\]|\\\\.){0,6}\"){0,80}") {
            let before = "[".repeat(195);
            let text = format!("{before}{text}");
            prop_assert_eq!(check_depth(&text).is_ok(), depth(&text) <= MAX_DEPTH);
        }

        #[test]
        fn checks_never_panic(text in any::<String>(), escapes in "[\\\\ud89c\"\\[{]{0,300}") {
            for text in [&text, &escapes] {
                let _ = check_depth(text);
                let _ = lone_surrogate(text);
            }
        }
    }
}
