//! What an answer says: its words, its end, its usage, and the JSON around them.
//!
//! The words follow from the prompt's tokens alone. Counts are those of the engine, or of the
//! context answer where the edge passed them on; nothing is made up.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::{prompt::pack, request::InferenceRequest};
use crate::simulate::engine::tokens::{answer_piece, text_token};
use crate::wire::disagg::Endpoint;

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
}

impl Usage {
    /// As upstream prints it.
    pub(super) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

/// An answer that is going to be given.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub endpoint: Endpoint,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Digest of the prompt, from which the words follow.
    pub digest: u64,
    pub choices: u32,
    /// Tokens of each choice.
    pub length: u32,
    pub finish_reason: &'static str,
    /// First token of each choice, when the context worker made it.
    pub replayed: Option<Vec<u32>>,
    /// The function that the answer calls.
    pub tool: Option<String>,
    pub usage: Usage,
    /// What `choices[].disaggregated_params` says.
    pub disaggregated: Option<Value>,
    /// The prompt's ids, told by a context worker.
    pub prompt_ids: Option<PromptIds>,
}

/// The two ways of telling the prompt's ids.
#[derive(Debug, Clone)]
pub(super) enum PromptIds {
    List(Vec<u32>),
    Packed(String),
}

impl PromptIds {
    pub(super) fn new(ids: &[u32], packed: bool) -> Self {
        if packed {
            Self::Packed(pack(ids))
        } else {
            Self::List(ids.to_vec())
        }
    }
}

/// How long an answer is and how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub length: u32,
    pub finish_reason: &'static str,
}

impl Extent {
    /// The extent of a whole answer: it ends by itself after `natural` tokens, or earlier where the
    /// request or the sequence length (`room` tokens are left) says so.
    pub(super) fn of(request: &InferenceRequest, natural: u32, room: u32) -> Self {
        let limit = request.max_tokens.unwrap_or(u32::MAX).min(room);
        let natural = match (request.finish_at_once, request.ignore_eos) {
            (true, _) => 1,
            (false, true) => u32::MAX,
            (false, false) => natural.max(request.min_tokens).max(1),
        };
        let stop = if request.tool.is_some() {
            "tool_calls"
        } else {
            "stop"
        };
        if natural <= limit {
            Self {
                length: natural,
                finish_reason: stop,
            }
        } else {
            Self {
                length: limit,
                finish_reason: "length",
            }
        }
    }
}

impl Answer {
    /// The text of one token.
    pub(super) fn piece(&self, choice: u32, index: u32) -> String {
        let piece = answer_piece(self.digest, choice, index);
        match self.replayed_token(choice, index) {
            Some(token) if token != text_token(&piece) => format!("<token {token}>"),
            _ => piece,
        }
    }

    /// The id of one token.
    pub(super) fn token(&self, choice: u32, index: u32) -> u32 {
        self.replayed_token(choice, index)
            .unwrap_or_else(|| text_token(&answer_piece(self.digest, choice, index)))
    }

    fn replayed_token(&self, choice: u32, index: u32) -> Option<u32> {
        let first = self.replayed.as_ref().filter(|_| index == 0)?;
        first.get(usize::try_from(choice).ok()?).copied()
    }

    /// The ids of one choice.
    pub(super) fn tokens(&self, choice: u32) -> Vec<u32> {
        (0..self.length)
            .map(|index| self.token(choice, index))
            .collect()
    }

    /// The text of one choice.
    pub(super) fn text(&self, choice: u32) -> String {
        (0..self.length)
            .map(|index| self.piece(choice, index))
            .collect()
    }

    /// The call that a choice makes, when the request demands one and the answer came to its end.
    pub(super) fn tool_call(&self, choice: u32) -> Option<Value> {
        let name = self.tool.as_ref()?;
        let arguments = json!({"answer": self.text(choice)}).to_string();
        (self.finish_reason == "tool_calls").then(|| {
            json!({
                "id": format!("call-{:016x}", self.digest ^ u64::from(choice)),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            })
        })
    }

    /// The whole answer.
    pub(super) fn to_json(&self) -> Value {
        let choices: Vec<Value> = (0..self.choices)
            .map(|choice| self.choice(choice))
            .collect();
        let (ids, packed) = match &self.prompt_ids {
            None => (Value::Null, Value::Null),
            Some(PromptIds::List(ids)) => (json!(ids), Value::Null),
            Some(PromptIds::Packed(text)) => (Value::Null, json!(text)),
        };
        let object = match self.endpoint {
            Endpoint::ChatCompletions => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let mut answer = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage.to_json(),
            "prompt_token_ids": ids,
        });
        if self.endpoint == Endpoint::ChatCompletions {
            answer["prompt_token_ids_b64"] = packed;
        }
        answer
    }

    fn choice(&self, choice: u32) -> Value {
        let disaggregated = self.disaggregated.clone().unwrap_or_default();
        match self.endpoint {
            Endpoint::Completions => json!({
                "index": choice,
                "text": self.text(choice),
                "token_ids": null,
                "logprobs": null,
                "context_logits": null,
                "finish_reason": self.finish_reason,
                "stop_reason": null,
                "disaggregated_params": disaggregated,
            }),
            Endpoint::ChatCompletions => {
                let calls: Vec<Value> = self.tool_call(choice).into_iter().collect();
                let content = calls.is_empty().then(|| self.text(choice));
                json!({
                    "index": choice,
                    "message": {
                        "role": "assistant",
                        "content": content,
                        "reasoning_content": null,
                        "tool_calls": calls,
                    },
                    "logprobs": null,
                    "finish_reason": self.finish_reason,
                    "stop_reason": null,
                    "disaggregated_params": disaggregated,
                })
            }
        }
    }
}

/// A new answer id, unique in the process, and the time.
pub(super) fn stamp(endpoint: Endpoint) -> (String, u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let prefix = match endpoint {
        Endpoint::ChatCompletions => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let id = format!(
        "{prefix}-{:x}{:08x}{number:08x}",
        now.as_micros(),
        std::process::id()
    );
    (id, now.as_secs())
}
