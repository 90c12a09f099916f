//! What is read from the file before any of it is believed.
//!
//! Names every key of every section once, splits the file into them, and finds the keys that are
//! none. It applies no default and judges no value: a field is a place and a value until
//! `upstream` or `own` asks for it.

pub(crate) mod field;
pub(crate) mod node;

use super::report::{Place, Report};
use super::words::unknown_key;
pub(crate) use field::Field;
use node::Value;

macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

/// A section: its known keys as optional fields, and the rest.
pub(crate) trait Section: Default {
    /// Its known keys.
    const KEYS: &'static [&'static str];

    /// The field of a known key.
    fn slot(&mut self, key: &str) -> Option<&mut Option<Field>>;

    /// Where the section stands, and its keys that are none.
    fn parts(&mut self) -> (&mut Place, &mut Vec<(String, Field)>);

    /// Splits a map into its keys; an empty value is an empty section.
    fn open(field: Field, report: &mut Report) -> Self {
        let mut section = Self::default();
        match field.value {
            Value::Null => {}
            Value::Map(entries) => {
                for entry in entries {
                    let name = entry.key.clone();
                    let value = Field::of(&field.at, entry);
                    match section.slot(&name) {
                        // The parser tells `1` from `"1"`, so it finds most of these, not all.
                        Some(Some(_)) => report.error(&value.at, TWICE),
                        Some(slot) => *slot = Some(value),
                        None => section.parts().1.push((name, value)),
                    }
                }
            }
            _ => report.error(&field.at, NO_SECTION),
        }
        *section.parts().0 = field.at;
        section
    }

    /// As `open`, for Kindred's own sections: an unknown key is an error.
    fn closed(field: Field, report: &mut Report) -> Self {
        let mut section = Self::open(field, report);
        for (name, unknown) in section.parts().1.iter() {
            report.error(&unknown.at, unknown_key(name, Self::KEYS));
        }
        section
    }
}

