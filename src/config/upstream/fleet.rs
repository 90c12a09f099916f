//! `context_servers` and `generation_servers`: urls, routers, and what they inherit.
//!
//! Follows upstream's loader (specification sections 1.2 and 1.3): every key that is not known is
//! an engine option, copied from the top of the file into both sections, and must not contradict.

mod router;

use crate::config::words::shown;
use std::collections::{HashMap, HashSet};

use crate::{
    config::{
        FleetConfig, RouterConfig, address, own,
        raw::{self, Field, Section, node::Value},
        report::{Place, Report},
    },
    wire::Role,
};

/// Kindred's own sections: a group of keys under nearly such a name is a misspelt section.
const OWN: [&str; 6] = [
    "gateway",
    "worker_filters",
    "limits",
    "timeouts",
    "telemetry",
    "affinity",
];

type Options = [(String, Field)];

/// Both fleets; `needed` says that each must have an instance.
pub(super) fn both(
    file: raw::File,
    needed: bool,
    report: &mut Report,
) -> (FleetConfig, FleetConfig) {
    for (name, field) in &file.rest {
        misspelt_section(name, field, report);
        misplaced(name, field, report);
    }
    let mut read = |field: Option<Field>, name: &str, role| {
        let at = file.at.missing(name);
        let raw = match field.filter(|field| !field.is_null()) {
            Some(field) => raw::Servers::open(field, report),
            None => raw::Servers {
                at,
                ..raw::Servers::default()
            },
        };
        fleet(raw, role, &file.rest, needed, report)
    };
    let context = read(file.context_servers, "context_servers", Role::Context);
    let generation = read(
        file.generation_servers,
        "generation_servers",
        Role::Generation,
    );
    let kv_cache_aware = by_cache(&context.0.router) || by_cache(&generation.0.router);
    engine_options(&file.rest, raw::File::KEYS, kv_cache_aware, report);
    mixed(&context.0, &generation.0, needed, report);
    if !same_options(&context.1, &generation.1) && shares(&context.0, &generation.0) {
        report.warn(
            &Place::file(),
            "names one url in both sections with different engine options; a server that does both \
             has one set of options, so make them equal",
        );
    }
    (context.0, generation.0)
}

fn fleet(
    mut raw: raw::Servers,
    role: Role,
    inherited: &Options,
    needed: bool,
    report: &mut Report,
) -> (FleetConfig, Vec<(String, Field)>) {
    contradictions(inherited, &raw.rest, &raw.at, report);
    let urls = urls(
        raw.urls.take(),
        raw.num_instances.take(),
        &raw.at,
        needed,
        report,
    );
    let engine = router::Engine::of(&raw.rest).or(router::Engine::of(inherited));
    let router = match raw.router.take() {
        Some(field) => router::read(field, engine, report),
        None => RouterConfig::RoundRobin,
    };
    engine_options(&raw.rest, raw::Servers::KEYS, by_cache(&router), report);
    let config = FleetConfig {
        role,
        urls,
        router,
        signing_profile: own::signing_profile(raw.signing_profile.take(), report),
    };
    (config, raw.rest)
}

fn by_cache(router: &RouterConfig) -> bool {
    matches!(router, RouterConfig::KvCacheAware(_))
}

