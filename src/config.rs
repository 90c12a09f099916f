//! What the program is told to do, valid by construction.
//!
//! A [`Config`] can only be had from [`Config::load`] or [`Config::from_yaml`], which read the file
//! into `raw` structures, apply upstream's rules (`upstream`) and Kindred's (`own`, `worker_filter`),
//! and check what spans sections (`check`). Whoever holds a `Config` needs no further validation. This room opens no sockets and
//! keeps no state: reloading is loading again and comparing.

mod address;
mod body_limits;
pub mod check;
mod claims;
mod client_limits;
mod discovery;
mod health;
mod http;
pub mod identity;
pub(crate) mod keys_file;
mod own;
mod pools;
mod print;
mod raw;
pub mod report;
mod secret;
mod surface;
mod tls;
mod upstream;
mod words;
mod worker_filter;

#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use secrecy::SecretString;

use crate::{
    telemetry::access_log,
    wire::{Role, disagg::ScheduleStyle, signature::SigningProfile},
};

pub use body_limits::BodyLimits;
pub use claims::{DelegationConfig, Nested, ParentSource, SessionIsolation};
pub use client_limits::ClientLimits;
pub use discovery::{DiscoveryConfig, StoreConfig};
pub use health::{DrainMode, Draining, EjectionConfig, HealthConfig, OverflowConfig};
pub use http::{HalfClose, HttpConfig};
pub use identity::{FailedAttempts, JwksSource, JwksUrl, JwtConfig, KeysFile};
pub use pools::{FleetsConfig, ModelConfig, PairConfig};
pub use report::{ConfigError, Problem};
pub use surface::{AllowedHeaders, AllowedOrigins, CorsConfig, InstanceNames, OwnRoute};
pub use tls::{ClientCertificates, TlsConfig, WorkerTlsConfig};

/// How long a client's connection may be idle where nothing else is said: longer than load balancers
/// keep one, so that they close it and never send on one that is being closed.
pub const CLIENT_KEEP_ALIVE: Duration = Duration::from_secs(75);

/// Everything a configuration file describes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the gateway and edge listen (`hostname`, `port`); `None` in a file that only describes
    /// worker filters.
    pub edge: Option<EdgeConfig>,
    /// The trust boundary; `None` means that the parent header is trusted as it arrives.
    pub gateway: Option<GatewayConfig>,
    /// Which pages of other origins may read answers; `None` says nothing to browsers.
    pub cors: Option<CorsConfig>,
    /// The worker filters that run in this process.
    pub worker_filters: Vec<WorkerFilterConfig>,
    /// The operator's port; `None` leaves it closed.
    pub admin: Option<AdminConfig>,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub http: HttpConfig,
    pub telemetry: TelemetryConfig,
    /// The shape of error answers.
    pub compatibility: Compatibility,
    /// How clients connect to the edge; `None` is without TLS.
    pub tls: Option<TlsConfig>,
    /// How the edge connects to workers; `None` is without TLS.
    pub worker_tls: Option<WorkerTlsConfig>,
    /// What a person should know though the file is usable; printed once at start-up.
    pub warnings: Vec<String>,
    /// The file this came from, for messages and reloads.
    pub origin: PathBuf,
}

