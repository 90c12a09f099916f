//! Which client a signed token is.
//!
//! The token is checked against the issuer's keys as they are now; the keys are replaced from outside.
//! A key that is not known is asked for, which never makes the request wait. What a token says beyond
//! the one claim that names its client decides nothing.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use jsonwebtoken::Validation;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    config::{JwksSource, JwtConfig},
    telemetry::labels::AuthenticationOutcome,
    wire::jwks::{self, KeySet, TokenError},
};

/// The issuer's keys at present, shared with whoever renews them.
pub struct IssuerKeys {
    set: ArcSwap<KeySet>,
    wanted: Notify,
}

impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IssuerKeys").field(&self.set.load()).finish()
    }
}

impl IssuerKeys {
    fn new(set: Arc<KeySet>) -> Self {
        Self {
            set: ArcSwap::new(set),
            wanted: Notify::new(),
        }
    }

    /// The set in use.
    pub fn current(&self) -> Arc<KeySet> {
        self.set.load_full()
    }

    /// Takes this set from now on.
    pub fn replace(&self, set: KeySet) {
        self.set.store(Arc::new(set));
    }

    /// Waits until a token names a key that is not in the set.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

/// What makes a token good.
#[derive(Debug)]
pub(super) struct Tokens {
    config: JwtConfig,
    rules: Validation,
    pub(super) keys: Arc<IssuerKeys>,
}

impl Tokens {
    /// Keys that were fetched for the same address stay.
    pub(super) fn new(config: &JwtConfig, previous: Option<&Self>) -> Self {
        let keys = match &config.keys {
            JwksSource::File { set, .. } => Arc::new(IssuerKeys::new(Arc::clone(set))),
            JwksSource::Url(url) => previous
                .filter(|previous| previous.fetches(config, &url.text()))
                .map(|previous| Arc::clone(&previous.keys))
                .unwrap_or_else(|| Arc::new(IssuerKeys::new(Arc::new(KeySet::empty())))),
        };
        let leeway = config.leeway.as_secs();
        Self {
            rules: jwks::rules(&config.issuers, &config.audiences, leeway),
            config: config.clone(),
            keys,
        }
    }

    /// Whether its keys are those of that address, read as `config` would.
    fn fetches(&self, config: &JwtConfig, address: &str) -> bool {
        match &self.config.keys {
            JwksSource::Url(url) => {
                url.text() == address && self.config.algorithms == config.algorithms
            }
            JwksSource::File { .. } => false,
        }
    }

    /// The name of the client in a good token.
    pub(super) fn subject(&self, token: &[u8]) -> Result<String, AuthenticationOutcome> {
        let set = self.keys.current();
        if set.is_empty() {
            self.keys.wanted.notify_one();
            return Err(AuthenticationOutcome::NoKeys);
        }
        match set.verify(token, &self.rules) {
            Ok(mut claims) => match claims.remove(&self.config.client_claim) {
                Some(Value::String(subject)) => Ok(subject),
                _ => Err(AuthenticationOutcome::NotAClient),
            },
            Err(TokenError::UnknownKey) => {
                self.keys.wanted.notify_one();
                Err(AuthenticationOutcome::UnknownKey)
            }
            Err(TokenError::Time) => Err(AuthenticationOutcome::Expired),
            Err(TokenError::Malformed | TokenError::Signature | TokenError::Claims) => {
                Err(AuthenticationOutcome::Invalid)
            }
        }
    }
}
