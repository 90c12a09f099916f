//! The content pin: requests that begin alike go to the same instance (specification section 2.4).
//!
//! Decides what of a request counts, by upstream's rule: the first two messages and the first token
//! ids that the request itself carries. The value is upstream's, so that both can be compared.

use crate::wire::prompt::Prompt;

/// Pins that are kept; the least recently used goes first.
pub(super) const PINS: usize = 50_000;

/// Upstream's key.
const KEY: &[u8; 32] = b"TensorRT-LLM-route-affinity-v1!!";

/// The pin of a chat request; `None` for one without messages.
pub(super) fn of(prompt: &Prompt<'_>) -> Option<u64> {
    let mut hash = blake3::Hasher::new_keyed(KEY);
    let begun = prompt.opening(|text| {
        hash.update(text.as_bytes());
    });
    let [a, b, c, d, e, f, g, h, ..] = *hash.finalize().as_bytes();
    begun.then_some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn pin(messages: &str, ids: Option<&str>) -> Option<u64> {
        let raw = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
        let (messages, ids) = (raw(messages), ids.map(raw));
        of(&Prompt::chat(Some(&messages), ids.as_deref()))
    }

    /// The first value is the specification's; the others were made with the `blake3` package of
    /// Python and Python's own `str`.
    #[test]
    fn values_are_upstreams() {
        let hello = r#"[{"role": "user", "content": "hello"}]"#;
        assert_eq!(pin(hello, None), Some(7306401829117098140));
        let two = r#"[{"content": "You are a helper."},
                      {"content": "na\u00efve \ud83e\udd80 \"q\"\n"}, {"content": "more"}]"#;
        assert_eq!(pin(two, None), Some(16198792068881031438));
        let none = r#"[{"role": "assistant"}, {"content": "x"}]"#;
        assert_eq!(pin(none, None), Some(12580978862345656385));
        let null = r#"[{"content": null}, {"content": "x"}]"#;
        assert_eq!(pin(null, None), pin(none, None));
        let list = r#"[{"content": [{"type": "text", "text": "it's"},
                                    {"type": "n", "x": 1.5, "y": true, "z": null}]}]"#;
        assert_eq!(pin(list, None), Some(103908303214937683));
        let ids: Vec<u32> = (0..300).collect();
        let ids = serde_json::to_string(&ids).unwrap();
        assert_eq!(pin(hello, Some(&ids)), Some(6738076894214660435));
        assert_eq!(pin(hello, Some("[]")), pin(hello, None));
    }

    #[test]
    fn only_what_has_messages_has_a_pin() {
        assert_eq!(pin("[]", None), None);
        assert_eq!(pin("null", None), None);
        assert_eq!(of(&Prompt::empty()), None);
        let prompt = RawValue::from_string("\"hello\"".to_owned()).unwrap();
        assert_eq!(of(&Prompt::completion(Some(&prompt))), None);
    }
}
