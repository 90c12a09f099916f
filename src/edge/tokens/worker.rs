//! Asks a worker for the token ids of a text: `POST /_internal/tokenize` (specification section 6.3).
//!
//! Decides which instance is asked: one after the other, but for those that did not answer lately,
//! such as workers without the route. Nobody waits long for an answer, and not many are asked at
//! once.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use http::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    edge::live::Live,
    fleet::{Fleet, Instance, InstanceId},
    http::upstream::{Call, Upstreams},
};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an instance that gave no good answer is not asked again.
const QUIET: Duration = Duration::from_secs(10);
/// Questions at once.
const AT_ONCE: usize = 64;
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Instances that are looked at for one that may be asked.
const LOOKS: usize = 8;

/// The workers that can be asked.
pub struct Workers {
    upstreams: Arc<Upstreams>,
    room: Semaphore,
    turn: AtomicUsize,
    /// Those that are not asked, and since when.
    quiet: Mutex<HashMap<InstanceId, Instant>>,
}

#[derive(Deserialize)]
struct Told {
    tokens: Vec<u32>,
}

impl Workers {
    pub fn new(upstreams: Arc<Upstreams>) -> Self {
        Self {
            upstreams,
            room: Semaphore::new(AT_ONCE),
            turn: AtomicUsize::new(0),
            quiet: Mutex::default(),
        }
    }

    /// The ids of `text`, from one of `fleet`; `None` where nobody tells. Cancel-safe.
    pub async fn ask(&self, live: &Live, fleet: &Fleet, text: &str) -> Option<Vec<u32>> {
        let _place = self.room.try_acquire().ok()?;
        let instance = self.next(fleet)?;
        let told = timeout(PATIENCE, self.told(live, instance, text)).await;
        if let Ok(Some(tokens)) = told {
            return Some(tokens);
        }
        tracing::debug!(instance = &*instance.alias, "tells no token ids");
        let mut quiet = self.quiet.lock();
        quiet.retain(|_, since| since.elapsed() <= QUIET);
        quiet.insert(instance.id, Instant::now());
        None
    }

    fn next<'f>(&self, fleet: &'f Fleet) -> Option<&'f Arc<Instance>> {
        let instances = fleet.instances();
        let turn = self.turn.fetch_add(1, Relaxed);
        let quiet = self.quiet.lock();
        let start = turn.checked_rem(instances.len())?;
        let (later, sooner) = instances.split_at(start);
        let mut in_turn = sooner.iter().chain(later).take(LOOKS);
        in_turn.find(|instance| {
            let since = quiet.get(&instance.id);
            since.is_none_or(|since| since.elapsed() > QUIET)
        })
    }

    async fn told(&self, live: &Live, instance: &Instance, text: &str) -> Option<Vec<u32>> {
        let call = Call {
            method: Method::POST,
            address: &instance.address,
            path: "/_internal/tokenize",
            headers: &[],
            body: serde_json::json!({"prompt": text}).to_string().into(),
            max_answer: MAX_ANSWER,
            fresh: false,
        };
        let answer = self
            .upstreams
            .call(&call, &live.config.timeouts)
            .await
            .ok()?;
        if answer.status != 200 {
            return None;
        }
        let told: Told = serde_json::from_slice(&answer.body).ok()?;
        Some(told.tokens)
    }
}
