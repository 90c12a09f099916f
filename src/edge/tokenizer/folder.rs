//! A folder with a tokenizer and its chat template, as models are published.
//!
//! Decides which of its files count: `tokenizer.json`, which must be there; `chat_template.jinja`,
//! else the `chat_template` of `tokenizer_config.json`; and the special tokens of the latter. A
//! folder is read once and kept until one of these files changes. A folder without a chat template
//! still turns completions into ids.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use serde_json::{Map, Value};

use super::{Written, template::ChatTemplate};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// Bytes of one of the files at most.
const MAX_FILE: u64 = 256 * 1024 * 1024;

/// A tokenizer and its chat template.
pub struct Tokenizer {
    folder: PathBuf,
    stamps: Stamps,
    tokenizer: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
}

/// What tells a changed file from the one that was read.
type Stamps = [Option<(SystemTime, u64)>; 3];

/// A file of the folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {what}", file = .file.display())]
pub struct FolderError {
    file: PathBuf,
    what: String,
}

impl Tokenizer {
    /// Reads a folder; one of `previous` is returned where it was read from the same files.
    ///
    /// # Errors
    /// The file that is missing, or cannot be understood.
    pub fn read(folder: &Path, previous: &[Arc<Self>]) -> Result<Arc<Self>, FolderError> {
        let stamps = [TOKENIZER, CONFIG, TEMPLATE].map(|name| stamp(&folder.join(name)));
        let same = |known: &&Arc<Self>| known.folder == folder && known.stamps == stamps;
        if let Some(known) = previous.iter().find(same) {
            return Ok(known.clone());
        }
        let template = template(folder)?;
        if template.is_none() {
            tracing::warn!(
                "{} has no chat template: chats are placed by conversation",
                folder.display()
            );
        }
        Ok(Arc::new(Self {
            tokenizer: tokenizer(folder)?,
            template,
            folder: folder.to_path_buf(),
            stamps,
        }))
    }

    /// The token ids of a prompt. Work for a thread that carries no requests.
    ///
    /// # Errors
    /// Why there are none, for a log.
    pub fn ids(&self, written: &Written) -> Result<Vec<u32>, String> {
        let (text, special_tokens) = match written {
            Written::Completion {
                prompt,
                special_tokens,
            } => (prompt.into(), *special_tokens),
            Written::Chat(chat) => {
                let template = self.template.as_ref();
                let template = template.ok_or("the tokenizer has no chat template")?;
                (template.write(chat)?, chat.special_tokens)
            }
        };
        let encoded = self.tokenizer.encode_fast::<String>(text, special_tokens);
        let encoded = encoded.map_err(|error| error.to_string())?;
        Ok(encoded.get_ids().to_vec())
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn tokenizer(folder: &Path) -> Result<tokenizers::Tokenizer, FolderError> {
    let file = folder.join(TOKENIZER);
    let Some(bytes) = read(&file)? else {
        let what = "is missing; name the folder that holds it, or remove the key";
        return Err(unusable(&file, what));
    };
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)
        .map_err(|error| unusable(&file, format!("is no tokenizer that can be read: {error}")))?;
    // A prompt counts whole here, whatever the model was trained with.
    tokenizer
        .with_truncation(None)
        .map_err(|error| unusable(&file, error))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn template(folder: &Path) -> Result<Option<ChatTemplate>, FolderError> {
    let config = folder.join(CONFIG);
    let settings: Map<String, Value> = match read(&config)? {
        Some(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| unusable(&config, format!("is no JSON object: {error}")))?,
        None => Map::new(),
    };
    let file = folder.join(TEMPLATE);
    let (own, from) = match read(&file)? {
        Some(bytes) => {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|error| unusable(&file, format!("is no UTF-8: {error}")))?;
            (Some(text), &file)
        }
        None => (None, &config),
    };
    ChatTemplate::of(&settings, own)
        .map_err(|error| unusable(from, format!("its chat template cannot be used: {error}")))
}

/// The bytes of a file; `None` if there is no such file.
fn read(file: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let length = match fs::metadata(file) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(file, format!("cannot be read ({error})"))),
    };
    if length > MAX_FILE {
        return Err(unusable(file, "is larger than 256 MiB"));
    }
    let bytes =
        fs::read(file).map_err(|error| unusable(file, format!("cannot be read ({error})")))?;
    Ok(Some(bytes))
}

fn unusable(file: &Path, what: impl Display) -> FolderError {
    FolderError {
        file: file.to_path_buf(),
        what: what.to_string(),
    }
}
