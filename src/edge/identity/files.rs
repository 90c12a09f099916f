//! Follows the keys file and a key set in a file, whatever way they are changed.
//!
//! The folder is watched, not the file: a rename, a link that is swapped and a write in place are all
//! seen there. A file is read once it has been quiet for a moment, and looked at now and then in any
//! case, for file systems and links that tell of nothing. It must never act on a file that does not
//! parse as a whole.

use std::{
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use tokio::{sync::mpsc, time::timeout};

use super::{Failing, replace};
use crate::{
    config::{GatewayConfig, JwksSource, identity::FileKeys, keys_file},
    edge::live::Live,
    gateway::client::Clients,
    telemetry::{
        self,
        labels::{CredentialSource, ReloadResult},
    },
    wire::jwks::KeySet,
};

/// After which time files are looked at in any case.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);
/// How long nothing must happen before a file is read.
const QUIET: Duration = Duration::from_millis(50);
/// How many times that at most, where something happens all the time.
const MOST_WAITS: usize = 20;

/// Keeps the clients' keys as the files say; returns never.
pub(super) async fn follow(live: &Live) {
    let gateway = live.config.gateway.as_ref();
    let Some((gateway, clients)) = gateway.zip(live.gateway.clients()) else {
        return pending().await;
    };
    let paths = paths(gateway);
    if paths.is_empty() {
        return pending().await;
    }
    let (happened, mut heard) = mpsc::channel(1);
    let _watcher = watch(&paths, happened);
    let mut keys = Failing::new(CredentialSource::KeysFile);
    let mut set = Failing::new(CredentialSource::JwksFile);
    loop {
        look_at_keys(gateway, clients, &mut keys);
        look_at_set(gateway, clients, &mut set);
        // Without a watcher nothing is heard, and the time runs out.
        match timeout(AT_LEAST_EVERY, heard.recv()).await {
            Ok(Some(())) => {}
            Ok(None) => tokio::time::sleep(AT_LEAST_EVERY).await,
            Err(_) => continue,
        }
        for _ in 0..MOST_WAITS {
            if timeout(QUIET, heard.recv()).await.is_err() {
                break;
            }
        }
    }
}

fn paths(gateway: &GatewayConfig) -> Vec<PathBuf> {
    let keys = gateway.keys_file.iter().map(|file| file.path.clone());
    let set = gateway.jwt.iter().filter_map(|jwt| match &jwt.keys {
        JwksSource::File { path, .. } => Some(path.clone()),
        JwksSource::Url(_) => None,
    });
    keys.chain(set).collect()
}

/// Watches the folders of these files; `None` where that cannot be done.
fn watch(paths: &[PathBuf], happened: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let tell = move |event: notify::Result<Event>| {
        if event.as_ref().map_or(true, is_a_change) {
            // A full channel has said it already.
            let _ = happened.try_send(());
        }
    };
    let watched = notify::recommended_watcher(tell).and_then(|mut watcher| {
        for path in paths {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    watched
        .inspect_err(|error| {
            tracing::warn!(%error, "key files cannot be watched; they are looked at now and then");
        })
        .ok()
}

/// Not that somebody reads it: we do.
fn is_a_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

fn look_at_keys(gateway: &GatewayConfig, clients: &Clients, failing: &mut Failing) {
    let Some(file) = &gateway.keys_file else {
        return;
    };
    let place = file.path.display().to_string();
    let known = clients.file_keys();
    let failed = match keys_file::read(&file.path) {
        Ok(bytes) if known.is_some_and(|known| known.is_of(&bytes)) => None,
        Ok(bytes) => match FileKeys::parse(&bytes, &gateway.clients) {
            Ok(keys) => {
                tracing::info!(
                    place,
                    keys = keys.digests.len(),
                    "the keys file was read anew"
                );
                clients.set_file_keys(Arc::new(keys));
                telemetry::metrics()
                    .credential_reloads
                    .inc((CredentialSource::KeysFile, ReloadResult::Applied));
                None
            }
            Err(what) => Some(what),
        },
        Err(what) => Some(what),
    };
    failing.tell(failed, &place);
}

fn look_at_set(gateway: &GatewayConfig, clients: &Clients, failing: &mut Failing) {
    let (Some(jwt), Some(keys)) = (&gateway.jwt, clients.issuer_keys()) else {
        return;
    };
    let JwksSource::File { path, .. } = &jwt.keys else {
        return;
    };
    let place = path.display().to_string();
    let failed = match keys_file::read(path) {
        Ok(bytes) if keys.current().is_of(&bytes) => None,
        Ok(bytes) => KeySet::parse(&bytes, &jwt.algorithms)
            .map(|set| replace(keys, set, CredentialSource::JwksFile, &place))
            .err(),
        Err(what) => Some(what),
    };
    failing.tell(failed, &place);
}
