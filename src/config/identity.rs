//! How clients say who they are, beside the keys in the file itself.
//!
//! Types alone, valid by construction: the keys file and a key set in a file have been read, and the
//! address of a key set can be asked. Nothing here holds a key, only digests and public keys.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jsonwebtoken::Algorithm;

pub use super::keys_file::FileKeys;
use crate::wire::jwks::KeySet;

/// `gateway.keys_file`.
#[derive(Debug, Clone)]
pub struct KeysFile {
    pub path: PathBuf,
    /// What it held when the configuration was read.
    pub keys: FileKeys,
}

/// `gateway.failed_attempts`: how often one address may fail to say who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempts {
    /// Failures within `per`, at least one.
    pub max: u32,
    pub per: Duration,
}

impl Default for FailedAttempts {
    fn default() -> Self {
        Self {
            max: 20,
            per: Duration::from_secs(60),
        }
    }
}

/// `gateway.jwt`: which tokens are believed.
#[derive(Debug, Clone)]
pub struct JwtConfig {
    /// `iss` must be one of them.
    pub issuers: Vec<String>,
    /// `aud` must name one of them.
    pub audiences: Vec<String>,
    /// Never a symmetric one.
    pub algorithms: Vec<Algorithm>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// The claim that `subjects` of the clients are compared with.
    pub client_claim: String,
    pub keys: JwksSource,
}

/// Where the issuer's public keys are.
#[derive(Debug, Clone)]
pub enum JwksSource {
    /// `jwks_file`.
    File {
        path: PathBuf,
        /// What it held when the configuration was read.
        set: Arc<KeySet>,
    },
    /// `jwks_url`.
    Url(JwksUrl),
}

/// An address that the key set is fetched from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwksUrl {
    /// `host:port`.
    pub address: String,
    pub path: String,
    /// From one fetch to the next.
    pub refresh: Duration,
    /// Between two fetches at least, also where a token names a key that is not known.
    pub min_refresh: Duration,
}

impl JwksUrl {
    /// As it is written in the file.
    pub fn text(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }
}
