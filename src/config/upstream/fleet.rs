//! `context_servers`, `generation_servers` and `aggregated_servers`: urls, routers, and what they
//! inherit.
//!
//! Follows upstream's loader (specification sections 1.2 and 1.3): every key that is not known is
//! an engine option, copied from the top of the file into both sections, and must not contradict.

mod models;
mod router;

use crate::config::words::shown;
use std::collections::{HashMap, HashSet};

use crate::{
    config::{
        DrainMode, Draining, FleetConfig, FleetsConfig, ModelConfig, PairConfig, RouterConfig,
        address, own,
        raw::{self, Field, Section, node::Value},
        report::{Place, Report},
    },
    wire::Role,
};

/// Kindred's own sections: a group of keys under nearly such a name is a misspelt section.
const OWN: [&str; 7] = [
    "gateway",
    "health",
    "worker_filters",
    "limits",
    "timeouts",
    "telemetry",
    "affinity",
];

type Options = [(String, Field)];

/// The fleets of unnamed models, and those of `models`; `needed` says that each fleet must have an
/// instance, `discovered` that those of unnamed models are not read from the file.
pub(super) fn all(
    mut file: raw::File,
    needed: bool,
    discovered: bool,
    report: &mut Report,
) -> (Option<FleetsConfig>, Vec<ModelConfig>) {
    for (name, field) in &file.rest {
        misspelt_section(name, field, report);
        misplaced(name, field, report);
    }
    let models = file.models.take().filter(|field| !field.is_null());
    let named = models.is_some();
    let servers = [
        file.context_servers.take(),
        file.generation_servers.take(),
        file.aggregated_servers.take(),
    ];
    let mut reader = Reader {
        inherited: &file.rest,
        needed,
        discovered,
        report,
    };
    let given = servers.iter().any(Option::is_some);
    let wanted = given || discovered || !named;
    let fleets = wanted.then(|| reader.fleets(servers, &file.at));
    reader.discovered = false;
    let models = models.map_or_else(Vec::new, |field| models::read(field, &mut reader));
    let every = fleets
        .iter()
        .chain(models.iter().map(|model| &model.fleets));
    let any_by_cache = every.flat_map(FleetsConfig::all).any(by_cache);
    engine_options(&file.rest, raw::File::KEYS, any_by_cache, report);
    (fleets, models)
}

/// Reads the fleets of one model after the other.
struct Reader<'a> {
    /// Engine options of the file's top.
    inherited: &'a Options,
    needed: bool,
    /// Whether the instances announce themselves.
    discovered: bool,
    report: &'a mut Report,
}

