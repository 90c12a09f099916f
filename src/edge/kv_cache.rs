//! What the workers say of their KV caches, brought to the routers that go by it.
//!
//! Decides when a worker is asked: for its facts in the background (`learning`), and for its events
//! after each leg that ended there, one question at a time for each instance. It must never fail or
//! hold up a request: what a worker does not say is not known.

mod learning;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::spawn_blocking, time::timeout};

pub use learning::learning;

use super::live::Live;
use crate::{
    fleet::{Instance, InstanceId},
    http::upstream::{Call, CallError, Upstreams},
    routing::{Event, Pick, Router},
};

/// How long events are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of events that are read on the threads that carry requests.
const SMALL: usize = 64 * 1024;

/// The readers of the workers' events.
pub struct KvCaches {
    upstreams: Arc<Upstreams>,
    /// Instances whose events are being read, and whether there is a reason to read again.
    reading: Mutex<HashMap<InstanceId, bool>>,
}

/// The events of one instance.
struct Reading {
    caches: Arc<KvCaches>,
    live: Arc<Live>,
    router: Weak<Router>,
    instance: Arc<Instance>,
    registered: bool,
}

impl KvCaches {
    pub fn new(upstreams: Arc<Upstreams>) -> Self {
        Self {
            upstreams,
            reading: Mutex::default(),
        }
    }

    /// A leg that a worker answered is over, well or not: its router learns of it, and of what it
    /// did to the worker's cache. To be called before the pick is dropped.
    pub fn leg_finished(
        self: &Arc<Self>,
        live: &Arc<Live>,
        router: &Arc<Router>,
        pick: &Pick,
        well: bool,
    ) {
        let Some(by_cache) = router.kv_cache_aware() else {
            return;
        };
        router.finished(pick, well);
        let instance = pick.load.instance();
        if !by_cache.wants_events(instance.id) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut reading = self.reading.lock();
        if let Some(again) = reading.get_mut(&instance.id) {
            *again = true;
            return;
        }
        reading.insert(instance.id, false);
        let mut reader = Reading {
            caches: self.clone(),
            live: live.clone(),
            router: Arc::downgrade(router),
            instance: instance.clone(),
            registered: true,
        };
        runtime.spawn(async move { while reader.read().await {} });
    }
}

impl Reading {
    /// Reads what there is; `true` if there is a reason to read again.
    async fn read(&mut self) -> bool {
        match timeout(PATIENCE, self.events()).await {
            Ok(Ok(events)) => {
                let router = self.router.upgrade();
                if let Some(by_cache) = router.as_ref().and_then(|router| router.kv_cache_aware()) {
                    by_cache.apply_events(self.instance.id, &events);
                }
            }
            Ok(Err(reason)) => self.note(&reason),
            Err(_) => self.note("it did not answer in time"),
        }
        let mut reading = self.caches.reading.lock();
        match reading.get_mut(&self.instance.id) {
            Some(again) if *again => {
                *again = false;
                true
            }
            _ => {
                reading.remove(&self.instance.id);
                self.registered = false;
                false
            }
        }
    }

    fn note(&self, reason: &str) {
        let instance = &*self.instance.alias;
        tracing::debug!(instance, reason, "its KV cache events could not be read");
    }

    async fn events(&self) -> Result<Vec<Event>, String> {
        let config = &self.live.config;
        let call = Call {
            method: Method::POST,
            address: &self.instance.address,
            path: "/kv_cache_events",
            headers: &[],
            body: Bytes::new(),
            max_answer: config.limits.max_answer,
            fresh: false,
        };
        let upstreams = &self.caches.upstreams;
        let answer = match upstreams.call(&call, &config.timeouts).await {
            Err(CallError::Unheard) => {
                let again = Call {
                    fresh: true,
                    ..call
                };
                upstreams.call(&again, &config.timeouts).await
            }
            other => other,
        };
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("it answered with status {}", answer.status));
        }
        let small = answer.body.len() <= SMALL;
        let parse = move || {
            let events: Option<Vec<Event>> =
                serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
            Ok(events.unwrap_or_default())
        };
        if small {
            return parse();
        }
        spawn_blocking(parse)
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// However the reading ends, the next leg may begin another one.
impl Drop for Reading {
    fn drop(&mut self) {
        if self.registered {
            self.caches.reading.lock().remove(&self.instance.id);
        }
    }
}