/// The edge: its fleets, how to choose in them, and how to sign.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// Bind host, upstream's `hostname`.
    pub hostname: String,
    /// Bind port, upstream's `port`; 0 picks a free one.
    pub port: u16,
    /// The fleets of every model that `models` does not name; `None` refuses such a model.
    pub fleets: Option<FleetsConfig>,
    /// The models with fleets of their own.
    pub models: Vec<ModelConfig>,
    /// Upstream's `disagg_cluster`: who the instances of `fleets` are, where they announce themselves.
    pub discovery: Option<DiscoveryConfig>,
    pub affinity: AffinityConfig,
    pub health: HealthConfig,
    /// The keys of affinity and KV transfer headers, at most [`SigningKeys::MOST`]: the first
    /// signs. Upstream's `internal_request_auth_key` is a list of one.
    ///
    /// [`SigningKeys::MOST`]: crate::wire::signature::SigningKeys::MOST
    pub internal_request_auth_keys: Vec<SecretString>,
    /// Upstream's `max_retries`: attempts after the first of each leg.
    pub max_retries: u32,
    /// Upstream's `server_keep_alive_timeout`, whole seconds: how long a client's connection may be
    /// idle. Zero closes it after each answer. Default [`CLIENT_KEEP_ALIVE`].
    pub client_keep_alive: Duration,
    /// Upstream's `node_id`, part of every `disagg_request_id`.
    pub node_id: u8,
    /// Tells the edges of one host apart in every `disagg_request_id`, 0 to 63.
    pub process_id: u8,
    /// Upstream's `schedule_style`: which leg of a request is sent first.
    pub schedule_style: ScheduleStyle,
    /// Upstream's `allow_request_chat_template`.
    pub allow_request_chat_template: bool,
    /// Upstream's `gen_strip_message_history`: the generation chat body keeps only the last message.
    pub gen_strip_message_history: bool,
    /// Upstream's `gen_tokids_ctxbytes`: prompt ids travel as base64 between the legs.
    pub gen_tokids_ctxbytes: bool,
    /// Upstream's `conditional_disagg_config`; only with a generation router `kv_cache_aware`.
    pub conditional_disagg: Option<ConditionalDisaggConfig>,
}

/// The instances of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetConfig {
    pub role: Role,
    /// `host:port` of each instance, unique, in the file's order.
    pub urls: Vec<String>,
    /// The instances announce themselves (`disagg_cluster`), and there are no `urls`.
    pub announced: bool,
    pub router: RouterConfig,
    /// How affinity is signed for this fleet.
    pub signing_profile: SigningProfile,
    /// Instances that are being emptied.
    pub draining: Draining,
}

/// Upstream's `router` block of a fleet, arguments resolved to their defaults (specification
/// section 2).
#[derive(Debug, Clone, PartialEq)]
pub enum RouterConfig {
    RoundRobin,
    LoadBalancing(LoadBalancingConfig),
    Conversation(ConversationConfig),
    KvCacheAware(KvCacheAwareConfig),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadBalancingConfig {
    /// Balance on active tokens instead of active requests.
    pub use_tokens: bool,
}

/// Arguments of the conversation router (specification section 2.3).
#[derive(Debug, Clone, PartialEq)]
pub struct ConversationConfig {
    /// Share of a prompt's blocks that must match before a request without an id joins a session.
    pub match_threshold: f64,
    pub tokens_per_block: u32,
    /// Leading units left out of the block hashes.
    pub hash_skip_count: u32,
    /// Bound of the affinity table; the least recently used binding goes first.
    pub max_sessions: usize,
}

impl Default for ConversationConfig {
    fn default() -> Self {
        Self {
            match_threshold: 0.75,
            tokens_per_block: 128,
            hash_skip_count: 0,
            max_sessions: 100_000,
        }
    }
}

/// Arguments of the router by KV cache (specification section 2.4).
#[derive(Debug, Clone, PartialEq)]
pub struct KvCacheAwareConfig {
    /// Requests in flight at which an instance counts as full, for `load_cap`.
    pub max_batch_size: u32,
    /// Block size of the hashes; `None` adopts the workers'.
    pub tokens_per_block: Option<u32>,
    /// Whether the blocks of requests that ended well count as held.
    pub track_routed_blocks: bool,
    /// Blocks that one request in flight weighs against.
    pub load_weight: f64,
    /// Share of `max_batch_size` from which an instance is only chosen if all are as full; infinite
    /// by default.
    pub load_cap: f64,
    /// Folder of the tokenizer and its chat template; relative to the working directory, as in
    /// upstream.
    pub tokenizer_dir: Option<PathBuf>,
}

impl Default for KvCacheAwareConfig {
    fn default() -> Self {
        Self {
            max_batch_size: 64,
            tokens_per_block: None,
            track_routed_blocks: true,
            load_weight: 0.25,
            load_cap: f64::INFINITY,
            tokenizer_dir: None,
        }
    }
}

/// Upstream's `conditional_disagg_config`: short rests of prompts need no context leg (specification
/// section 4.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionalDisaggConfig {
    /// Most tokens without cache that a generation instance computes itself.
    pub max_local_prefill_length: u32,
}

