//! Workers that announce themselves: upstream's `disagg_cluster` (specification section 7.2).

use std::time::Duration;

use secrecy::SecretString;

use crate::wire::Role;

/// Where workers announce themselves, and how many of them are needed.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// `cluster_uri`.
    pub store: StoreConfig,
    /// `cluster_name`, part of every worker's key.
    pub cluster_name: String,
    /// `minimal_instances.context_servers`: below it the edge is not ready.
    pub minimal_context: u32,
    /// `minimal_instances.generation_servers`.
    pub minimal_generation: u32,
    /// `heartbeat_interval_sec`: how often a worker says that it is still there.
    pub heartbeat_interval: Duration,
    /// `inactive_timeout_sec`: how long a worker is believed without that.
    pub inactive_timeout: Duration,
    /// `auth_token`: what a worker must present to the store that is hosted here.
    pub auth_token: Option<SecretString>,
}

impl DiscoveryConfig {
    /// Instances of a role below which the edge is not ready. One at least: without it no request can
    /// be served, whatever the file says.
    pub fn minimal(&self, role: Role) -> usize {
        let minimal = match role {
            Role::Generation => self.minimal_generation,
            Role::Context | Role::Aggregated => self.minimal_context,
        };
        usize::try_from(minimal.max(1)).unwrap_or(usize::MAX)
    }
}

/// What keeps the announcements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// An http URI: the edge itself, on its own port.
    Hosted,
    /// etcd, `host:port` of each endpoint.
    Etcd(Vec<String>),
}
