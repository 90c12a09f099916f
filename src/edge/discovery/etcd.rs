//! Announcements that are kept in etcd.
//!
//! Decides how to stay up to date: everything once, then every change since then. Whatever goes wrong
//! with the connection, the watch or its history is answered by beginning anew after a pause; what was
//! known last stands until then.

use std::{convert::Infallible, time::Duration};

use etcd_client::{
    Client, ConnectOptions, Error, Event, EventType, GetOptions, KeyValue, WatchOptions,
    WatchStream,
};
use tokio::time::{sleep, timeout};

use super::Discovery;
use crate::fleet::discovery::store::Change;

/// How long a connection and an answer are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a watch may be quiet before it is asked whether it is one still.
const QUIET: Duration = Duration::from_secs(10);
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
    let mut changes = in_time(begin(endpoints, prefix, discovery)).await?;
    *failures = 0;
    loop {
        let message = match timeout(QUIET, changes.message()).await {
            Ok(message) => message?,
            // A watch that nothing comes of may be one that nobody serves any more.
            Err(_) => {
                in_time(changes.request_progress()).await?;
                in_time(changes.message()).await?
            }
        };
        let message = message.ok_or_else(|| lost("it ended the watch"))?;
        if message.canceled() {
            // Its history may have been compacted beyond the revision.
            return Err(lost(message.cancel_reason()));
        }
        let changed: Vec<Change> = message.events().iter().filter_map(change).collect();
        discovery.take(prefix, &changed);
    }
}

/// Takes everything over, and watches what changes from then on.
async fn begin(
    endpoints: &[String],
    prefix: &str,
    discovery: &Discovery,
) -> Result<WatchStream, Error> {
    let options = ConnectOptions::new()
        .with_connect_timeout(PATIENCE)
        .with_keep_alive(KEEP_ALIVE, PATIENCE)
        // A member that lost its cluster would tell of the past.
        .with_require_leader(true)
        .with_keep_alive_while_idle(true);
    let mut client = Client::connect(endpoints, Some(options)).await?;
    let options = GetOptions::new().with_prefix();
    let all = client.get(prefix, Some(options)).await?;
    discovery.replace(all.kvs().iter().filter_map(pair));
    let revision = all.header().map_or(0, |header| header.revision());
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(revision + 1);
    client.watch(prefix, Some(options)).await
}

async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let done = timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| Err(lost("it does not answer")))
}

fn change(event: &Event) -> Option<Change> {
    let (key, value) = pair(event.kv()?)?;
    let (key, value) = (key.to_owned(), value.to_owned());
    Some(match event.event_type() {
        EventType::Put => Change::Set { key, value },
        EventType::Delete => Change::Removed { key },
    })
}

/// A key and its value, if both are text.
fn pair(kv: &KeyValue) -> Option<(&str, &str)> {
    Some((kv.key_str().ok()?, kv.value_str().ok()?))
}

fn lost(why: &str) -> Error {
    Error::WatchError(why.to_owned())
}
