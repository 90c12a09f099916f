//! Replaces the running configuration on SIGHUP, all of it or nothing.
//!
//! The file is read and checked by the code that start-up uses. What cannot change while running,
//! the listeners, makes the whole reload fail with the key that needs a restart. So does a signing
//! key that is replaced without a time in which both are taken. Requests in flight
//! keep the configuration they began with; bindings and counts survive.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::{server::ShutdownWatch, services::background::BackgroundService};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::{AdminConfig, Config, EdgeConfig, TlsConfig, WorkerFilterConfig},
    edge::Edge,
    http::connection::{Bounds, Door},
    server::tls::{Loaded, Tls},
    telemetry::{self, access_log, labels::ReloadResult, log::Log},
    worker::Filter,
};

/// Whoever reloads: the running configuration and those who use it.
pub struct Reloader {
    running: Arc<ArcSwap<Config>>,
    /// Held while a reload is under way: one at a time.
    reloading: Mutex<()>,
    edge: Option<Arc<Edge>>,
    filters: Vec<Arc<Filter>>,
    tls: Tls,
    log: Log,
    /// Where clients and where edges come in.
    doors: Option<(Arc<Door>, Arc<Door>)>,
}

#[async_trait]
impl BackgroundService for Reloader {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            tracing::error!("cannot listen for SIGHUP; the configuration cannot be reloaded");
            return;
        };
        loop {
            tokio::select! {
                _ = hangup.recv() => self.reload(),
                _ = shutdown.changed() => return,
            }
        }
    }
}

impl Reloader {
    pub fn new(
        running: Arc<ArcSwap<Config>>,
        edge: Option<Arc<Edge>>,
        filters: Vec<Arc<Filter>>,
        tls: Tls,
        log: Log,
    ) -> Self {
        Self {
            running,
            reloading: Mutex::default(),
            edge,
            filters,
            tls,
            log,
            doors: None,
        }
    }

    /// Has the bounds of connections reloaded as well.
    pub fn with_doors(mut self, clients: Arc<Door>, edges: Arc<Door>) -> Self {
        self.doors = Some((clients, edges));
        self
    }

    fn reload(&self) {
        let _alone = self.reloading.lock();
        match self.apply(&self.running.load()) {
            Ok(config) => {
                for warning in &config.warnings {
                    tracing::warn!("{warning}");
                }
                tracing::info!(file = %config.origin.display(), "configuration reloaded");
                self.running.store(config);
                telemetry::metrics()
                    .config_reloads
                    .inc(ReloadResult::Applied);
                telemetry::metrics().config_applied();
            }
            Err(reason) => {
                tracing::error!("configuration not reloaded, the running one stays: {reason}");
                telemetry::metrics()
                    .config_reloads
                    .inc(ReloadResult::Rejected);
            }
        }
    }

    fn apply(&self, running: &Config) -> Result<Arc<Config>, String> {
        let mut config = Config::load(&running.origin).map_err(|error| error.to_string())?;
        keep_listeners(running, &mut config)?;
        if self.edge.is_some() {
            keep_signing_key(running, &config)?;
        }
        let prepared = self.edge.as_ref().map(|edge| edge.prepare(&config));
        let prepared = prepared.transpose().map_err(|error| error.to_string())?;
        let loaded = Loaded::read(&config).map_err(|error| error.to_string())?;
        config.warnings.extend(loaded.warnings());
        // Opened anew in any case: its file may have been moved away to be kept.
        let access = access_log::prepare(config.telemetry.access_log.as_ref())?;
        self.log
            .set_filter(&config.telemetry.log)
            .map_err(|error| error.to_string())?;
        access_log::replace(access);
        let config = Arc::new(config);
        self.tls.swap(loaded);
        if let Some((clients, edges)) = &self.doors {
            clients.reload(Bounds::of_clients(&config));
            edges.reload(Bounds::of_edges(&config));
        }
        // Who verifies learns of a new key before anybody signs with it.
        for (filter, settings) in self.filters.iter().zip(&config.worker_filters) {
            filter.reload(&config, settings);
        }
        if let (Some(edge), Some(prepared)) = (&self.edge, prepared) {
            edge.reload(&config, prepared);
        }
        Ok(config)
    }
}

