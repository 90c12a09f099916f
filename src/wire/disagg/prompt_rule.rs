//! Which completion prompts can be split over two legs.
//!
//! One prompt can: a string or a list of token ids, also inside a list of one (specification section
//! 3.4). Several prompts cannot, since one context answer hands over one KV cache. The rule is applied
//! before any prefill, and a list of ids is never read as numbers.

use serde_json::value::RawValue;

use super::super::body::{BodyError, BodyView};

const FIELD: &str = "prompt";

/// The raw prompt that replaces the client's; `None` where the client's own goes on as it is.
pub fn completion_prompt<'a>(view: &BodyView<'a>) -> Result<Option<&'a str>, BodyError> {
    let Some(raw) = view.present(FIELD) else {
        return Err(refusal("is missing"));
    };
    match raw.as_bytes().first() {
        Some(b'"') => Ok(None),
        Some(b'[') if is_ids(raw) => Ok(None),
        Some(b'[') => only_element(raw).map(Some),
        _ => Err(refusal("must be a string or a list of token ids")),
    }
}

/// The prompt inside a list of one.
fn only_element(raw: &str) -> Result<&str, BodyError> {
    let items: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
    match items.as_slice() {
        [] => Err(unsupported("is an empty list")),
        [only] if only.get().starts_with('"') || is_ids(only.get()) => Ok(only.get()),
        [_] => Err(unsupported("must be a string or a list of token ids")),
        _ => Err(unsupported(
            "holds several prompts; send one request for each",
        )),
    }
}

/// Whether this is a list of numbers, at least one.
fn is_ids(raw: &str) -> bool {
    let inside = raw
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let numeric = |byte: u8| {
        byte.is_ascii_digit()
            || matches!(byte, b',' | b'-' | b'.' | b'e' | b'E' | b'+')
            || byte.is_ascii_whitespace()
    };
    inside.is_some_and(|inside| {
        inside.bytes().all(numeric) && inside.bytes().any(|b| b.is_ascii_digit())
    })
}

fn refusal(what: &str) -> BodyError {
    BodyError::field(FIELD, format!("'{FIELD}' {what}"))
}

/// A list that workers would take and that has no two legs: upstream has an answer of its own for it.
fn unsupported(what: &str) -> BodyError {
    BodyError {
        code: "unsupported_prompt",
        ..refusal(what)
    }
}
