//! Upstream's keys, with upstream's defaults and meaning (specification section 1).
//!
//! A file that upstream serves is served here too. A key whose meaning Kindred lacks is never
//! quietly dropped: it is in a warning where leaving it out serves the same answers, and an error
//! where it would not.

mod affinity;
mod conditional;
mod discovery;
mod fleet;
mod host;

use std::time::Duration;

pub(crate) use affinity::parent_header;

use super::{
    AffinityScope, CLIENT_KEEP_ALIVE, EdgeConfig,
    address::{self, Listener},
    own,
    raw::{self, Field, node::Value},
    report::{Place, Report},
    secret::{Secrets, Taken},
};
use crate::{
    config::words::shown,
    wire::{disagg::ScheduleStyle, signature::SigningProfile},
};

/// The edge of a file, or `None` where the file describes only `others` (worker filters, the
/// operator's port).
pub(crate) fn edge(
    mut file: raw::File,
    key: &Taken,
    secrets: &Secrets<'_>,
    gateway: bool,
    others: bool,
    report: &mut Report,
) -> Option<EdgeConfig> {
    let wanted = gateway || describes_edge(&file) || !others;
    without_effect(&mut file, report);
    let schedule_style = schedule_style(file.schedule_style.take(), report);
    let affinity = affinity::read(&mut file, key, gateway, report);
    let health = own::health(file.health.take(), report);
    let (hostname, port) = bind(&mut file, wanted, report);
    let retries = file.max_retries.take();
    let keep_alive = keep_alive(file.server_keep_alive_timeout.take(), report);
    let node_id = host::node_id(file.node_id.take(), report);
    let process_id = file.process_id.take();
    let process_id = host::process_id(process_id, secrets.environment, wanted, report);
    let chat_template = file.allow_request_chat_template.take();
    let strip_history = file.gen_strip_message_history.take();
    let tokids = file.gen_tokids_ctxbytes.take();
    let conditional = file.conditional_disagg_config.take();
    let cluster = file.disagg_cluster.take();
    let discovery = discovery::read(cluster, secrets, port, gateway, report);
    let (fleets, models) = fleet::all(file, wanted, discovery.is_some(), report);
    let mut config = EdgeConfig {
        hostname,
        port,
        fleets,
        models,
        discovery,
        affinity,
        health,
        internal_request_auth_keys: key.given(),
        max_retries: retries
            .and_then(|field| field.integer(report, 0..=u32::MAX))
            .unwrap_or(1),
        client_keep_alive: keep_alive,
        node_id,
        process_id,
        schedule_style,
        allow_request_chat_template: switch(chat_template, report),
        gen_strip_message_history: switch(strip_history, report),
        gen_tokids_ctxbytes: switch(tokids, report),
        conditional_disagg: None,
    };
    unsigned_generation(&config, report);
    config.conditional_disagg = conditional::read(conditional, &config, report);
    wanted.then_some(config)
}

/// Scope `both` promises what Dynamo's profile does not sign.
fn unsigned_generation(config: &EdgeConfig, report: &mut Report) {
    let affinity = &config.affinity;
    if affinity.parent_header.is_none() || affinity.scope != AffinityScope::Both {
        return;
    }
    for (model, fleets) in config.pools() {
        let generation = fleets.pair().map(|pair| &pair.generation);
        if generation.is_none_or(|fleet| fleet.signing_profile != SigningProfile::Dynamo) {
            continue;
        }
        let key = "generation_servers.signing_profile";
        let at = Place::file();
        let at = match model {
            Some(model) => at
                .missing("models")
                .missing(&shown(&model.name))
                .missing(key),
            None => at.missing(key),
        };
        report.warn(
            &at,
            "is dynamo, which signs context requests only: sub-agents still go to their parent's \
             generation instance, but no generation request tells the worker who the parent is",
        );
    }
}

