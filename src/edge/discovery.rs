//! Workers that announce themselves become instances, and cease to be (specification section 7.2).
//!
//! Decides which store is followed and when a worker that announced itself is taken for one that
//! serves: once its `/health` has said so. It changes the fleets of unnamed models and nothing else.
//! While a store is away the workers that were known last stay; a request never waits for it.

mod etcd;
mod hosted;
mod preparing;

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::{
    connectors::ConnectorOptions,
    server::ShutdownWatch,
    services::background::{BackgroundService, GenBackgroundService, background_service},
};
use tokio::{sync::watch, time::interval};

pub use hosted::StoreRoute;

use super::Edge;
use crate::{
    config::{DiscoveryConfig, StoreConfig},
    fleet::discovery::{
        Announced, Worker,
        store::{Change, SWEEP, Store},
        workers_prefix,
    },
    http::upstream::Upstreams,
    wire::Role,
};
use preparing::Preparing;

/// What is known of announcements over all requests and reloads.
#[derive(Default)]
pub struct Discovery {
    /// The store that is hosted here; empty where another one is followed.
    store: Mutex<Store>,
    announced: watch::Sender<Announced>,
}

impl Discovery {
    /// The workers of a role that are announced, one for each address.
    pub fn workers(&self, role: Role) -> Vec<Worker> {
        let announced = self.announced.borrow();
        announced.workers(role).into_iter().cloned().collect()
    }

    /// Does something to the hosted store, and follows from it which workers there are. What has
    /// expired by now is gone before.
    fn with_store<T>(
        &self,
        prefix: &str,
        operate: impl FnOnce(&mut Store, Instant) -> (T, Vec<Change>),
    ) -> T {
        let now = Instant::now();
        let mut store = self.store.lock();
        let mut changes = store.sweep_if_due(now);
        let (result, more) = operate(&mut store, now);
        changes.extend(more);
        self.take(prefix, &changes);
        result
    }

    /// Begins with what the hosted store has: of another cluster, or while another store was followed,
    /// more may have come. Nothing comes meanwhile: the store stays locked.
    fn begin_hosting(&self, prefix: &str) {
        let store = self.store.lock();
        let known = store.with_prefix(prefix, Instant::now());
        self.replace(known.into_iter());
    }

    /// Takes changes of the store over.
    fn take(&self, prefix: &str, changes: &[Change]) {
        let is_worker = |change: &&Change| change.key().starts_with(prefix);
        let changes: Vec<_> = changes.iter().filter(is_worker).collect();
        if changes.is_empty() {
            return;
        }
        self.announced.send_if_modified(|announced| {
            let before = announced.clone();
            for change in changes {
                apply(announced, change);
            }
            *announced != before
        });
    }

    /// These are all the announcements that stand.
    fn replace<'a>(&self, all: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut announced = Announced::default();
        for (key, value) in all {
            let (key, value) = (key.to_owned(), value.to_owned());
            apply(&mut announced, &Change::Set { key, value });
        }
        self.announced.send_if_modified(|known| {
            let changed = *known != announced;
            *known = announced;
            changed
        });
    }
}

fn apply(announced: &mut Announced, change: &Change) {
    match change {
        Change::Set { key, value } => {
            if let Err(unfit) = announced.set(key, value) {
                tracing::warn!(key, "a worker's announcement is not taken: {unfit}");
            }
        }
        Change::Removed { key } => {
            tracing::info!(key, "a worker's announcement is gone");
            announced.remove(key);
        }
    }
}

/// Whoever follows the announcements.
pub struct Following {
    edge: Arc<Edge>,
    /// Connections of its own: those of requests belong to other threads.
    upstreams: Arc<Upstreams>,
}

/// The background service that keeps the fleets of `edge` as they are announced.
pub fn following(edge: Arc<Edge>, options: ConnectorOptions) -> GenBackgroundService<Following> {
    let upstreams = Arc::new(Upstreams::new(options, edge.upstreams.tls()));
    background_service("discovery", Following { edge, upstreams })
}

#[async_trait]
impl BackgroundService for Following {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut preparing = Preparing::new(self.edge.clone(), self.upstreams.clone());
        let mut changed = self.edge.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let live = self.edge.live.load_full();
            let other = |config: &DiscoveryConfig| {
                let live = self.edge.live.load();
                let now = live.edge.discovery.as_ref();
                now.is_none_or(|now| place(now) != place(config))
            };
            tokio::select! {
                () = self.follow(live.edge.discovery.as_ref()) => {}
                () = preparing.run(), if live.edge.discovery.is_some() => {}
                // A reload that goes on following the same store interrupts nothing.
                _ = changed.wait_for(|_| live.edge.discovery.as_ref().is_none_or(other)) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// What makes one store another than the one before.
fn place(config: &DiscoveryConfig) -> (&StoreConfig, &str) {
    (&config.store, &config.cluster_name)
}

impl Following {
    /// Follows a store for as long as it is the one to follow.
    async fn follow(&self, config: Option<&DiscoveryConfig>) {
        let Some(config) = config else {
            return std::future::pending().await;
        };
        let discovery = &self.edge.discovery;
        let prefix = workers_prefix(&config.cluster_name);
        match &config.store {
            StoreConfig::Etcd(endpoints) => etcd::follow(endpoints, &prefix, discovery).await,
            StoreConfig::Hosted => {
                let mut sweeps = interval(SWEEP);
                discovery.begin_hosting(&prefix);
                loop {
                    sweeps.tick().await;
                    discovery.with_store(&prefix, |_, _| ((), Vec::new()));
                }
            }
        }
    }
}
