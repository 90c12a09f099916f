//! The resolved configuration as a file, for `kindred check --print`.
//!
//! Writes every value that is in force in the form in which a file gives it, in a fixed order. A
//! secret is written as its mask only; the digests of API keys are no secrets and stay.

mod health;
mod identity;
mod tls;

use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::{
    AffinityScope, AllowedHeaders, AllowedOrigins, BodyLimits, ClientLimits, Compatibility, Config,
    CorsConfig, DelegationConfig, DiscoveryConfig, EdgeConfig, FleetConfig, FleetsConfig,
    GatewayConfig, HalfClose, HttpConfig, InstanceNames, KvCacheAwareConfig, Limits, ModelConfig,
    NewConversationPlacement, ParentSource, PlacesByRole, RouterConfig, StoreConfig,
    SubagentPolicy, Timeouts, WorkerFilterConfig, raw::field::written_size, secret::MASK,
};
use crate::wire::{
    Role,
    disagg::{Endpoint, ScheduleStyle},
};

/// The whole of `config`, with its secrets masked.
pub(super) fn masked(config: &Config) -> String {
    let mut file = Map::new();
    if let Some(edge) = &config.edge {
        edge_keys(edge, &mut file);
    }
    if let Some(gateway) = &config.gateway {
        put(&mut file, "gateway", self::gateway(gateway));
    }
    if let Some(cors) = &config.cors {
        put(&mut file, "cors", self::cors(cors));
    }
    if !config.worker_filters.is_empty() {
        let filters = config.worker_filters.iter().map(worker_filter).collect();
        put(&mut file, "worker_filters", Value::Array(filters));
    }
    if let Some(admin) = &config.admin {
        let mut section = Map::new();
        put(&mut section, "listen", admin.listen.to_string());
        tls::tls(&mut section, admin.tls.as_ref(), None);
        put(&mut file, "admin", section);
    }
    put(&mut file, "limits", limits(&config.limits));
    put(&mut file, "timeouts", timeouts(&config.timeouts));
    put(&mut file, "http", http(&config.http));
    let access_log = config.telemetry.access_log.as_ref();
    let telemetry = json!({
        "access_log": access_log.map_or("off".to_owned(), ToString::to_string),
        "debug_headers": config.telemetry.debug_headers,
        "internal_fields": config.telemetry.internal_fields,
        "log": config.telemetry.log,
    });
    put(&mut file, "telemetry", telemetry);
    let compatibility = match config.compatibility {
        Compatibility::OpenAi => "openai",
        Compatibility::Trtllm => "trtllm",
    };
    put(&mut file, "compatibility", compatibility);
    tls::tls(&mut file, config.tls.as_ref(), config.worker_tls.as_ref());
    // Text, numbers and lists of them: there is nothing in it that YAML could not say.
    serde_saphyr::to_string(&file).unwrap_or_default()
}

fn put(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    map.insert(key.to_owned(), value.into());
}

fn secrets(map: &mut Map<String, Value>, keys: &[SecretString]) {
    match keys {
        [] => {}
        [_] => put(map, "internal_request_auth_key", MASK),
        keys => put(map, "internal_request_auth_keys", vec![MASK; keys.len()]),
    }
}

fn edge_keys(edge: &EdgeConfig, file: &mut Map<String, Value>) {
    put(file, "hostname", edge.hostname.as_str());
    put(file, "port", edge.port);
    if let Some(config) = &edge.fleets {
        fleets(config, file);
    }
    let models = edge.models.iter();
    let models: Map<String, Value> = models.map(model).collect();
    if !models.is_empty() {
        put(file, "models", models);
    }
    secrets(file, &edge.internal_request_auth_keys);
    if let Some(header) = &edge.affinity.parent_header {
        put(
            file,
            "conversation_affinity_header_for_subagents",
            header.as_str(),
        );
    }
    let scope = match edge.affinity.scope {
        AffinityScope::Context => "context",
        AffinityScope::Both => "both",
    };
    put(file, "subagent_affinity_scope", scope);
    put(file, "affinity", health::affinity(&edge.affinity));
    put(file, "health", health::health(&edge.health));
    put(file, "max_retries", edge.max_retries);
    put(
        file,
        "server_keep_alive_timeout",
        edge.client_keep_alive.as_secs(),
    );
    put(file, "node_id", edge.node_id);
    put(file, "process_id", edge.process_id);
    let style = match edge.schedule_style {
        ScheduleStyle::ContextFirst => "context_first",
        ScheduleStyle::GenerationFirst => "generation_first",
    };
    put(file, "schedule_style", style);
    put(
        file,
        "allow_request_chat_template",
        edge.allow_request_chat_template,
    );
    put(
        file,
        "gen_strip_message_history",
        edge.gen_strip_message_history,
    );
    put(file, "gen_tokids_ctxbytes", edge.gen_tokids_ctxbytes);
    if let Some(discovery) = &edge.discovery {
        put(file, "disagg_cluster", self::discovery(discovery, edge));
    }
    if let Some(conditional) = &edge.conditional_disagg {
        let section = json!({
            "max_local_prefill_length": conditional.max_local_prefill_length,
        });
        put(file, "conditional_disagg_config", section);
    }
}

