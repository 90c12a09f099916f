//! A request's prompt as token ids, for the routers that know the KV cache.
//!
//! Decides where the ids come from: the request itself, else the folder of `tokenizer_dir`, else, of
//! a completion, a worker that is asked. Each way has a bound on size, concurrency and time, and the
//! work is done off the threads that carry requests. It must never fail a request: what cannot be
//! turned into ids in time has none, and its router goes by the conversation.

mod worker;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{
    live::Live,
    request::Request,
    tokenizer::{Chat, Tokenizer, Written},
};
use crate::{
    http::upstream::Upstreams,
    wire::{
        body::BodyView,
        disagg::{self, Endpoint},
        text::Text,
    },
};

/// Bytes of a prompt in JSON above which it is not turned into ids.
const MAX_PROMPT: usize = 4 * 1024 * 1024;
/// How long ids are waited for, the wait for a turn included.
const PATIENCE: Duration = Duration::from_secs(5);

/// Turns prompts into ids.
pub struct Tokens {
    /// As many at once as there are processors.
    room: Arc<Semaphore>,
    workers: worker::Workers,
}

impl Tokens {
    pub fn new(upstreams: Arc<Upstreams>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            room: Arc::new(Semaphore::new(processors)),
            workers: worker::Workers::new(upstreams),
        }
    }

    /// The ids of the request's prompt, where a router has a use for them. Cancel-safe.
    pub async fn of(&self, live: &Live, request: &Request<'_>) -> Option<Arc<[u32]>> {
        let destination = request.pool.kv_cache_aware()?;
        if let Some(ids) = request.prompt.own_token_ids() {
            return Some(ids.into());
        }
        let written = Written::of(&request.view, request.endpoint)?;
        let ids = match (&request.pool.tokenizer, written) {
            (Some(tokenizer), written) => self.make(tokenizer.clone(), written).await?,
            (
                None,
                Written::Completion {
                    prompt,
                    special_tokens: true,
                },
            ) => {
                self.workers
                    .ask(live, &destination.fleet(), &prompt)
                    .await?
            }
            (None, _) => return None,
        };
        Some(ids.into())
    }

    async fn make(&self, tokenizer: Arc<Tokenizer>, written: Written) -> Option<Vec<u32>> {
        let work = async {
            let place = self.room.clone().acquire_owned().await.ok()?;
            let task = spawn_blocking(move || {
                let ids = tokenizer.ids(&written);
                drop(place);
                ids
            });
            // A task that cannot be waited for has met a fault of the tokenizer's.
            match task.await.ok()? {
                Ok(ids) => Some(ids),
                Err(reason) => {
                    tracing::debug!(reason, "a prompt was not turned into token ids");
                    None
                }
            }
        };
        timeout(PATIENCE, work).await.ok().flatten()
    }
}

impl Written {
    /// What a request asks; `None` where that is too large, is no prompt, or is written by a
    /// template of the client's own.
    fn of(view: &BodyView<'_>, endpoint: Endpoint) -> Option<Self> {
        let flag = |field, default| Some(view.boolean(field).ok()?.unwrap_or(default));
        if endpoint == Endpoint::Completions {
            let raw = match disagg::completion_prompt(view).ok()? {
                Some(only) => only,
                None => view.present("prompt")?,
            };
            let Some(Text::Plain(prompt)) = small(raw).and_then(Text::from_json) else {
                return None;
            };
            return Some(Self::Completion {
                prompt: prompt.into_owned(),
                special_tokens: flag("add_special_tokens", true)?,
            });
        }
        if view.present("chat_template").is_some() {
            return None;
        }
        let optional = |field| match view.present(field) {
            Some(raw) => small(raw).map(|raw| Some(raw.to_owned())),
            None => Some(None),
        };
        Some(Self::Chat(Chat {
            messages: small(view.present("messages")?)?.to_owned(),
            tools: optional("tools")?,
            documents: optional("documents")?,
            arguments: optional("chat_template_kwargs")?,
            add_generation_prompt: flag("add_generation_prompt", true)?,
            special_tokens: flag("add_special_tokens", false)?,
        }))
    }
}

fn small(raw: &str) -> Option<&str> {
    Some(raw).filter(|raw| raw.len() <= MAX_PROMPT)
}

#[cfg(test)]
mod tests;
