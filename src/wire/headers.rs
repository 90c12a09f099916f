//! Header names, and header values as a worker reads them.
//!
//! A header value is bytes; the Python workers decode them as latin-1, so here text from a header
//! has one character per byte (specification section 5.7). This file decides which copy of a header
//! counts and what is stripped from it. It must never guess another encoding.

use std::borrow::Cow;

use http::HeaderMap;

/// The parent's id, towards context and generation workers (specification section 5.4).
pub const AFFINITY_ID: &str = "x-trtllm-subagent-affinity-id";
/// The signature over [`AFFINITY_ID`] and the request it came with.
pub const AFFINITY_AUTH: &str = "x-trtllm-subagent-affinity-auth";
/// The signature over the KV transfer fields (specification section 5.5).
pub const DISAGG_AUTH: &str = "x-trtllm-disagg-auth";
/// Upstream's switch of the body's encoding (specification section 4.1).
pub const MSGPACK: &str = "x-trtllm-msgpack";
/// The rank that an engine is told to use.
pub const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";
/// Every header whose name begins so is Kindred's own.
pub const TRTLLM_PREFIX: &str = "x-trtllm-";
/// Every header of Kindred's own starts so.
pub const KINDRED_PREFIX: &str = "x-kindred-";
/// The ADP rank that served a request.
pub const KINDRED_RANK: &str = "x-kindred-rank";
/// The alias of the context instance that served a request.
pub const KINDRED_CONTEXT: &str = "x-kindred-context";
/// The alias of the generation instance that served a request.
pub const KINDRED_GENERATION: &str = "x-kindred-generation";

/// The headers that may carry a conversation id, in the order in which they are asked
/// (specification section 5.2).
pub const CONVERSATION_ID_HEADERS: [&str; 6] = [
    "x-claude-code-session-id",
    "x-claude-session-id",
    "x-session-id",
    "x-correlation-id",
    "x-session-affinity",
    "x-multi-turn-session-id",
];

/// The headers in which agent programs name a parent, and which other routers trust; always removed,
/// whatever is configured. The first is the one that upstream's documentation uses.
pub const PARENT_HEADERS: [&str; 4] = [
    "x-dynamo-parent-session-id",
    "x-claude-code-parent-agent-id",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
];

/// Whether a name is one that only Kindred and the workers may set, in any spelling.
pub fn is_internal(name: &[u8]) -> bool {
    [TRTLLM_PREFIX, KINDRED_PREFIX]
        .iter()
        .any(|prefix| begins_alike(name, prefix.as_bytes()))
        || is_alike(name, DATA_PARALLEL_RANK.as_bytes())
}

/// Whether a name is one in which a parent is named and that some router believes, in any spelling.
pub fn names_a_parent(name: &[u8]) -> bool {
    let mut known = PARENT_HEADERS.iter();
    known.any(|known| is_alike(name, known.as_bytes()))
}

/// Whether some server reads both names alike: case does not count, nor does `_` for `-`.
pub fn is_alike(name: &[u8], known: &[u8]) -> bool {
    name.len() == known.len() && begins_alike(name, known)
}

/// Whether `name` begins with something that [is alike](is_alike) `prefix`.
pub fn begins_alike(name: &[u8], prefix: &[u8]) -> bool {
    let folded = |byte: u8| match byte {
        b'_' => b'-',
        other => other.to_ascii_lowercase(),
    };
    let mut pairs = name.iter().zip(prefix);
    name.len() >= prefix.len() && pairs.all(|(a, b)| folded(*a) == folded(*b))
}

/// Anything that headers can be read from.
pub trait HeaderSource {
    /// Every value of the header `name` (lower-case) as latin-1 text, in order of arrival.
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a;
}

impl HeaderSource for HeaderMap {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        self.get_all(name)
            .iter()
            .map(|value| latin1_text(value.as_bytes()))
    }
}

