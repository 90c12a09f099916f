//! Renews what clients are known by, in the background: the keys file, and the keys of the tokens'
//! issuer from a file or an address.
//!
//! Decides when to look. What is good is decided where it is read, and something bad never replaces
//! what is in force: it is logged and counted, and the old keys stay, however long. A reload begins
//! anew with what the new configuration names. Requests never wait for any of this.

mod files;

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use pingora::{
    connectors::ConnectorOptions,
    server::ShutdownWatch,
    services::background::{BackgroundService, GenBackgroundService, background_service},
};
use tokio::{sync::watch, time::sleep};

use super::{Edge, live::Live};
use crate::{
    config::{JwksSource, JwksUrl, Timeouts},
    gateway::client::IssuerKeys,
    http::upstream::{Call, Upstreams, WorkerTls},
    telemetry::{
        self,
        labels::{CredentialSource, ReloadResult},
    },
    wire::jwks::{self, KeySet},
};

/// How long a fetch may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whoever renews them.
pub struct Identity {
    edge: Arc<Edge>,
    upstreams: Upstreams,
}

/// The background service that renews what clients of `edge` are known by.
pub fn identity(edge: Arc<Edge>, options: ConnectorOptions) -> GenBackgroundService<Identity> {
    let upstreams = Upstreams::new(options, WorkerTls::default());
    background_service("identity", Identity { edge, upstreams })
}

#[async_trait]
impl BackgroundService for Identity {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut changed = self.edge.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let live = self.edge.live.load_full();
            tokio::select! {
                () = files::follow(&live) => {}
                () = self.fetch(&live) => {}
                () = self.reloaded(&mut changed, &live) => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

impl Identity {
    /// Waits until another configuration is in force.
    async fn reloaded(&self, changed: &mut watch::Receiver<u64>, live: &Arc<Live>) {
        while Arc::ptr_eq(&self.edge.live.load(), live) {
            if changed.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    /// Fetches the key set again and again.
    async fn fetch(&self, live: &Live) {
        let gateway = live.config.gateway.as_ref();
        let jwt = gateway.and_then(|gateway| gateway.jwt.as_ref());
        let keys = live
            .gateway
            .clients()
            .and_then(|clients| clients.issuer_keys());
        let (Some(jwt), Some(keys)) = (jwt, keys) else {
            return pending().await;
        };
        let JwksSource::Url(url) = &jwt.keys else {
            return pending().await;
        };
        let mut failing = Failing::new(CredentialSource::JwksUrl);
        loop {
            let read = self.ask(url, &live.config.timeouts).await;
            let failed = match read {
                Ok(bytes) if keys.current().is_of(&bytes) => None,
                Ok(bytes) => KeySet::parse(&bytes, &jwt.algorithms)
                    .map(|set| replace(keys, set, CredentialSource::JwksUrl, &url.text()))
                    .err(),
                Err(what) => Some(what),
            };
            let again = match failed {
                Some(_) => url.min_refresh,
                None => url.refresh.max(url.min_refresh),
            };
            failing.tell(failed, &url.text());
            // Whatever tokens name, the issuer is not asked more often than this.
            sleep(url.min_refresh).await;
            tokio::select! {
                () = sleep(again.saturating_sub(url.min_refresh)) => {}
                () = keys.wanted() => {}
            }
        }
    }

    async fn ask(&self, url: &JwksUrl, timeouts: &Timeouts) -> Result<Vec<u8>, String> {
        let call = Call {
            fresh: true,
            ..Call::get(&url.address, &url.path, jwks::MAX_SET)
        };
        let timeouts = Timeouts {
            context: PATIENCE,
            ..timeouts.clone()
        };
        match self.upstreams.call(&call, &timeouts).await {
            Ok(answer) if answer.status == 200 => Ok(answer.body.to_vec()),
            Ok(answer) => Err(format!("answers with status {}", answer.status)),
            Err(error) => Err(format!("gives no key set: {error}")),
        }
    }
}

/// Puts a set in force.
fn replace(keys: &IssuerKeys, set: KeySet, source: CredentialSource, place: &str) {
    tracing::info!(
        place,
        keys = set.len(),
        "the keys of the tokens' issuer were renewed"
    );
    keys.replace(set);
    telemetry::metrics()
        .credential_reloads
        .inc((source, ReloadResult::Applied));
}

/// Tells of what cannot be used: each thing once, for as long as it stays the same.
struct Failing {
    source: CredentialSource,
    told: Option<String>,
}

impl Failing {
    fn new(source: CredentialSource) -> Self {
        Self { source, told: None }
    }

    fn tell(&mut self, failed: Option<String>, place: &str) {
        if let Some(what) = &failed
            && self.told.as_ref() != Some(what)
        {
            tracing::error!("{place} {what}; the keys that were read before stay in force");
            telemetry::metrics()
                .credential_reloads
                .inc((self.source, ReloadResult::Rejected));
        }
        self.told = failed;
    }
}
