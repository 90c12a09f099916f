//! Where claims to a parent may stand, and what they need.

use std::time::Duration;

use secrecy::SecretString;

use super::{ClientLimits, FailedAttempts, GatewayConfig, InstanceNames, OwnRoute};
use crate::wire::headers::PARENT_HEADERS;

/// One place of a request in which its parent may be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParentSource {
    /// A header, lower-case.
    Header(String),
    /// A text in the body, by the names of the members that lead to it, at least one.
    Body(Vec<String>),
}

/// What becomes of a claim whose parent is a sub-agent itself (`affinity.nested`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nested {
    /// It is dropped.
    #[default]
    Refuse,
    /// The request follows the root of the family.
    Root,
}

/// `gateway.session_isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionIsolation {
    /// A session is its client's.
    PerClient,
    /// Equal ids are one session, whoever sends them.
    Shared,
}

/// Tokens by which a session lets its client's sub-agents name it.
#[derive(Debug, Clone)]
pub struct DelegationConfig {
    /// What their key is derived from: the first makes them, all of them check. Empty is the edge's
    /// own signing keys.
    pub keys: Vec<SecretString>,
    /// How long a token is good.
    pub ttl: Duration,
    /// Whether every answer of a session carries one.
    pub on_answers: bool,
}

impl Default for DelegationConfig {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            ttl: Duration::from_secs(300),
            on_answers: false,
        }
    }
}

impl Default for GatewayConfig {
    /// An empty section: nobody is let in.
    fn default() -> Self {
        Self {
            clients: Vec::new(),
            anonymous: None,
            anonymous_max_in_flight: None,
            anonymous_limits: ClientLimits::default(),
            prune_headers: Vec::new(),
            max_sessions: 1_000_000,
            owned_ttl: Duration::from_secs(3600),
            parent_sources: None,
            delegation: DelegationConfig::default(),
            session_isolation: None,
            namespace_conversation_ids: false,
            max_table_share: None,
            keys_file: None,
            jwt: None,
            failed_attempts: Some(FailedAttempts::default()),
            open_routes: vec![OwnRoute::Health, OwnRoute::Version],
            cluster_info: InstanceNames::Aliases,
        }
    }
}

impl GatewayConfig {
    /// Whether equal session ids of two clients are two sessions: as configured, else where more than
    /// one client can come in.
    pub fn isolates(&self) -> bool {
        let clients = self.clients.len() + usize::from(self.anonymous.is_some());
        match self.session_isolation {
            Some(isolation) => isolation == SessionIsolation::PerClient,
            None => clients > 1,
        }
    }

    /// What one client's sessions may fill of a table at most: as configured, else half of it where
    /// clients are told apart, and all where they are not.
    pub fn table_share(&self) -> f64 {
        let default = if self.isolates() { 0.5 } else { 1.0 };
        self.max_table_share.unwrap_or(default)
    }

    /// Where claims may stand: as configured, else in the configured parent header and then in those
    /// of the known agent programs.
    pub fn sources(&self, parent_header: Option<&str>) -> Vec<ParentSource> {
        if let Some(sources) = &self.parent_sources {
            return sources.clone();
        }
        let mut names: Vec<&str> = parent_header.into_iter().collect();
        for name in PARENT_HEADERS {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let names = names.into_iter().map(str::to_owned);
        names.map(ParentSource::Header).collect()
    }
}