/// Affinity at the edge.
#[derive(Debug, Clone, PartialEq)]
pub struct AffinityConfig {
    /// Upstream's `conversation_affinity_header_for_subagents`, lower-cased; `None` turns
    /// sub-agent affinity off.
    pub parent_header: Option<String>,
    /// Upstream's `subagent_affinity_scope`.
    pub scope: AffinityScope,
    /// `affinity.nested`.
    pub nested: Nested,
    /// `affinity.overflow`, for each instance.
    pub overflow: OverflowConfig,
}

/// The legs whose routing follows the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AffinityScope {
    #[default]
    Context,
    Both,
}

/// Who may use the gateway, and what of theirs is removed.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    pub clients: Vec<ClientConfig>,
    /// What requests without credentials may do; `None` refuses them with 401.
    pub anonymous: Option<SubagentPolicy>,
    /// Requests without credentials at once, over all of them; `None` for no bound.
    pub anonymous_max_in_flight: Option<usize>,
    /// What requests without credentials may take, all of them together.
    pub anonymous_limits: ClientLimits,
    /// Further headers to remove from every request, lower-case.
    pub prune_headers: Vec<String>,
    /// How many (client, session) pairs are remembered for the `owned` policy.
    pub max_sessions: usize,
    /// How long after its last use a session is its client's.
    pub owned_ttl: Duration,
    /// Where a claim to a parent may stand, in order; `None` is the usual places, see
    /// [`GatewayConfig::sources`].
    pub parent_sources: Option<Vec<ParentSource>>,
    pub delegation: DelegationConfig,
    /// Whether equal session ids of two clients are one session; `None` where nothing is said, see
    /// [`GatewayConfig::isolates`].
    pub session_isolation: Option<SessionIsolation>,
    /// Whether workers are told ids of Kindred's own in place of the clients' conversation ids.
    pub namespace_conversation_ids: bool,
    /// What one client's sessions may fill of a table at most; `None` where nothing is said, see
    /// [`GatewayConfig::table_share`].
    pub max_table_share: Option<f64>,
    /// Further keys of the clients, in a file that may change at any time.
    pub keys_file: Option<KeysFile>,
    /// Which tokens are believed; `None` for none.
    pub jwt: Option<JwtConfig>,
    /// How often one address may fail to say who it is; `None` for no bound.
    pub failed_attempts: Option<FailedAttempts>,
    /// What is told to everybody, without a key.
    pub open_routes: Vec<OwnRoute>,
    /// What `/cluster_info` calls the instances.
    pub cluster_info: InstanceNames,
}

/// One client of the gateway.
#[derive(Debug, Clone, Default)]
pub struct ClientConfig {
    /// Unique; appears in logs, never in metrics.
    pub name: String,
    /// SHA-256 digests of the client's API keys.
    pub api_keys: Vec<[u8; 32]>,
    /// Its names in tokens, compared exactly.
    pub subjects: Vec<String>,
    /// Its names in certificates, compared exactly.
    pub certificate_names: Vec<String>,
    pub subagents: SubagentPolicy,
    /// Requests of its own at once; `None` for no bound.
    pub max_in_flight: Option<usize>,
    pub limits: ClientLimits,
}

/// Which parents a client's requests may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubagentPolicy {
    /// None at all.
    None,
    /// Sessions that were seen from the same client.
    #[default]
    Owned,
    /// Any: the client is itself a trusted agent gateway.
    Declared,
    /// Sessions for which the request carries a delegation.
    Delegated,
}

