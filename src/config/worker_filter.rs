//! `worker_filters`: the companions in front of workers.
//!
//! A filter takes the file's key where it names none of its own, and the worker's own option names
//! for attention data parallelism. It never guesses the number of ranks: a wrong one would place
//! requests on ranks that do not exist.

use crate::config::words::shown;
use std::collections::HashSet;

use super::{
    NewConversationPlacement, PlacementConfig, WorkerFilterConfig,
    address::{self, Listener},
    own::{self, signing_profile},
    raw::{self, Field, Section},
    report::{Place, Report},
    secret::{Forms, Secrets, Taken},
};
use crate::wire::{Role, signature::SigningProfile};

const ROLES: [(&str, Role); 3] = [
    ("context", Role::Context),
    ("generation", Role::Generation),
    ("aggregated", Role::Aggregated),
];

const PLACEMENTS: [(&str, NewConversationPlacement); 3] = [
    ("round_robin", NewConversationPlacement::RoundRobin),
    ("least_queued", NewConversationPlacement::LeastQueued),
    ("least_tokens", NewConversationPlacement::LeastTokens),
];

/// All filters of the file; `inherited` is its top-level key.
pub(crate) fn all(
    field: Field,
    inherited: &Taken,
    secrets: &Secrets<'_>,
    report: &mut Report,
) -> Vec<WorkerFilterConfig> {
    let at = field.at.clone();
    let before = report.errors();
    let items = field.list(report);
    if items.is_empty() && report.errors() == before {
        report.error(
            &at,
            "is empty; describe a filter with listen and worker, or remove the key",
        );
    }
    let mut names = HashSet::new();
    let mut filters = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let at = item.at.clone();
        let filter = one(item, index, inherited, secrets, report);
        if !names.insert(filter.name.clone()) {
            let what = format!(
                "is {}, the name of an earlier filter too; rename one",
                filter.name
            );
            report.error(&at.missing("name"), what);
        }
        filters.push(filter);
    }
    filters
}

fn one(
    item: Field,
    index: usize,
    inherited: &Taken,
    secrets: &Secrets<'_>,
    report: &mut Report,
) -> WorkerFilterConfig {
    let mut raw = raw::WorkerFilter::closed(item, report);
    let forms = Forms {
        inline: raw.internal_request_auth_key.take(),
        file: raw.internal_request_auth_key_file.take(),
        list: raw.internal_request_auth_keys.take(),
    };
    let own = secrets.take(forms, report);
    let key = match own {
        Taken::Absent => inherited.clone(),
        own => own,
    };
    let name = raw.name.take().and_then(|field| own::name(&field, report));
    let server_role = raw.server_role.take().filter(|field| !field.is_null());
    let server_role = server_role.and_then(|field| field.choice(report, &ROLES));
    rank_delivery(raw.rank_delivery.take(), report);
    let tls = own::tls(raw.tls.take(), secrets.folder, report);
    let signing_profile = signing_profile(raw.signing_profile.take(), report);
    dynamo_signs_context_only(signing_profile, server_role, &raw.at, report);
    let listen = listen(raw.listen.take(), &raw.at, report);
    let worker = worker(raw.worker.take(), &listen, &raw.at, report);
    if matches!(key, Taken::Absent) {
        report.warn(
            &raw.at,
            "has no internal_request_auth_key: requests with sub-agent affinity will be refused, and \
             nothing else can be verified; give the edge's key here or at the top of the file",
        );
    }
    WorkerFilterConfig {
        name: name.unwrap_or_else(|| format!("worker-{index}")),
        listen,
        worker,
        tls: tls.port,
        worker_tls: tls.workers,
        server_role,
        internal_request_auth_keys: key.given(),
        signing_profile,
        placement: placement(raw, report),
    }
}

fn listen(field: Option<Field>, at: &Place, report: &mut Report) -> String {
    let Some(field) = field else {
        let at = at.missing("listen");
        report.error(
            &at,
            "is missing; say where the filter listens, as host:port",
        );
        return String::new();
    };
    let Some(text) = field.text(report).map(str::to_owned) else {
        return String::new();
    };
    match Listener::parse(&text) {
        Some(listener) => report.listens(&field.at, listener),
        None => {
            let what = format!(
                "is {}; it must be host:port, such as 127.0.0.1:9001",
                shown(&text)
            );
            report.error(&field.at, what);
        }
    }
    text
}

