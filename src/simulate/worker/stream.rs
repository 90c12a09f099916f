//! Answers as server-sent events, one event for each token of each choice.
//!
//! The role comes first, then the words as the engine makes them, the finish reason, the usage if
//! asked for, and `[DONE]`. Nothing is held back.

use bytes::Bytes;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use super::{
    answer::Answer,
    fault::Faults,
    reply::{Ended, attend, write},
};
use crate::simulate::engine::Job;
use crate::wire::disagg::Endpoint;

/// Writes events and breaks off where a fault says so.
pub(super) struct Events<'a> {
    session: &'a mut ServerSession,
    written: u32,
    die_after: Option<u32>,
    cut_next: bool,
}

impl<'a> Events<'a> {
    /// Events after the head was written.
    pub(super) fn new(session: &'a mut ServerSession, faults: &Faults) -> Self {
        Self {
            session,
            written: 0,
            die_after: faults.die_after,
            cut_next: faults.invalid_json,
        }
    }

    /// The connection, to wait on.
    pub(super) fn session(&mut self) -> &mut ServerSession {
        self.session
    }

    /// Writes one event.
    pub(super) async fn send(&mut self, data: &Value) -> Result<(), Ended> {
        if self.die_after.is_some_and(|most| self.written >= most) {
            return Err(Ended::BrokenOff);
        }
        self.written += 1;
        let mut text = data.to_string();
        if std::mem::take(&mut self.cut_next) {
            text = text.chars().take(text.len() / 2).collect();
        }
        self.write(format!("data: {text}\n\n"), false).await
    }

    /// Writes the last event.
    pub(super) async fn done(&mut self) -> Result<(), Ended> {
        if self.die_after.is_some_and(|most| self.written >= most) {
            return Err(Ended::BrokenOff);
        }
        self.write("data: [DONE]\n\n".to_owned(), true).await
    }

    async fn write(&mut self, text: String, end: bool) -> Result<(), Ended> {
        write(self.session, Bytes::from(text), end).await
    }
}

/// Streams an answer whose prompt is computed.
pub(super) async fn stream(
    events: &mut Events<'_>,
    answer: &Answer,
    job: &Job,
    include_usage: bool,
) -> Result<(), Ended> {
    if answer.endpoint == Endpoint::ChatCompletions {
        for choice in 0..answer.choices {
            let delta = json!({"role": "assistant", "content": ""});
            events
                .send(&chat_chunk(answer, choice, delta, None))
                .await?;
        }
    }
    for index in 0..answer.length {
        if index > 0 {
            attend(events.session(), job.next_token()).await?;
        }
        if answer.finish_reason != "tool_calls" {
            send_token(events, answer, index).await?;
        }
    }
    for choice in 0..answer.choices {
        finish(events, answer, choice).await?;
    }
    if include_usage {
        let mut chunk = chunk(answer, json!([]));
        chunk["usage"] = answer.usage.to_json();
        events.send(&chunk).await?;
    }
    events.done().await
}

async fn send_token(events: &mut Events<'_>, answer: &Answer, index: u32) -> Result<(), Ended> {
    for choice in 0..answer.choices {
        let text = answer.piece(choice, index);
        let chunk = match answer.endpoint {
            Endpoint::ChatCompletions => chat_chunk(answer, choice, json!({"content": text}), None),
            Endpoint::Completions => text_chunk(answer, choice, &text, None),
        };
        events.send(&chunk).await?;
    }
    Ok(())
}

async fn finish(events: &mut Events<'_>, answer: &Answer, choice: u32) -> Result<(), Ended> {
    let reason = Some(answer.finish_reason);
    if answer.endpoint == Endpoint::Completions {
        return events.send(&text_chunk(answer, choice, "", reason)).await;
    }
    if let Some(mut call) = answer.tool_call(choice) {
        call["index"] = json!(0);
        let delta = json!({"tool_calls": [call]});
        events
            .send(&chat_chunk(answer, choice, delta, None))
            .await?;
    }
    events
        .send(&chat_chunk(answer, choice, json!({}), reason))
        .await
}

fn chat_chunk(answer: &Answer, choice: u32, delta: Value, reason: Option<&str>) -> Value {
    let choice = json!({
        "index": choice,
        "delta": delta,
        "logprobs": null,
        "finish_reason": reason,
        "stop_reason": null,
    });
    chunk(answer, json!([choice]))
}

fn text_chunk(answer: &Answer, choice: u32, text: &str, reason: Option<&str>) -> Value {
    let choice = json!({
        "index": choice,
        "text": text,
        "logprobs": null,
        "finish_reason": reason,
        "stop_reason": null,
    });
    chunk(answer, json!([choice]))
}

fn chunk(answer: &Answer, choices: Value) -> Value {
    json!({
        "id": answer.id,
        "object": match answer.endpoint {
            Endpoint::ChatCompletions => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        },
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    })
}