impl HeaderSource for [(String, Vec<u8>)] {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        self.iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| latin1_text(value))
    }
}

impl HeaderSource for Vec<(String, Vec<u8>)> {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        self.as_slice().values(name)
    }
}

/// Headers whose values have been decoded already.
impl HeaderSource for [(String, String)] {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        self.iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| Cow::Borrowed(value.as_str()))
    }
}

impl HeaderSource for Vec<(String, String)> {
    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> + 'a {
        self.as_slice().values(name)
    }
}

/// Bytes as latin-1 text: each byte is one character.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// As [`latin1`], without a copy where the bytes are ASCII.
pub fn latin1_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(latin1(bytes)),
    }
}

/// A text as whoever reads it from a header has it: latin-1, stripped (specification section 5.7).
pub fn as_header(text: &str) -> Cow<'_, str> {
    match latin1_text(text.as_bytes()) {
        Cow::Borrowed(text) => Cow::Borrowed(strip(text)),
        Cow::Owned(text) => Cow::Owned(strip(&text).to_owned()),
    }
}

/// The bytes whose latin-1 text is `text`; `None` where a character is above U+00FF.
pub fn latin1_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect()
}

/// Whether Python's `str.strip` removes this character.
///
/// In the latin-1 range that is 09-0D, 1C-20, 85 and A0 (specification section 5.7).
pub fn is_stripped(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `text` without what Python's `str.strip` removes.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_stripped)
}

/// The last copy of a header, stripped; `None` where there is none or the last one is blank.
pub fn last(headers: &(impl HeaderSource + ?Sized), name: &str) -> Option<String> {
    let value = headers.values(name).last()?;
    let text = strip(&value);
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_exactly_pythons_set_in_latin1() {
        let stripped: Vec<u32> = (0..=0xff)
            .filter(|&code| char::from_u32(code).is_some_and(is_stripped))
            .collect();
        let mut expected: Vec<u32> = (0x09..=0x0d).chain(0x1c..=0x20).collect();
        expected.extend([0x85, 0xa0]);
        assert_eq!(stripped, expected);
    }

    #[test]
    fn keeps_what_python_keeps_beyond_latin1() {
        assert_eq!(strip("\u{feff}a\u{180e}"), "\u{feff}a\u{180e}");
        assert_eq!(strip("\u{3000}\u{2028}a b\u{205f}\u{1680}"), "a b");
    }

    #[test]
    fn latin1_round_trips_every_byte() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(latin1_bytes(&latin1(&bytes)).as_deref(), Some(&bytes[..]));
        assert_eq!(latin1_bytes("\u{100}"), None);
        assert_eq!(latin1_text(b"caf\xc3\xa9"), "caf\u{c3}\u{a9}");
    }

    #[test]
    fn the_last_copy_counts_even_when_blank() {
        let mut map = HeaderMap::new();
        map.append("x-session-id", "first".parse().expect("a header value"));
        map.append("x-session-id", " last ".parse().expect("a header value"));
        assert_eq!(last(&map, "x-session-id").as_deref(), Some("last"));
        map.append("x-session-id", " ".parse().expect("a header value"));
        assert_eq!(last(&map, "x-session-id"), None);
    }

    #[test]
    fn internal_names_are_known_in_every_spelling() {
        for name in [
            AFFINITY_ID,
            MSGPACK,
            KINDRED_RANK,
            "X_TRTLLM-Subagent_affinity_AUTH",
            "x-trtllm-",
            "X-Kindred-Anything",
            "x_data_parallel_rank",
        ] {
            assert!(is_internal(name.as_bytes()), "{name}");
        }
        for name in ["x-trtllm", "x-data-parallel-rank-x", "x-session-id", ""] {
            assert!(!is_internal(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn names_match_in_any_case() {
        let pairs = vec![("X-Session-ID".to_owned(), b"a".to_vec())];
        assert_eq!(last(&pairs, "x-session-id").as_deref(), Some("a"));
    }
}