/// The address of a store that is hosted here is not kept: only that it is this edge's.
fn discovery(discovery: &DiscoveryConfig, edge: &EdgeConfig) -> Value {
    let uri = match &discovery.store {
        StoreConfig::Hosted => format!("http://localhost:{}", edge.port.max(1)),
        StoreConfig::Etcd(endpoints) => {
            let uris: Vec<_> = endpoints.iter().map(|at| format!("etcd://{at}")).collect();
            uris.join(",")
        }
    };
    let mut section = Map::new();
    put(&mut section, "cluster_uri", uri);
    put(
        &mut section,
        "cluster_name",
        discovery.cluster_name.as_str(),
    );
    let minimal = json!({
        "context_servers": discovery.minimal_context,
        "generation_servers": discovery.minimal_generation,
    });
    put(&mut section, "minimal_instances", minimal);
    let interval = discovery.heartbeat_interval.as_secs_f64();
    put(&mut section, "heartbeat_interval_sec", interval);
    let timeout = discovery.inactive_timeout.as_secs_f64();
    put(&mut section, "inactive_timeout_sec", timeout);
    if discovery.auth_token.is_some() {
        put(&mut section, "auth_token", MASK);
    }
    section.into()
}

fn model(model: &ModelConfig) -> (String, Value) {
    let mut section = Map::new();
    if !model.aliases.is_empty() {
        put(&mut section, "aliases", model.aliases.clone());
    }
    fleets(&model.fleets, &mut section);
    (model.name.clone(), section.into())
}

fn fleets(fleets: &FleetsConfig, section: &mut Map<String, Value>) {
    match fleets {
        FleetsConfig::Disaggregated(pair) => {
            put(section, "context_servers", fleet(&pair.context));
            put(section, "generation_servers", fleet(&pair.generation));
        }
        FleetsConfig::Aggregated(config) => put(section, "aggregated_servers", fleet(config)),
    }
}

fn fleet(fleet: &FleetConfig) -> Value {
    let router = match &fleet.router {
        RouterConfig::RoundRobin => json!({"type": "round_robin"}),
        RouterConfig::LoadBalancing(config) => json!({
            "type": "load_balancing",
            "use_tokens": config.use_tokens,
        }),
        RouterConfig::Conversation(config) => json!({
            "type": "conversation",
            "match_threshold": config.match_threshold,
            "tokens_per_block": config.tokens_per_block,
            "hash_skip_count": config.hash_skip_count,
            "max_sessions": config.max_sessions,
        }),
        RouterConfig::KvCacheAware(config) => kv_cache_aware(config),
    };
    let mut section = Map::new();
    if !fleet.announced {
        put(&mut section, "num_instances", fleet.urls.len());
        put(&mut section, "urls", fleet.urls.clone());
    }
    put(&mut section, "router", router);
    if fleet.role != Role::Aggregated {
        put(
            &mut section,
            "signing_profile",
            fleet.signing_profile.name(),
        );
    }
    if !fleet.draining.is_empty() {
        put(&mut section, "draining", health::draining(&fleet.draining));
    }
    section.into()
}

/// What is absent by default, and the infinite cap that JSON has no word for, is left out.
fn kv_cache_aware(config: &KvCacheAwareConfig) -> Value {
    let mut router = Map::new();
    put(&mut router, "type", "kv_cache_aware");
    put(&mut router, "max_batch_size", config.max_batch_size);
    if let Some(size) = config.tokens_per_block {
        put(&mut router, "tokens_per_block", size);
    }
    put(
        &mut router,
        "track_routed_blocks",
        config.track_routed_blocks,
    );
    put(&mut router, "load_weight", config.load_weight);
    if config.load_cap.is_finite() {
        put(&mut router, "load_cap", config.load_cap);
    }
    if let Some(folder) = &config.tokenizer_dir {
        put(&mut router, "tokenizer_dir", folder.to_string_lossy());
    }
    Value::Object(router)
}