/// Lists options that the workers know and that change nothing here; `batches` says that a router
/// looks at max_batch_size.
fn engine_options(options: &Options, known: &[&'static str], batches: bool, report: &mut Report) {
    for (name, field) in options {
        let used = router::block_size(name, field).is_some()
            || batches && router::batch_size(name, field).is_some();
        if !used {
            report.unused(&field.at, name, known);
        }
    }
}

fn misspelt_section(name: &str, field: &Field, report: &mut Report) {
    let group = matches!(field.value, Value::Map(_) | Value::List(_));
    let near = OWN
        .into_iter()
        .find(|own| strsim::osa_distance(name, own) <= 2);
    if let Some(near) = near.filter(|_| group && name.len() <= 64) {
        let what = format!("is no section; did you mean `{near}`?");
        report.error(&field.at, what);
    }
}

/// A fleet's own key at the top of the file would quietly do nothing.
fn misplaced(name: &str, field: &Field, report: &mut Report) {
    if name == "signing_profile" {
        report.error(
            &field.at,
            "is a key of a fleet; write it inside context_servers (or generation_servers, or a \
             worker filter)",
        );
    }
}

fn contradictions(inherited: &Options, own: &Options, at: &Place, report: &mut Report) {
    let top: HashMap<&str, &Field> = inherited
        .iter()
        .map(|(name, field)| (name.as_str(), field))
        .collect();
    for (name, field) in own {
        if top
            .get(name.as_str())
            .is_some_and(|top| !top.value.same(&field.value))
        {
            let what = format!(
                "Parameter {} is specified both in the top-level and in the {} section, but with \
                 different values; make them equal or remove one",
                shown(name),
                at.path()
            );
            report.error(&field.at, what);
        }
    }
}

fn same_options(a: &Options, b: &Options) -> bool {
    let by_name: HashMap<&str, &Field> = b
        .iter()
        .map(|(name, field)| (name.as_str(), field))
        .collect();
    a.len() == b.len()
        && a.iter().all(|(name, field)| {
            by_name
                .get(name.as_str())
                .is_some_and(|other| field.value.same(&other.value))
        })
}

fn shares(a: &FleetConfig, b: &FleetConfig) -> bool {
    let urls: HashSet<&String> = a.urls.iter().collect();
    b.urls.iter().any(|url| urls.contains(url))
}

/// A request's two legs go to different servers where there are two.
fn mixed(context: &FleetConfig, generation: &FleetConfig, needed: bool, report: &mut Report) {
    if needed && context.urls.len() == 1 && context.urls == generation.urls {
        report.warn(
            &Place::file(),
            "names one and the same server for both roles: it serves both legs of every request, \
             where upstream would serve none; add a second one",
        );
    }
}

fn urls(
    field: Option<Field>,
    instances: Option<Field>,
    section: &Place,
    needed: bool,
    report: &mut Report,
) -> Vec<String> {
    let before = report.errors();
    let instances_at = instances.as_ref().map(|field| field.at.clone());
    let instances = match instances {
        Some(field) => field.integer(report, 0..=1_000_000_u32),
        None => Some(1),
    };
    let field = field.filter(|field| !field.is_null());
    let at = field.as_ref().map(|field| field.at.clone());
    let items = field.map(|field| field.list(report)).unwrap_or_default();
    let count = items.len();
    let urls = each_url(items, report);
    if report.errors() > before {
        return urls;
    }
    if let Some(at) = at.filter(|_| u32::try_from(count).ok() != instances) {
        let what = format!(
            "lists {count} urls, but num_instances is {}; write num_instances: {count} (as upstream \
             requires)",
            instances.unwrap_or(1)
        );
        report.error(&instances_at.unwrap_or(at), what);
    } else if urls.is_empty() && needed {
        report.error(
            &section.missing("urls"),
            "names no server; an edge needs at least one context url and one generation url: list \
             them as host:port",
        );
    }
    urls
}

fn each_url(items: Vec<Field>, report: &mut Report) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut urls = Vec::new();
    for item in items {
        if matches!(item.value, Value::Map(_)) {
            report.error(
                &item.at,
                "must be host:port, without a space after the colon",
            );
            continue;
        }
        let Some(url) = item.text(report) else {
            continue;
        };
        if let Err(what) = address::worker(url) {
            let shown = if url.contains('@') {
                "(not shown)".to_owned()
            } else {
                shown(url)
            };
            report.error(&item.at, format!("is {shown}, which {what}"));
        } else if seen.insert(url.to_lowercase()) {
            urls.push(url.to_owned());
        } else {
            report.error(
                &item.at,
                format!("is {}, which is listed already; remove one", shown(url)),
            );
        }
    }
    urls
}