macro_rules! section {
    ($(#[$about:meta])* $name:ident { $($field:ident $(= $key:literal)?,)* }) => {
        $(#[$about])*
        #[derive(Default)]
        pub(crate) struct $name {
            pub(crate) at: Place,
            $(pub(crate) $field: Option<Field>,)*
            pub(crate) rest: Vec<(String, Field)>,
        }

        impl Section for $name {
            const KEYS: &'static [&'static str] = &[$(key_name!($field $($key)?)),*];

            fn slot(&mut self, key: &str) -> Option<&mut Option<Field>> {
                match key {
                    $(key_name!($field $($key)?) => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            fn parts(&mut self) -> (&mut Place, &mut Vec<(String, Field)>) {
                (&mut self.at, &mut self.rest)
            }
        }
    };
}

const TWICE: &str = "a key is given twice in one section; keep one";
const NO_SECTION: &str = "must be a group of keys, each on its own indented line as `key: value`";

section! {
    /// The file.
    File {
        hostname,
        port,
        context_servers,
        generation_servers,
        aggregated_servers,
        models,
        compatibility,
        internal_request_auth_key,
        internal_request_auth_key_file,
        internal_request_auth_keys,
        conversation_affinity_header_for_subagents,
        subagent_affinity_scope,
        max_retries,
        node_id,
        process_id,
        schedule_style,
        allow_request_chat_template,
        gen_strip_message_history,
        gen_tokids_ctxbytes,
        conditional_disagg_config,
        disagg_cluster,
        disagg_coordinator_url,
        num_workers,
        otlp_config,
        perf_metrics_max_requests,
        perf_metrics_output_dir,
        return_perf_metrics,
        server_keep_alive_timeout,
        gateway,
        cors,
        worker_filters,
        admin,
        limits,
        timeouts,
        http,
        telemetry,
        health,
        affinity,
        tls,
    }
}

section! {
    /// `context_servers`, `generation_servers` or `aggregated_servers`; the rest are engine options.
    Servers {
        num_instances,
        urls,
        router,
        signing_profile,
        draining,
    }
}

section! {
    /// One entry of `models`.
    Model {
        aliases,
        context_servers,
        generation_servers,
        aggregated_servers,
    }
}

section! {
    /// `router` of a fleet.
    Router {
        kind = "type",
        match_threshold,
        tokens_per_block,
        hash_skip_count,
        max_sessions,
        use_token_ids,
        use_harmony,
        use_tokens,
        max_batch_size,
        track_routed_blocks,
        load_weight,
        load_cap,
        tokenizer_dir,
        custom_tokenizer,
        model_path,
    }
}

section! {
    /// `disagg_cluster`.
    DisaggCluster {
        cluster_uri,
        cluster_name,
        minimal_instances,
        heartbeat_interval_sec,
        inactive_timeout_sec,
        auth_token,
        auth_token_file,
    }
}

section! {
    /// `minimal_instances` of `disagg_cluster`.
    MinimalInstances {
        context_servers,
        generation_servers,
    }
}

section! {
    /// `conditional_disagg_config`.
    ConditionalDisagg {
        max_local_prefill_length,
    }
}

section! {
    /// `gateway`.
    Gateway {
        anonymous,
        anonymous_max_in_flight,
        anonymous_limits,
        clients,
        prune_headers,
        max_sessions,
        owned_ttl,
        parent_sources,
        delegation,
        session_isolation,
        namespace_conversation_ids,
        max_table_share,
        open_routes,
        cluster_info,
        keys_file,
        jwt,
        failed_attempts,
    }
}

section! {
    /// `gateway.jwt`.
    Jwt {
        issuer,
        audience,
        algorithms,
        leeway,
        client_claim,
        jwks_file,
        jwks_url,
        refresh,
        min_refresh,
    }
}

section! {
    /// `gateway.failed_attempts`.
    FailedAttempts {
        max,
        per,
    }
}

section! {
    /// An item of `gateway.parent_sources` that is not a header's name.
    BodySource {
        body,
    }
}

section! {
    /// `gateway.delegation`.
    Delegation {
        key,
        key_file,
        keys,
        ttl,
        on_answers,
    }
}

section! {
    /// `cors`.
    Cors {
        allow_origins,
        allow_methods,
        allow_headers,
        expose_headers,
        allow_credentials,
        max_age,
    }
}

section! {
    /// One item of `gateway.clients`.
    Client {
        name,
        api_keys_sha256,
        subjects,
        certificate_names,
        subagents,
        max_in_flight,
        limits,
    }
}

section! {
    /// `limits` of a client, and `gateway.anonymous_limits`.
    ClientLimits {
        requests_per_second,
        burst,
        prompt_tokens_per_minute,
        subagents_in_flight,
    }
}

section! {
    /// One item of `worker_filters`.
    WorkerFilter {
        name,
        listen,
        worker,
        server_role,
        internal_request_auth_key,
        internal_request_auth_key_file,
        internal_request_auth_keys,
        enable_attention_dp,
        tensor_parallel_size,
        max_batch_size,
        attention_dp_config,
        rank_delivery,
        signing_profile,
        tls,
    }
}

section! {
    /// `attention_dp_config` of a worker filter, with all of upstream's keys.
    AttentionDp {
        kv_cache_routing_conversation_affinity,
        kv_cache_routing_new_conv_placement,
        kv_cache_routing_max_sessions,
        kv_cache_routing_fair_share_multiplier,
        enable_balance,
        timeout_iters,
        batching_wait_iters,
        enable_kv_cache_aware_routing,
        kv_cache_routing_load_balance_weight,
        kv_cache_routing_match_rate_threshold,
        kv_cache_routing_cold_start_warmup,
        kv_cache_routing_account_for_in_transfer,
    }
}

section! {
    /// One item of `internal_request_auth_keys` that stands in a file of its own.
    KeyFile {
        file,
    }
}

section! {
    /// `admin`.
    Admin {
        listen,
        tls,
    }
}

section! {
    /// `limits`.
    LimitsSection {
        max_body,
        body_budget,
        max_answer,
        max_headers,
        max_header_bytes,
        max_connections,
        max_connections_per_address,
        min_body_rate,
        max_session_id,
        max_in_flight,
        max_waiting,
    }
}

section! {
    /// `limits.max_body` by path.
    MaxBody {
        default,
        chat_completions = "/v1/chat/completions",
        completions = "/v1/completions",
    }
}

section! {
    /// `limits.max_in_flight` by role.
    MaxInFlight {
        context,
        generation,
        aggregated,
    }
}

section! {
    /// `timeouts`.
    TimeoutsSection {
        connect,
        read_header,
        read_body,
        queue,
        context,
        first_byte,
        silence,
        answer,
        write,
        idle_upstream,
        retry_pause,
        retry_pause_max,
        drain,
    }
}

section! {
    /// `http`.
    Http {
        half_close,
        heartbeat,
    }
}

section! {
    /// `tls`, of the clients' port, of the operator's and of a worker filter.
    Tls {
        cert_file,
        key_file,
        client_ca_file,
        client_auth,
        workers,
    }
}

section! {
    /// `tls.workers`.
    WorkerTls {
        ca_file,
        cert_file,
        key_file,
        server_name,
        plain,
    }
}

section! {
    /// `health`.
    Health {
        active,
        path,
        interval,
        timeout,
        unhealthy_after,
        healthy_after,
        slow_start,
        passive,
        ejection,
    }
}

section! {
    /// `health.ejection`.
    Ejection {
        window,
        min_requests,
        failure_share,
        time,
        max_time,
        max_ejected,
    }
}

section! {
    /// `affinity`.
    Affinity {
        nested,
        overflow,
    }
}

section! {
    /// `affinity.overflow`.
    Overflow {
        max_in_flight,
        max_tokens,
    }
}

section! {
    /// `telemetry`.
    Telemetry {
        access_log,
        debug_headers,
        internal_fields,
        log,
    }
}

/// Every key of every section.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    [
        File::KEYS,
        Servers::KEYS,
        Model::KEYS,
        Router::KEYS,
        DisaggCluster::KEYS,
        MinimalInstances::KEYS,
        ConditionalDisagg::KEYS,
        Gateway::KEYS,
        Jwt::KEYS,
        FailedAttempts::KEYS,
        BodySource::KEYS,
        Delegation::KEYS,
        Client::KEYS,
        ClientLimits::KEYS,
        Cors::KEYS,
        WorkerFilter::KEYS,
        AttentionDp::KEYS,
        KeyFile::KEYS,
        Admin::KEYS,
        LimitsSection::KEYS,
        MaxInFlight::KEYS,
        MaxBody::KEYS,
        TimeoutsSection::KEYS,
        Tls::KEYS,
        WorkerTls::KEYS,
        Http::KEYS,
        Health::KEYS,
        Ejection::KEYS,
        Affinity::KEYS,
        Overflow::KEYS,
        Telemetry::KEYS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Whether any section has such a key.
pub(crate) fn is_key(name: &str) -> bool {
    keys().any(|key| key == name)
}