/// One worker filter, standing in front of one worker.
#[derive(Debug, Clone)]
pub struct WorkerFilterConfig {
    /// Unique; the `worker` label of the filter's metrics.
    pub name: String,
    /// Where the filter listens, `host:port`; port 0 picks a free one.
    pub listen: String,
    /// The worker behind it, `host:port`.
    pub worker: String,
    /// How the edge connects to the filter; `None` is without TLS.
    pub tls: Option<TlsConfig>,
    /// How the filter connects to its worker; `None` is without TLS.
    pub worker_tls: Option<WorkerTlsConfig>,
    /// `server_role`; `None` infers it from each request's `disaggregated_params.request_type`.
    pub server_role: Option<Role>,
    /// The keys that this filter verifies with; empty verifies nothing.
    pub internal_request_auth_keys: Vec<SecretString>,
    /// How the edge in front of this filter signs affinity.
    pub signing_profile: SigningProfile,
    /// Attention-DP placement; `None` when `enable_attention_dp` is off, and then no rank is told.
    pub placement: Option<PlacementConfig>,
}

/// Conversation-aware placement on attention-DP ranks (specification section 6.1).
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementConfig {
    /// Number of attention-DP ranks: the worker's `tensor_parallel_size`.
    pub ranks: u32,
    /// The worker's `max_batch_size`: hard cap of active requests on one rank.
    pub max_active_per_rank: u32,
    /// `kv_cache_routing_conversation_affinity`: off places every request by the policy alone.
    pub conversation_affinity: bool,
    /// `kv_cache_routing_max_sessions`: bound of the rank table.
    pub max_sessions: usize,
    /// `kv_cache_routing_fair_share_multiplier`, at least 1 where used.
    pub fair_share_multiplier: f64,
    /// `kv_cache_routing_new_conv_placement`.
    pub new_conversation: NewConversationPlacement,
}

/// Where a conversation without a rank goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NewConversationPlacement {
    #[default]
    RoundRobin,
    LeastQueued,
    LeastTokens,
}

/// The operator's port.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminConfig {
    /// `admin.listen`; port 0 picks a free one.
    pub listen: SocketAddr,
    /// How operators connect; `None` is without TLS.
    pub tls: Option<TlsConfig>,
}

/// Bounds (the design's rule 6).
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// `limits.max_body`, bytes of one request body, by path. Default 32 MiB for each.
    pub max_body: BodyLimits,
    /// `limits.body_budget`, bytes of all request bodies held at once. Default 1 GiB.
    pub body_budget: usize,
    /// `limits.max_answer`, bytes of one answer that is held whole: a context answer, or a JSON answer. Default 64 MiB.
    pub max_answer: usize,
    /// `limits.max_headers`, header fields of one request. Default 100.
    pub max_headers: usize,
    /// `limits.max_header_bytes`, bytes of all header fields of one request. Default 32 KiB.
    pub max_header_bytes: usize,
    /// `limits.max_connections`, connections of clients at once; a worker filter's port counts its own.
    /// Default 20000.
    pub max_connections: usize,
    /// `limits.max_connections_per_address`, of them from one IPv4 address or one /64 of IPv6. No bound by
    /// default: behind a load balancer all come from one.
    pub max_connections_per_address: Option<usize>,
    /// `limits.min_body_rate`, bytes a second that a client's body must come with after the first
    /// seconds. Default 1 KiB.
    pub min_body_rate: usize,
    /// `limits.max_session_id`, bytes of a session id. Default 512.
    pub max_session_id: usize,
    /// `limits.max_in_flight`, legs that one fleet serves at once, by role. No bound by default.
    pub max_in_flight: PlacesByRole,
    /// `limits.max_waiting`, requests that may wait for a place in one fleet. Default 1024.
    pub max_waiting: usize,
}