/// Checks that every filter of this process still takes what its edge signs with now: the generation
/// leg of a request in flight is signed with the key of its context leg. A filter that does not take
/// that key as it is stands behind another edge.
fn keep_signing_key(running: &Config, new: &Config) -> Result<(), String> {
    let edge = running.edge.as_ref();
    let Some(signs) = edge.and_then(|edge| edge.internal_request_auth_keys.first()) else {
        return Ok(());
    };
    let takes = |filter: &WorkerFilterConfig| {
        let mut keys = filter.internal_request_auth_keys.iter();
        keys.any(|key| same(key, signs))
    };
    let pairs = running.worker_filters.iter().zip(&new.worker_filters);
    for (old, new) in pairs {
        if takes(old) && !takes(new) {
            return Err(format!(
                "worker_filters[{}] would no longer take the key that the edge of this process \
                 signs with, and requests between their legs would be refused; first reload with \
                 internal_request_auth_keys: [new key, old key], and without the old key once \
                 kindred_verifications_by_key_total no longer counts it",
                new.name
            ));
        }
    }
    Ok(())
}

fn same(one: &SecretString, other: &SecretString) -> bool {
    let (one, other) = (one.expose_secret(), other.expose_secret());
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Checks that `new` listens where `running` does; a port of 0 keeps the port that was picked.
fn keep_listeners(running: &Config, new: &mut Config) -> Result<(), String> {
    keep_edge(running.edge.as_ref(), new.edge.as_mut())?;
    keep_admin(running.admin.as_ref(), new.admin.as_mut())?;
    keep_filters(&running.worker_filters, &mut new.worker_filters)?;
    keep_port("tls", running.tls.as_ref(), new.tls.as_ref())?;
    if running.timeouts.drain != new.timeouts.drain {
        return restart("timeouts.drain");
    }
    Ok(())
}

/// Checks that a port keeps on having TLS or not, and asking for certificates or not.
fn keep_port(
    section: &str,
    old: Option<&TlsConfig>,
    new: Option<&TlsConfig>,
) -> Result<(), String> {
    if old.is_some() != new.is_some() {
        return restart(&format!("{section} (with or without)"));
    }
    if old.map(TlsConfig::client_auth) != new.map(TlsConfig::client_auth) {
        return restart(&format!("{section}.client_auth"));
    }
    Ok(())
}

fn restart(key: &str) -> Result<(), String> {
    Err(format!(
        "{key} cannot change while running; restart to change it"
    ))
}

fn keep_edge(old: Option<&EdgeConfig>, new: Option<&mut EdgeConfig>) -> Result<(), String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Ok(()),
        _ => return restart("context_servers, generation_servers (being an edge at all)"),
    };
    if new.port == 0 {
        new.port = old.port;
    }
    if (&old.hostname, old.port) == (&new.hostname, new.port) {
        Ok(())
    } else {
        restart("hostname, port")
    }
}

fn keep_admin(old: Option<&AdminConfig>, new: Option<&mut AdminConfig>) -> Result<(), String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Ok(()),
        _ => return restart("admin"),
    };
    if new.listen.port() == 0 {
        new.listen.set_port(old.listen.port());
    }
    if old.listen != new.listen {
        return restart("admin.listen");
    }
    keep_port("admin.tls", old.tls.as_ref(), new.tls.as_ref())
}

fn keep_filters(old: &[WorkerFilterConfig], new: &mut [WorkerFilterConfig]) -> Result<(), String> {
    if old.len() != new.len() {
        return restart("worker_filters (their number)");
    }
    for (old, new) in old.iter().zip(new) {
        let host = |listen: &str| listen.rsplit_once(':').map(|(host, _)| host.to_owned());
        if new.listen.ends_with(":0") && host(&new.listen) == host(&old.listen) {
            new.listen.clone_from(&old.listen);
        }
        if (&old.name, &old.listen) != (&new.name, &new.listen) {
            let name = &old.name;
            return restart(&format!("worker_filters[{name}] (name, listen, order)"));
        }
        let section = format!("worker_filters[{}].tls", old.name);
        keep_port(&section, old.tls.as_ref(), new.tls.as_ref())?;
    }
    Ok(())
}
