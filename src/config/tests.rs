//! The configuration as a whole, from text to `Config` or to words.

mod discovery;
mod health;
mod hostile;
mod identity;
mod kindred;
mod models;
mod signing;
mod surface;
mod upstream;

use std::path::Path;

use secrecy::ExposeSecret;

use super::{Config, ConfigError, EdgeConfig, PairConfig, check};

/// A key that is long enough for no warning.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The smallest file that describes an edge, with `more` after it.
fn edge(more: &str) -> String {
    format!(
        "context_servers: {{urls: [\"c:1\"]}}\ngeneration_servers: {{urls: [\"g:1\"]}}\n{more}\n"
    )
}

fn load(text: &str) -> Result<Config, ConfigError> {
    let environment = |name: &str| match name {
        "KEY" => Some(KEY.to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    check::resolve(text, Path::new("k.yaml"), &environment)
}

/// The fleets of an edge without named models.
#[track_caller]
fn pair(edge: &EdgeConfig) -> &PairConfig {
    let fleets = edge.fleets.as_ref();
    fleets.and_then(|fleets| fleets.pair()).expect("two fleets")
}

#[track_caller]
fn good(text: &str) -> Config {
    load(text).unwrap_or_else(|error| panic!("{error}\n--- of\n{text}"))
}

/// The message for `text`, which must have a part for each of `parts`.
#[track_caller]
fn bad(text: &str, parts: &[&str]) -> String {
    let message = match load(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    };
    for part in parts {
        assert!(
            message.contains(part),
            "no {part:?} in\n{message}\n--- of\n{text}"
        );
    }
    message
}

#[track_caller]
fn warned(text: &str, part: &str) {
    let warnings = good(text).warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains(part)),
        "no {part:?} in {warnings:#?}"
    );
}

fn key_of(config: &Config) -> Option<&str> {
    let edge = config.edge.as_ref()?;
    match edge.internal_request_auth_keys.as_slice() {
        [key] => Some(key.expose_secret()),
        _ => None,
    }
}

fn shipped(name: &str) -> (std::path::PathBuf, Config) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conf")
        .join(name);
    let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
    (path, config)
}