fn policy(policy: SubagentPolicy) -> &'static str {
    match policy {
        SubagentPolicy::None => "none",
        SubagentPolicy::Owned => "owned",
        SubagentPolicy::Declared => "declared",
        SubagentPolicy::Delegated => "delegated",
    }
}

fn gateway(config: &GatewayConfig) -> Value {
    let mut gateway = Map::new();
    if let Some(anonymous) = config.anonymous {
        put(&mut gateway, "anonymous", policy(anonymous));
    }
    if let Some(most) = config.anonymous_max_in_flight {
        put(&mut gateway, "anonymous_max_in_flight", most);
    }
    let limits = client_limits(&config.anonymous_limits);
    put(&mut gateway, "anonymous_limits", limits);
    let clients = config.clients.iter().map(|client| {
        let digests = client.api_keys.iter().map(|digest| hex(digest));
        let digests = digests.collect::<Vec<_>>();
        let mut client = json!({
            "name": client.name,
            "api_keys_sha256": digests.clone(),
            "subjects": client.subjects,
            "certificate_names": client.certificate_names,
            "subagents": policy(client.subagents),
            "max_in_flight": client.max_in_flight,
            "limits": client_limits(&client.limits),
        });
        if digests.is_empty()
            && let Some(client) = client.as_object_mut()
        {
            // Left out it is fine; an empty list is a mistake.
            client.remove("api_keys_sha256");
        }
        client
    });
    put(&mut gateway, "clients", clients.collect::<Vec<_>>());
    identity::put(&mut gateway, config);
    put(&mut gateway, "prune_headers", config.prune_headers.clone());
    put(&mut gateway, "max_sessions", config.max_sessions);
    let ttl = humantime::format_duration(config.owned_ttl).to_string();
    put(&mut gateway, "owned_ttl", ttl);
    if let Some(sources) = &config.parent_sources {
        let sources = sources.iter().map(|source| match source {
            ParentSource::Header(name) => json!(name),
            ParentSource::Body(names) => json!({"body": names.join(".")}),
        });
        put(&mut gateway, "parent_sources", sources.collect::<Vec<_>>());
    }
    put(&mut gateway, "delegation", delegation(&config.delegation));
    let isolation = match config.isolates() {
        true => "per_client",
        false => "shared",
    };
    put(&mut gateway, "session_isolation", isolation);
    let namespaced = config.namespace_conversation_ids;
    put(&mut gateway, "namespace_conversation_ids", namespaced);
    put(&mut gateway, "max_table_share", config.table_share());
    let open = config.open_routes.iter().map(|route| route.name());
    put(&mut gateway, "open_routes", open.collect::<Vec<_>>());
    let names = match config.cluster_info {
        InstanceNames::Aliases => "aliases",
        InstanceNames::Addresses => "addresses",
    };
    put(&mut gateway, "cluster_info", names);
    Value::Object(gateway)
}

/// What is absent is unbounded.
fn client_limits(limits: &ClientLimits) -> Value {
    let all = [
        (
            "requests_per_second",
            limits.requests_per_second.map(|most| most.get().into()),
        ),
        ("burst", limits.burst.map(|most| most.get().into())),
        ("prompt_tokens_per_minute", limits.prompt_tokens_per_minute),
        (
            "subagents_in_flight",
            limits.subagents_in_flight.map(|most| most as u64),
        ),
    ];
    let given = all
        .into_iter()
        .filter_map(|(key, most)| Some((key.to_owned(), most?.into())));
    Value::Object(given.collect())
}

fn delegation(config: &DelegationConfig) -> Value {
    let mut delegation = Map::new();
    if !config.keys.is_empty() {
        put(&mut delegation, "keys", vec![MASK; config.keys.len()]);
    }
    let ttl = humantime::format_duration(config.ttl).to_string();
    put(&mut delegation, "ttl", ttl);
    put(&mut delegation, "on_answers", config.on_answers);
    Value::Object(delegation)
}

