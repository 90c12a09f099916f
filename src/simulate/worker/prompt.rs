//! The prompt of a body as tokens.
//!
//! A chat becomes tokens by a template of the simulation's own, in which a conversation that goes on
//! begins with the tokens it had. Ids that came in the body are taken as they are.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    disagg::{token_list, tokens},
    fields::complaint,
};
use crate::simulate::engine::tokens::{mark, tokenize};
use crate::wire::disagg::Endpoint;

/// The tokens of a chat, and whether they came as ids.
///
/// # Errors
/// The validator's complaint.
pub(super) fn chat_prompt(body: &Map<String, Value>) -> Result<(Vec<u32>, bool), String> {
    let messages = list(body.get("messages"));
    for (at, message) in messages.iter().enumerate() {
        if !message.get("role").is_some_and(Value::is_string) {
            let at = at.to_string();
            return Err(complaint(
                "missing",
                &["messages", &at],
                "role",
                "Field required",
            ));
        }
    }
    let ids = tokens(body, "prompt_token_ids")?;
    let packed = body.get("prompt_token_ids_b64").and_then(Value::as_str);
    match (ids, packed) {
        (Some(_), Some(_)) => Err(complaint(
            "value_error",
            &[],
            "prompt_token_ids_b64",
            "Value error, give prompt_token_ids or prompt_token_ids_b64, not both",
        )),
        (Some(ids), None) => Ok((ids, true)),
        (None, Some(packed)) => Ok((unpack(packed)?, true)),
        (None, None) => Ok((template(body, messages), false)),
    }
}

/// The tokens of a chat: its tools, then each message between marks, then the mark at which the
/// assistant goes on. A conversation that goes on begins with the tokens it had.
fn template(body: &Map<String, Value>, messages: &[Value]) -> Vec<u32> {
    let mut prompt = Vec::new();
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        prompt.push(mark("tools"));
        tokenize(&tools.to_string(), &mut prompt);
    }
    for message in messages {
        prompt.push(mark(
            message
                .get("role")
                .and_then(Value::as_str)
                .unwrap_or_default(),
        ));
        for field in ["content", "tool_calls", "tool_call_id", "name"] {
            if let Some(value) = message.get(field) {
                tokenize(&plain_text(value), &mut prompt);
            }
        }
        prompt.push(mark("end"));
    }
    if body.get("add_generation_prompt") != Some(&Value::Bool(false)) {
        prompt.push(mark("assistant"));
    }
    prompt
}

/// The text of a message's content; parts that are no text count with their JSON.
fn plain_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => part.to_string(),
            })
            .collect(),
        other => other.to_string(),
    }
}

/// The tokens of a completion's prompt, and whether they came as ids.
///
/// # Errors
/// The validator's complaint.
pub(super) fn completions_prompt(body: &Map<String, Value>) -> Result<(Vec<u32>, bool), String> {
    let mut prompt = body.get("prompt").unwrap_or(&Value::Null);
    if let Some([only]) = prompt.as_array().map(Vec::as_slice)
        && !only.is_number()
    {
        prompt = only;
    }
    if let Some(text) = prompt.as_str() {
        let mut tokens = Vec::new();
        tokenize(text, &mut tokens);
        return Ok((tokens, false));
    }
    match token_list(list(Some(prompt))) {
        Some(ids) => Ok((ids, true)),
        None => Err(complaint(
            "value_error",
            &[],
            "prompt",
            "Input should be one text or one list of token ids; the simulated worker takes one \
             prompt at a time",
        )),
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The last message of a chat, or the prompt of a completion where it is text.
pub(super) fn last_text(endpoint: Endpoint, body: &Map<String, Value>) -> String {
    let text = match endpoint {
        Endpoint::Completions => body.get("prompt"),
        Endpoint::ChatCompletions => body
            .get("messages")
            .and_then(Value::as_array)
            .and_then(|messages| messages.last())
            .and_then(|message| message.get("content")),
    };
    match text {
        Some(Value::Array(parts)) if parts.iter().any(Value::is_number) => String::new(),
        Some(value) => plain_text(value),
        None => String::new(),
    }
}

/// Token ids packed as base64 of little-endian 32-bit integers.
fn unpack(packed: &str) -> Result<Vec<u32>, String> {
    let bytes = STANDARD.decode(packed).ok();
    bytes
        .as_deref()
        .map(<[u8]>::as_chunks::<4>)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(ids, _)| ids.iter().copied().map(u32::from_le_bytes).collect())
        .ok_or_else(|| {
            let message = "Input should be base64 of little-endian int32 token ids";
            complaint("value_error", &[], "prompt_token_ids_b64", message)
        })
}

/// The other way of [`unpack`].
pub(super) fn pack(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}
