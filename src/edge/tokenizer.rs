//! The tokenizer that a configuration names, with its chat template.
//!
//! Decides what a folder must hold and that both fleets of a model name the same one. It is read before a
//! configuration is used, so that a folder that cannot be used refuses the whole configuration.

mod folder;
mod template;

use std::sync::Arc;

pub use folder::Tokenizer;

use crate::{
    config::{Config, EdgeConfig, FleetConfig, FleetsConfig, ModelConfig, RouterConfig},
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

/// Reads the tokenizers that `config` names, one for each of its pools in their order. One of
/// `previous` is kept where its files are what they were.
///
/// # Errors
/// A folder that cannot be used, or two different ones for one model.
pub fn read(
    config: &Config,
    previous: &[Arc<Tokenizer>],
) -> Result<Vec<Option<Arc<Tokenizer>>>, TokenizerError> {
    let pools = config.edge.iter().flat_map(EdgeConfig::pools);
    pools
        .map(|(model, fleets)| {
            read_one(fleets, previous).map_err(|(role, what)| TokenizerError {
                file: config.origin.display().to_string(),
                key: key(model, role),
                what,
            })
        })
        .collect()
}

fn key(model: Option<&ModelConfig>, role: Role) -> String {
    let section = model.map_or_else(String::new, |model| format!("models.{}.", model.name));
    format!("{section}{}_servers.router.tokenizer_dir", role.label())
}

/// The tokenizer of one model. All its fleets serve the same model, so there is one.
fn read_one(
    fleets: &FleetsConfig,
    previous: &[Arc<Tokenizer>],
) -> Result<Option<Arc<Tokenizer>>, (Role, String)> {
    let all = fleets.all().into_iter();
    let mut named = all.filter_map(|fleet| Some((folder_of(fleet)?, fleet.role)));
    let Some((folder, role)) = named.next() else {
        return Ok(None);
    };
    if let Some((other, role)) = named.next()
        && other != folder
    {
        let what = "is another folder than that of context_servers; both legs serve one model, so \
                    name the same folder";
        return Err((role, what.to_owned()));
    }
    let read = Tokenizer::read(folder, previous);
    read.map(Some).map_err(|error| (role, error.to_string()))
}

fn folder_of(fleet: &FleetConfig) -> Option<&std::path::Path> {
    match &fleet.router {
        RouterConfig::KvCacheAware(router) => router.tokenizer_dir.as_deref(),
        _ => None,
    }
}
