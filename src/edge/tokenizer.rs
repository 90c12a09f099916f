//! The tokenizer that a configuration names, with its chat template.
//!
//! Decides what a folder must hold and that both fleets name the same one. It is read before a
//! configuration is used, so that a folder that cannot be used refuses the whole configuration.

mod folder;
mod template;

use std::sync::Arc;

pub use folder::Tokenizer;

use crate::{
    config::{Config, FleetConfig, RouterConfig},
    wire::Role,
};

/// A prompt, to be turned into ids elsewhere.
pub enum Written {
    Completion {
        prompt: String,
        special_tokens: bool,
    },
    Chat(Chat),
}

/// What a chat template writes, still in JSON.
#[derive(Default)]
pub struct Chat {
    pub messages: String,
    pub tools: Option<String>,
    pub documents: Option<String>,
    /// `chat_template_kwargs`.
    pub arguments: Option<String>,
    pub add_generation_prompt: bool,
    pub special_tokens: bool,
}

/// Why the tokenizer of a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {key}: {what}")]
pub struct TokenizerError {
    file: String,
    key: String,
    what: String,
}

/// Reads the tokenizer that `config` names, if it names one; `previous` is kept where its files are
/// what they were. Both fleets serve one model, so there is one tokenizer.
///
/// # Errors
/// A folder that cannot be used, or two different ones.
pub fn read(
    config: &Config,
    previous: Option<&Arc<Tokenizer>>,
) -> Result<Option<Arc<Tokenizer>>, TokenizerError> {
    let Some(edge) = &config.edge else {
        return Ok(None);
    };
    let named =
        [&edge.context, &edge.generation].map(|fleet| Some((folder_of(fleet)?, fleet.role)));
    let mut named = named.into_iter().flatten();
    let Some((folder, role)) = named.next() else {
        return Ok(None);
    };
    let wrong = |role: Role, what| TokenizerError {
        file: config.origin.display().to_string(),
        key: format!("{}_servers.router.tokenizer_dir", role.label()),
        what,
    };
    if let Some((other, role)) = named.next()
        && other != folder
    {
        let what = "is another folder than that of context_servers; both legs serve one model, so \
                    name the same folder";
        return Err(wrong(role, what.to_owned()));
    }
    let read = Tokenizer::read(folder, previous);
    read.map(Some)
        .map_err(|error| wrong(role, error.to_string()))
}

fn folder_of(fleet: &FleetConfig) -> Option<&std::path::Path> {
    match &fleet.router {
        RouterConfig::KvCacheAware(router) => router.tokenizer_dir.as_deref(),
        _ => None,
    }
}
