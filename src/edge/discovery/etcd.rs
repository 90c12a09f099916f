//! Announcements that are kept in etcd.
//!
//! Decides how to stay up to date: everything once, then every change since then. Whatever goes wrong
//! with the connection, the watch or its history is answered by beginning anew after a pause; what was
//! known last stands until then.

use std::{convert::Infallible, time::Duration};

use etcd_client::{Client, ConnectOptions, Error, EventType, GetOptions, KeyValue, WatchOptions};
use tokio::time::sleep;

use super::Discovery;
use crate::fleet::discovery::store::Change;

/// How long a connection and an answer are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a quiet connection is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Wait before beginning anew; doubled each time in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Keeps `discovery` as etcd has it, for ever.
pub async fn follow(endpoints: &[String], prefix: &str, discovery: &Discovery) {
    let mut failures = 0;
    loop {
        let error = match listen(endpoints, prefix, discovery, &mut failures).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        tracing::warn!("etcd cannot be followed, the workers known last stay: {error}");
        sleep((FIRST_PAUSE * 2_u32.pow(failures)).min(LONGEST_PAUSE)).await;
        failures = (failures + 1).min(8);
    }
}

async fn listen(
    endpoints: &[String],
    prefix: &str,
    discovery: &Discovery,
    failures: &mut u32,
) -> Result<Infallible, Error> {
    let options = ConnectOptions::new()
        .with_connect_timeout(PATIENCE)
        .with_keep_alive(KEEP_ALIVE, PATIENCE)
        // A member that lost its cluster would tell of the past.
        .with_require_leader(true)
        .with_keep_alive_while_idle(true);
    let mut client = Client::connect(endpoints, Some(options)).await?;
    let all = client.get(prefix, Some(GetOptions::new().with_prefix()));
    let all = tokio::time::timeout(PATIENCE, all);
    let all = all.await.map_err(|_| lost("it does not answer"))??;
    discovery.replace(all.kvs().iter().filter_map(pair));
    *failures = 0;
    let revision = all.header().map_or(0, |header| header.revision());
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(revision + 1);
    let mut changes = client.watch(prefix, Some(options)).await?;
    while let Some(message) = changes.message().await? {
        if message.canceled() {
            // Its history may have been compacted beyond the revision.
            return Err(lost(message.cancel_reason()));
        }
        let events = message.events().iter();
        let changed = events.filter_map(|event| {
            let (key, value) = pair(event.kv()?)?;
            Some(match event.event_type() {
                EventType::Put => Change::Set {
                    key: key.to_owned(),
                    value: value.to_owned(),
                },
                EventType::Delete => Change::Removed {
                    key: key.to_owned(),
                },
            })
        });
        discovery.take(prefix, &changed.collect::<Vec<_>>());
    }
    Err(lost("it ended the watch"))
}

/// A key and its value, if both are text.
fn pair(kv: &KeyValue) -> Option<(&str, &str)> {
    Some((kv.key_str().ok()?, kv.value_str().ok()?))
}

fn lost(why: &str) -> Error {
    Error::WatchError(why.to_owned())
}
