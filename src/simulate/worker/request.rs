//! From a body to what the engine is asked to do.
//!
//! The body is checked as upstream's request models do and the prompt becomes tokens. Whatever is
//! refused here is refused before any engine work.

use serde_json::{Map, Value};

use crate::wire::disagg::Endpoint;

use super::{
    disagg::DisaggregatedParams,
    fields::{CHAT, COMMON, COMPLETIONS, CONVERSATION, STREAM_OPTIONS, check, complaint},
    prompt::{chat_prompt, completions_prompt, last_text},
};

/// A prompt that begins its last message with this asks for an answer of one token.
pub const FINAL_MARK: &str = "final:";

/// Most choices of one request.
const MOST_CHOICES: u64 = 128;

/// A valid request.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceRequest {
    pub endpoint: Endpoint,
    pub model: String,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Whether the prompt came as token ids.
    pub prompt_was_ids: bool,
    /// Number of choices.
    pub choices: u32,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u32>,
    /// `min_tokens`.
    pub min_tokens: u32,
    /// `ignore_eos`: the answer does not end by itself.
    pub ignore_eos: bool,
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// The function that the answer has to call.
    pub tool: Option<String>,
    /// The prompt asks for an answer of one token.
    pub finish_at_once: bool,
    pub disaggregated: Option<DisaggregatedParams>,
}

impl InferenceRequest {
    /// Checks and reads a body.
    ///
    /// # Errors
    /// The validator's complaint, in upstream's form.
    pub fn read(endpoint: Endpoint, body: &Map<String, Value>) -> Result<Self, String> {
        let own = match endpoint {
            Endpoint::ChatCompletions => CHAT,
            Endpoint::Completions => COMPLETIONS,
        };
        check(&[], body, &[COMMON, own])?;
        check_conversation(body)?;
        let stream = flag(body, "stream");
        let (prompt, prompt_was_ids) = match endpoint {
            Endpoint::ChatCompletions => chat_prompt(body)?,
            Endpoint::Completions => completions_prompt(body)?,
        };
        if prompt.is_empty() {
            return Err(complaint(
                "value_error",
                &[],
                "prompt",
                "The prompt is empty",
            ));
        }
        Ok(Self {
            endpoint,
            model: text(body, "model"),
            prompt,
            prompt_was_ids,
            choices: count(body, "n", 1, MOST_CHOICES)?.unwrap_or(1),
            max_tokens: max_tokens(body)?,
            min_tokens: count(body, "min_tokens", 0, u64::from(u32::MAX))?.unwrap_or(0),
            ignore_eos: flag(body, "ignore_eos"),
            stream,
            include_usage: include_usage(body, stream)?,
            tool: wanted_tool(body),
            finish_at_once: last_text(endpoint, body).starts_with(FINAL_MARK),
            disaggregated: disaggregated(body)?,
        })
    }
}

fn text(body: &Map<String, Value>, name: &str) -> String {
    let text = body.get(name).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn disaggregated(body: &Map<String, Value>) -> Result<Option<DisaggregatedParams>, String> {
    body.get("disaggregated_params")
        .and_then(Value::as_object)
        .map(DisaggregatedParams::read)
        .transpose()
}

fn check_conversation(body: &Map<String, Value>) -> Result<(), String> {
    let Some(params) = body.get("conversation_params").and_then(Value::as_object) else {
        return Ok(());
    };
    check(&["conversation_params"], params, &[CONVERSATION])?;
    match params.get("conversation_id").and_then(Value::as_str) {
        Some(id) if !id.trim().is_empty() => Ok(()),
        _ => Err(complaint(
            "value_error",
            &["conversation_params"],
            "conversation_id",
            "Value error, conversation_id must not be empty",
        )),
    }
}

fn include_usage(body: &Map<String, Value>, stream: bool) -> Result<bool, String> {
    let Some(options) = body.get("stream_options").and_then(Value::as_object) else {
        return Ok(false);
    };
    if !stream {
        let message = "Value error, Stream options can only be defined when `stream` is true.";
        return Err(complaint("value_error", &[], "stream_options", message));
    }
    check(&["stream_options"], options, &[STREAM_OPTIONS])?;
    Ok(flag(options, "include_usage"))
}

fn max_tokens(body: &Map<String, Value>) -> Result<Option<u32>, String> {
    if body.contains_key("max_tokens") && body.contains_key("max_completion_tokens") {
        let message = "Extra inputs are not permitted";
        return Err(complaint("extra_forbidden", &[], "max_tokens", message));
    }
    let most = u64::from(u32::MAX);
    Ok(count(body, "max_tokens", 1, most)?.or(count(body, "max_completion_tokens", 1, most)?))
}

/// An integer within bounds; null or absent is none.
fn count(
    body: &Map<String, Value>,
    name: &str,
    least: u64,
    most: u64,
) -> Result<Option<u32>, String> {
    let Some(value) = body.get(name).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    value
        .as_u64()
        .filter(|number| (least..=most).contains(number))
        .and_then(|number| u32::try_from(number).ok())
        .map(Some)
        .ok_or_else(|| {
            let message = format!("Input should be an integer from {least} to {most}");
            complaint("value_error", &[], name, &message)
        })
}

fn flag(object: &Map<String, Value>, name: &str) -> bool {
    object
        .get(name)
        .and_then(Value::as_bool)
        .unwrap_or_default()
}

/// The function that `tool_choice` demands: the named one, or the first when it is `required`.
fn wanted_tool(body: &Map<String, Value>) -> Option<String> {
    let choice = body.get("tool_choice")?;
    let name = if choice == "required" {
        body.get("tools")?.pointer("/0/function/name")?
    } else {
        choice.pointer("/function/name")?
    };
    name.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
