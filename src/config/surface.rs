//! What is told on the clients' port beyond inference, and to whom: `cors`, and of `gateway` what
//! concerns the edge's own routes.

use std::time::Duration;

/// Which pages of other origins may use the edge from a browser, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct CorsConfig {
    pub origins: AllowedOrigins,
    /// Names of methods, upper-case.
    pub methods: Vec<String>,
    pub headers: AllowedHeaders,
    /// Header fields of answers that pages may read, lower-case.
    pub expose_headers: Vec<String>,
    /// Whether a browser sends its own credentials along; never with [`AllowedOrigins::Any`].
    pub credentials: bool,
    /// How long a browser remembers a preflight answer, whole seconds.
    pub max_age: Duration,
}

/// Origins whose pages may read answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigins {
    Any,
    /// As browsers write them; compared byte for byte.
    Listed(Vec<String>),
}

/// Header fields that pages may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHeaders {
    /// Whatever a preflight asks for.
    Any,
    /// Lower-case names.
    Listed(Vec<String>),
}

/// What the edge tells of itself and of its fleets on the clients' port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnRoute {
    Models,
    Health,
    Version,
    ClusterInfo,
    Metrics,
}

impl OwnRoute {
    /// Every route, by its name in `gateway.open_routes`.
    pub const ALL: [(&'static str, Self); 5] = [
        ("models", Self::Models),
        ("health", Self::Health),
        ("version", Self::Version),
        ("cluster_info", Self::ClusterInfo),
        ("metrics", Self::Metrics),
    ];

    /// Its name in `gateway.open_routes`.
    pub fn name(self) -> &'static str {
        let own = Self::ALL.into_iter().find(|(_, route)| *route == self);
        own.map_or("", |(name, _)| name)
    }
}

/// What a client may know an instance by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InstanceNames {
    /// `context-0`, as in metrics and debug headers.
    #[default]
    Aliases,
    /// `host:port`, as upstream.
    Addresses,
}