impl Reader<'_> {
    /// The fleets of the section at `at`, from its `context_servers`, `generation_servers` and
    /// `aggregated_servers`.
    fn fleets(&mut self, servers: [Option<Field>; 3], at: &Place) -> FleetsConfig {
        let given = |field: Option<Field>| field.filter(|field| !field.is_null());
        let [context, generation, aggregated] = servers.map(given);
        let pair = context.is_some() || generation.is_some();
        if let Some(aggregated) = aggregated {
            if self.discovered {
                self.report.error(
                    &aggregated.at,
                    "stands beside disagg_cluster, whose workers serve in two legs; give it a name \
                     under models",
                );
            } else if pair {
                self.report.error(
                    &aggregated.at,
                    "stands beside context_servers or generation_servers, and a model is served \
                     either way, not both; give one of them a name under models",
                );
            }
            let (fleet, _) =
                self.fleet(Some(aggregated), at, "aggregated_servers", Role::Aggregated);
            return FleetsConfig::Aggregated(fleet);
        }
        let context = self.fleet(context, at, "context_servers", Role::Context);
        let generation = self.fleet(generation, at, "generation_servers", Role::Generation);
        mixed(&context.0, &generation.0, at, self.report);
        if !same_options(&context.1, &generation.1) && shares(&context.0, &generation.0) {
            self.report.warn(
                at,
                "names one url in both sections with different engine options; a server that does both \
                 has one set of options, so make them equal",
            );
        }
        FleetsConfig::Disaggregated(Box::new(PairConfig {
            context: context.0,
            generation: generation.0,
        }))
    }

    fn fleet(
        &mut self,
        field: Option<Field>,
        at: &Place,
        name: &str,
        role: Role,
    ) -> (FleetConfig, Vec<(String, Field)>) {
        let report = &mut *self.report;
        let mut raw = match field {
            Some(field) => raw::Servers::open(field, report),
            None => raw::Servers {
                at: at.missing(name),
                ..raw::Servers::default()
            },
        };
        contradictions(self.inherited, &raw.rest, &raw.at, report);
        let urls = if self.discovered {
            ignored(&raw, report);
            Vec::new()
        } else {
            urls(&mut raw, role, self.needed, report)
        };
        let engine = router::Engine::of(&raw.rest).or(router::Engine::of(self.inherited));
        let router = match raw.router.take() {
            Some(field) => router::read(field, engine, report),
            None => RouterConfig::RoundRobin,
        };
        if let Some(profile) = raw
            .signing_profile
            .as_ref()
            .filter(|_| role == Role::Aggregated)
        {
            report.error(
                &profile.at,
                "is for context_servers and generation_servers; an aggregated server is sent nothing \
                 that is signed, so remove it",
            );
        }
        let config = FleetConfig {
            role,
            draining: draining(raw.draining.take(), &urls, report),
            urls,
            announced: self.discovered,
            router,
            signing_profile: own::signing_profile(raw.signing_profile.take(), report),
        };
        engine_options(&raw.rest, raw::Servers::KEYS, by_cache(&config), report);
        (config, raw.rest)
    }
}

/// `draining`: which instances are being emptied, and of what.
fn draining(field: Option<Field>, urls: &[String], report: &mut Report) -> Draining {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return Draining::new();
    };
    let Value::Map(entries) = field.value else {
        report.error(
            &field.at,
            "must be a group of keys: each instance as host:port, and new_bindings or new_requests",
        );
        return Draining::new();
    };
    let mut draining = Draining::new();
    for entry in entries {
        let url = entry.key.clone();
        let mode = Field::of(&field.at, entry);
        if !urls.is_empty() && !urls.contains(&url) {
            report.error(
                &mode.at,
                "is none of this section's urls; write it as it stands there",
            );
        }
        let chosen = mode.choice(report, &DrainMode::BY_NAME);
        draining.extend(chosen.map(|chosen| (url, chosen)));
    }
    draining
}

fn by_cache(fleet: &FleetConfig) -> bool {
    matches!(fleet.router, RouterConfig::KvCacheAware(_))
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
fn mixed(context: &FleetConfig, generation: &FleetConfig, at: &Place, report: &mut Report) {
    if context.urls.len() == 1 && context.urls == generation.urls {
        report.warn(
            at,
            "names one and the same server for both roles: it serves both legs of every request, \
             where upstream would serve none; add a second one",
        );
    }
}

/// Upstream reads no static urls beside `disagg_cluster`.
fn ignored(raw: &raw::Servers, report: &mut Report) {
    if let Some(urls) = raw.urls.as_ref().filter(|urls| !urls.is_null()) {
        report.warn(
            &urls.at,
            "is not read beside disagg_cluster (as in upstream): the workers announce themselves",
        );
    }
}

fn urls(raw: &mut raw::Servers, role: Role, needed: bool, report: &mut Report) -> Vec<String> {
    let (field, instances) = (raw.urls.take(), raw.num_instances.take());
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
        let what = match role {
            Role::Aggregated => "names no server; list at least one as host:port",
            Role::Context | Role::Generation => {
                "names no server; an edge needs at least one context url and one generation url: \
                 list them as host:port"
            }
        };
        report.error(&raw.at.missing("urls"), what);
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