/// Whether any key that only an edge has is there.
fn describes_edge(file: &raw::File) -> bool {
    [
        &file.hostname,
        &file.port,
        &file.context_servers,
        &file.generation_servers,
        &file.aggregated_servers,
        &file.models,
        &file.conversation_affinity_header_for_subagents,
        &file.subagent_affinity_scope,
        &file.max_retries,
        &file.server_keep_alive_timeout,
        &file.node_id,
        &file.process_id,
        &file.schedule_style,
        &file.allow_request_chat_template,
        &file.gen_strip_message_history,
        &file.gen_tokids_ctxbytes,
        &file.disagg_cluster,
    ]
    .iter()
    .any(|field| field.is_some())
}

fn switch(field: Option<Field>, report: &mut Report) -> bool {
    field
        .and_then(|field| field.boolean(report))
        .unwrap_or(false)
}

fn bind(file: &mut raw::File, wanted: bool, report: &mut Report) -> (String, u16) {
    let at = [&file.port, &file.hostname]
        .into_iter()
        .find_map(|field| field.as_ref().map(|field| field.at.clone()))
        .unwrap_or_else(|| file.at.missing("port"));
    let hostname = file.hostname.take().and_then(|field| {
        let text = field.text(report)?;
        if address::is_bind_host(text) {
            return Some(text.to_owned());
        }
        let what = format!(
            "is {}; it must be a host name or an IP address, without scheme and port",
            shown(text)
        );
        report.error(&field.at, what);
        None
    });
    let port = file.port.take();
    let port = port.and_then(|field| field.integer(report, 0..=u16::MAX));
    let hostname = hostname.unwrap_or_else(|| "localhost".to_owned());
    let port = port.unwrap_or(8000);
    if wanted {
        report.listens(&at, Listener::new(&hostname, port));
    }
    (hostname, port)
}

fn schedule_style(field: Option<Field>, report: &mut Report) -> ScheduleStyle {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return ScheduleStyle::ContextFirst;
    };
    match field.text(report) {
        None | Some("context_first") => ScheduleStyle::ContextFirst,
        Some("generation_first") => ScheduleStyle::GenerationFirst,
        Some(other) => {
            let what = format!(
                "is {}, which means context_first (as in upstream); write that, or generation_first",
                shown(other)
            );
            report.warn(&field.at, what);
            ScheduleStyle::ContextFirst
        }
    }
}

/// Seconds; `null` is as if it were not there.
fn keep_alive(field: Option<Field>, report: &mut Report) -> Duration {
    field
        .filter(|field| !field.is_null())
        .and_then(|field| field.integer(report, 0..=u32::MAX))
        .map_or(CLIENT_KEEP_ALIVE, |seconds| {
            Duration::from_secs(u64::from(seconds))
        })
}

/// Keys that ask for something that Kindred does not do, and without which the answers are the
/// same.
fn without_effect(file: &mut raw::File, report: &mut Report) {
    let inert = [
        (file.disagg_coordinator_url.take(), None),
        (file.num_workers.take(), Some(1)),
        (file.otlp_config.take(), None),
        (file.perf_metrics_max_requests.take(), Some(0)),
        (file.perf_metrics_output_dir.take(), None),
        (file.return_perf_metrics.take(), None),
    ];
    for (field, default) in inert {
        let Some(field) = field else { continue };
        match &field.value {
            Value::Null | Value::Bool(false) => {}
            Value::Int(number) if Some(*number) == default => {}
            _ => report.warn(&field.at, why_without_effect(field.at.path())),
        }
    }
}

fn why_without_effect(key: &str) -> &'static str {
    match key {
        "disagg_coordinator_url" => {
            "has no effect here: this edge keeps its own loads and bindings and shares none; send a \
             family to one edge"
        }
        "num_workers" => "has no effect here: one process serves on all cores",
        "otlp_config" => "has no effect here yet: no traces are sent",
        _ => "has no effect here: the figures are on the admin port's /metrics",
    }
}