/// How many legs a fleet of each role serves at once; `None` for no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacesByRole {
    pub context: Option<usize>,
    pub generation: Option<usize>,
    pub aggregated: Option<usize>,
}

impl PlacesByRole {
    /// The bound of one role.
    pub fn of(&self, role: Role) -> Option<usize> {
        match role {
            Role::Context => self.context,
            Role::Generation => self.generation,
            Role::Aggregated => self.aggregated,
        }
    }
}

/// Deadlines (the design's rule 6).
#[derive(Debug, Clone, PartialEq)]
pub struct Timeouts {
    /// `timeouts.connect`, to a worker. Default 2 s.
    pub connect: Duration,
    /// `timeouts.read_header`, the whole head of a client's request. Default 10 s.
    pub read_header: Duration,
    /// `timeouts.read_body`, the whole body of a client. Default 60 s.
    pub read_body: Duration,
    /// `timeouts.queue`, the longest wait for a place in a fleet. Default 30 s.
    pub queue: Duration,
    /// `timeouts.context`, one attempt of the context leg. Default 180 s.
    pub context: Duration,
    /// `timeouts.first_byte`, one attempt of the generation leg until its answer's head is in.
    /// Default: as `silence`.
    pub first_byte: Duration,
    /// `timeouts.silence`, longest wait between two reads of a generation answer. Default 180 s.
    pub silence: Duration,
    /// `timeouts.answer`, both legs with all their attempts until the answer begins: a stream's with
    /// the worker's head, a JSON answer's when it is whole. Default 10 min.
    pub answer: Duration,
    /// `timeouts.write`, longest wait for a peer to take bytes. Default 30 s.
    pub write: Duration,
    /// `timeouts.idle_upstream`, idle time of a pooled connection; below the workers' 5 s. Default 4 s.
    pub idle_upstream: Duration,
    /// `timeouts.retry_pause`, about how long the first pause before another attempt at one place
    /// is; doubled for each further one. Default 100 ms.
    pub retry_pause: Duration,
    /// `timeouts.retry_pause_max`, the longest such pause, also if the worker asks for a longer one.
    /// Never below `retry_pause`. Default 2 s.
    pub retry_pause_max: Duration,
    /// `timeouts.drain`, how long streams may go on after SIGTERM. Default 30 s.
    pub drain: Duration,
}

/// Whose error answers the edge's look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compatibility {
    /// `{"error": {"message", "type", "param", "code"}}`.
    #[default]
    OpenAi,
    /// Upstream's edge (specification section 3.4).
    Trtllm,
}

/// What an operator sees.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryConfig {
    /// `telemetry.debug_headers`: answers carry `x-kindred-context`, `x-kindred-generation`,
    /// `x-kindred-rank`.
    pub debug_headers: bool,
    /// `telemetry.internal_fields`: JSON answers keep the fleet's own fields, such as
    /// `choices[].disaggregated_params` and `prompt_token_ids`, as upstream's do.
    pub internal_fields: bool,
    /// `telemetry.access_log`; `None` writes none.
    pub access_log: Option<access_log::Target>,
    /// `telemetry.log`, a filter such as `info` or `kindred=debug`.
    pub log: String,
}

impl Config {
    /// Reads, resolves and checks the file at `path`.
    ///
    /// # Errors
    /// Every problem of the file at once, each with its line and key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = check::read(path)?;
        Self::from_yaml(&text, path)
    }

    /// As [`Config::load`], from text. `origin` is the file named in messages; paths in the text
    /// are relative to its folder.
    ///
    /// # Errors
    /// Every problem of the text at once, each with its line and key.
    pub fn from_yaml(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        check::resolve(text, origin, &|name| std::env::var(name).ok())
    }

    /// The resolved configuration as YAML, with secrets masked as `********`. It loads again once
    /// the masks are replaced.
    pub fn to_yaml_masked(&self) -> String {
        print::masked(self)
    }
}