fn worker(field: Option<Field>, listen: &str, at: &Place, report: &mut Report) -> String {
    let Some(field) = field else {
        let at = at.missing("worker");
        report.error(&at, "is missing; say where the worker is, as host:port");
        return String::new();
    };
    let Some(text) = field.text(report).map(str::to_owned) else {
        return String::new();
    };
    if let Err(what) = address::worker(&text) {
        report.error(&field.at, what);
    } else if text == listen {
        report.error(
            &field.at,
            "is where the filter itself listens; give the worker's own address",
        );
    }
    text
}

/// A filter in front of another worker would refuse every request with affinity.
fn dynamo_signs_context_only(
    profile: SigningProfile,
    role: Option<Role>,
    at: &Place,
    report: &mut Report,
) {
    if profile == SigningProfile::Dynamo && role.is_some_and(|role| role != Role::Context) {
        report.warn(
            &at.missing("signing_profile"),
            "is dynamo, which signs context requests only: this filter will refuse every request that \
             names a parent",
        );
    }
}

/// How the engine is told the rank: by header so far.
fn rank_delivery(field: Option<Field>, report: &mut Report) {
    let Some(field) = field else { return };
    let Some(text) = field.text(report) else {
        return;
    };
    if text != "header" {
        let what = format!(
            "is {}; only `header` (X-data-parallel-rank) is there, other ways come later",
            shown(text)
        );
        report.error(&field.at, what);
    }
}

fn placement(raw: raw::WorkerFilter, report: &mut Report) -> Option<PlacementConfig> {
    let on = raw
        .enable_attention_dp
        .and_then(|field| field.boolean(report))
        == Some(true);
    let ranks = raw.tensor_parallel_size;
    if on && ranks.is_none() {
        report.error(
            &raw.at.missing("tensor_parallel_size"),
            "is missing; with enable_attention_dp it is the number of ranks, so give the worker's",
        );
    }
    let ranks = ranks.and_then(|field| field.integer(report, 1..=4096_u32));
    let cap = raw
        .max_batch_size
        .and_then(|field| field.integer(report, 1..=1_000_000_u32));
    let routing = raw
        .attention_dp_config
        .map(|field| raw::AttentionDp::closed(field, report))
        .unwrap_or_default();
    let affinity_at = routing
        .kv_cache_routing_conversation_affinity
        .as_ref()
        .map(|field| field.at.clone());
    let config = attention_dp(routing, ranks.unwrap_or(1), cap.unwrap_or(64), report);
    if let Some(at) = affinity_at.filter(|_| config.conversation_affinity && !on) {
        report.error(
            &at,
            "needs enable_attention_dp: true, since without it a worker has no ranks; turn that on \
             or this off",
        );
    }
    on.then_some(config)
}

fn attention_dp(
    raw: raw::AttentionDp,
    ranks: u32,
    max_active_per_rank: u32,
    report: &mut Report,
) -> PlacementConfig {
    let engine = [
        raw.enable_balance,
        raw.timeout_iters,
        raw.batching_wait_iters,
        raw.enable_kv_cache_aware_routing,
        raw.kv_cache_routing_load_balance_weight,
        raw.kv_cache_routing_match_rate_threshold,
        raw.kv_cache_routing_cold_start_warmup,
        raw.kv_cache_routing_account_for_in_transfer,
    ];
    for field in engine.into_iter().flatten() {
        report.unused(&field.at, "", &[]);
    }
    let affinity = raw
        .kv_cache_routing_conversation_affinity
        .and_then(|field| field.boolean(report));
    let new = raw
        .kv_cache_routing_new_conv_placement
        .and_then(|field| field.choice(report, &PLACEMENTS));
    let multiplier = raw
        .kv_cache_routing_fair_share_multiplier
        .and_then(|field| field.number(report, 1.0));
    PlacementConfig {
        ranks,
        max_active_per_rank,
        conversation_affinity: affinity.unwrap_or(false),
        max_sessions: own::sessions(raw.kv_cache_routing_max_sessions, 65_536, report),
        fair_share_multiplier: multiplier.unwrap_or(2.0),
        new_conversation: new.unwrap_or_default(),
    }
}
