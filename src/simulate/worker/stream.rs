//! Answers as server-sent events, one event for each token of each choice.
//!
//! The role comes first, then the words as the engine makes them, the finish reason, the usage if
//! asked for, and `[DONE]`. Nothing is held back.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use super::{
    answer::Answer,
    fault::Faults,
    reply::{Ended, attend, write},
};
use crate::simulate::engine::Job;
use crate::wire::disagg::Endpoint;

/// Writes events, and goes wrong where a fault says so.
pub(super) struct Events<'a> {
    session: &'a mut ServerSession,
    faults: &'a Faults,
    written: u32,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl<'a> Events<'a> {
    /// Events after the head was written.
    pub(super) fn new(session: &'a mut ServerSession, faults: &'a Faults) -> Self {
        let gzip = faults
            .gzip
            .then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        Self {
            session,
            faults,
            written: 0,
            gzip,
        }
    }

    /// The connection, to wait on.
    pub(super) fn session(&mut self) -> &mut ServerSession {
        self.session
    }

    /// Writes one event.
    pub(super) async fn send(&mut self, data: &Value) -> Result<(), Ended> {
        self.go_wrong_before_event().await?;
        self.written += 1;
        let first = self.written == 1;
        let mut text = event_text(data, self.faults.event.filter(|_| first));
        if first && self.faults.invalid_json {
            text = text.chars().take(text.len() / 2).collect();
        }
        let event = format!("data: {text}\n\n");
        if self.faults.die_in == Some(self.written) {
            let half = event.len() / 2;
            self.write(event.get(..half).unwrap_or(&event), false)
                .await?;
            return Err(Ended::BrokenOff);
        }
        self.write(&event, false).await
    }

    async fn go_wrong_before_event(&mut self) -> Result<(), Ended> {
        let reached = |fault: Option<u32>| fault.is_some_and(|most| self.written >= most);
        if reached(self.faults.die_after) {
            return Err(Ended::BrokenOff);
        }
        if reached(self.faults.stall_after) {
            attend(self.session, std::future::pending::<()>()).await?;
        }
        if reached(self.faults.error_after) {
            let error = json!({"error": {"message": "simulated fault", "type": "server_error"}});
            self.write(&format!("data: {error}\n\n"), false).await?;
            self.write("data: [DONE]\n\n", true).await?;
            return Err(Ended::BrokenOff);
        }
        if let Some(pause) = self.faults.pause {
            attend(self.session, tokio::time::sleep(pause)).await?;
        }
        Ok(())
    }

    /// Writes the last event.
    pub(super) async fn done(&mut self) -> Result<(), Ended> {
        self.go_wrong_before_event().await?;
        if self.faults.die_before_done {
            return Err(Ended::BrokenOff);
        }
        self.write("data: [DONE]\n\n", true).await
    }

    async fn write(&mut self, text: &str, end: bool) -> Result<(), Ended> {
        let text = match self.faults.crlf {
            true => text.replace('\n', "\r\n"),
            false => text.to_owned(),
        };
        let bytes = self.encode(text.into_bytes(), end);
        if !self.faults.bytewise {
            return write(self.session, bytes, end).await;
        }
        let last = bytes.len().saturating_sub(1);
        for at in 0..bytes.len() {
            write(self.session, bytes.slice(at..=at), end && at == last).await?;
            // A write of its own, as far as the network lets it be one.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn encode(&mut self, text: Vec<u8>, end: bool) -> Bytes {
        let Some(gzip) = &mut self.gzip else {
            return text.into();
        };
        // Writing to memory cannot fail.
        let _ = gzip.write_all(&text).and_then(|()| gzip.flush());
        if end {
            let _ = gzip.try_finish();
        }
        std::mem::take(gzip.get_mut()).into()
    }
}

/// The data of an event, made as large as is asked for.
fn event_text(data: &Value, size: Option<usize>) -> String {
    let text = data.to_string();
    let missing = size.map_or(0, |size| size.saturating_sub(text.len()));
    if missing == 0 {
        return text;
    }
    let mut data = data.clone();
    data["system_fingerprint"] = "x".repeat(missing).into();
    data.to_string()
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