fn cors(config: &CorsConfig) -> Value {
    let any = || vec!["*".to_owned()];
    let origins = match &config.origins {
        AllowedOrigins::Any => any(),
        AllowedOrigins::Listed(origins) => origins.clone(),
    };
    let headers = match &config.headers {
        AllowedHeaders::Any => any(),
        AllowedHeaders::Listed(names) => names.clone(),
    };
    json!({
        "allow_origins": origins,
        "allow_methods": config.methods,
        "allow_headers": headers,
        "expose_headers": config.expose_headers,
        "allow_credentials": config.credentials,
        "max_age": humantime::format_duration(config.max_age).to_string(),
    })
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn worker_filter(config: &WorkerFilterConfig) -> Value {
    let mut filter = Map::new();
    put(&mut filter, "name", config.name.as_str());
    put(&mut filter, "listen", config.listen.as_str());
    put(&mut filter, "worker", config.worker.as_str());
    if let Some(role) = config.server_role {
        let role = match role {
            Role::Context => "context",
            Role::Generation => "generation",
            Role::Aggregated => "aggregated",
        };
        put(&mut filter, "server_role", role);
    }
    tls::tls(&mut filter, config.tls.as_ref(), config.worker_tls.as_ref());
    secrets(&mut filter, &config.internal_request_auth_keys);
    put(
        &mut filter,
        "signing_profile",
        config.signing_profile.name(),
    );
    put(
        &mut filter,
        "enable_attention_dp",
        config.placement.is_some(),
    );
    if let Some(placement) = &config.placement {
        put(&mut filter, "tensor_parallel_size", placement.ranks);
        put(&mut filter, "max_batch_size", placement.max_active_per_rank);
        let new = match placement.new_conversation {
            NewConversationPlacement::RoundRobin => "round_robin",
            NewConversationPlacement::LeastQueued => "least_queued",
            NewConversationPlacement::LeastTokens => "least_tokens",
        };
        let config = json!({
            "kv_cache_routing_conversation_affinity": placement.conversation_affinity,
            "kv_cache_routing_new_conv_placement": new,
            "kv_cache_routing_max_sessions": placement.max_sessions,
            "kv_cache_routing_fair_share_multiplier": placement.fair_share_multiplier,
        });
        put(&mut filter, "attention_dp_config", config);
        put(&mut filter, "rank_delivery", "header");
    }
    Value::Object(filter)
}

/// What has no bound is null, and reads so again.
fn by_role(places: &PlacesByRole) -> Value {
    json!({
        "context": places.context,
        "generation": places.generation,
        "aggregated": places.aggregated,
    })
}

fn limits(limits: &Limits) -> Value {
    let size = |bytes: usize| written_size(bytes as u64);
    let max_body = limits.max_body;
    let max_body = if max_body == BodyLimits::all(max_body.largest()) {
        json!(size(max_body.largest()))
    } else {
        let sizes =
            Endpoint::ALL.map(|each| (each.path().to_owned(), size(max_body.of(each)).into()));
        Value::Object(sizes.into_iter().collect())
    };
    json!({
        "max_body": max_body,
        "body_budget": size(limits.body_budget),
        "max_answer": size(limits.max_answer),
        "max_in_flight": by_role(&limits.max_in_flight),
        "max_waiting": limits.max_waiting,
        "max_headers": limits.max_headers,
        "max_header_bytes": size(limits.max_header_bytes),
        "max_connections": limits.max_connections,
        "max_connections_per_address": limits.max_connections_per_address,
        "min_body_rate": size(limits.min_body_rate),
        "max_session_id": limits.max_session_id,
    })
}

fn http(http: &HttpConfig) -> Value {
    let half_close = match http.half_close {
        HalfClose::Cancel => "cancel",
        HalfClose::Serve => "serve",
    };
    let heartbeat = http.heartbeat.map(humantime::format_duration);
    json!({
        "half_close": half_close,
        "heartbeat": heartbeat.map_or_else(|| "off".to_owned(), |every| every.to_string()),
    })
}

fn timeouts(timeouts: &Timeouts) -> Value {
    let written = |duration: Duration| humantime::format_duration(duration).to_string();
    json!({
        "connect": written(timeouts.connect),
        "read_header": written(timeouts.read_header),
        "read_body": written(timeouts.read_body),
        "queue": written(timeouts.queue),
        "context": written(timeouts.context),
        "first_byte": written(timeouts.first_byte),
        "silence": written(timeouts.silence),
        "answer": written(timeouts.answer),
        "write": written(timeouts.write),
        "idle_upstream": written(timeouts.idle_upstream),
        "retry_pause": written(timeouts.retry_pause),
        "retry_pause_max": written(timeouts.retry_pause_max),
        "drain": written(timeouts.drain),
    })
}
