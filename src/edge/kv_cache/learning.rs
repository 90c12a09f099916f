//! Reads what the workers say of their caches at `/server_info`, in the background.
//!
//! Decides when: once an instance is new, soon again where that failed, and now and then later,
//! since a worker may have been started anew with other settings. Every attempt has a deadline. A
//! person is told once what is wrong with an instance and what to do.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use pingora::{
    connectors::ConnectorOptions,
    server::ShutdownWatch,
    services::background::{BackgroundService, GenBackgroundService, background_service},
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    config::Timeouts,
    edge::{Edge, live::Live},
    fleet::{Instance, InstanceId},
    http::upstream::{Call, Upstreams},
    routing::{KvCacheAware, WorkerFacts},
};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Wait after the first attempt that failed; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long an answer is believed.
const LIFETIME: Duration = Duration::from_secs(60);
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 1024 * 1024;
/// Questions at once.
const AT_ONCE: usize = 32;

/// Whoever asks the workers.
pub struct Learning {
    edge: Arc<Edge>,
    /// Connections of its own: those of requests belong to other threads.
    upstreams: Arc<Upstreams>,
    room: Arc<Semaphore>,
}

/// What is known of the questions to one instance.
struct Known {
    next: Instant,
    failures: u32,
    /// What was said of it last.
    said: Option<String>,
}

/// The background service that asks the workers of `edge`.
pub fn learning(edge: Arc<Edge>, options: ConnectorOptions) -> GenBackgroundService<Learning> {
    background_service(
        "kv cache facts",
        Learning {
            upstreams: Arc::new(Upstreams::new(options, edge.upstreams.tls())),
            edge,
            room: Arc::new(Semaphore::new(AT_ONCE)),
        },
    )
}

#[async_trait]
impl BackgroundService for Learning {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut known = HashMap::new();
        let mut changed = self.edge.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let live = self.edge.live.load_full();
            let due = tokio::select! {
                due = self.round(&live, &mut known) => due,
                _ = shutdown.changed() => return,
            };
            live.asked();
            let due = due.unwrap_or_else(|| Instant::now() + LIFETIME);
            tokio::select! {
                () = sleep_until(due) => {}
                _ = changed.changed() => {}
                _ = shutdown.changed() => return,
            }
        }
    }
}

impl Learning {
    /// Asks every instance that it is time to ask, and returns when it is the next one's time.
    async fn round(
        &self,
        live: &Arc<Live>,
        known: &mut HashMap<InstanceId, Known>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut questions = JoinSet::new();
        let mut present = Vec::new();
        for destination in live.destinations() {
            let router = destination.router();
            if router.kv_cache_aware().is_none() {
                continue;
            }
            for instance in destination.fleet().instances() {
                present.push(instance.id);
                if known
                    .get(&instance.id)
                    .is_none_or(|known| known.next <= now)
                {
                    let question = self.question(instance.clone(), &live.config.timeouts);
                    let router = router.clone();
                    questions.spawn(async move { (router, question.await) });
                }
            }
        }
        present.sort_unstable();
        known.retain(|id, _| present.binary_search(id).is_ok());
        while let Some(answer) = questions.join_next().await {
            let Ok((router, (instance, facts))) = answer else {
                continue;
            };
            if let Some(router) = router.kv_cache_aware() {
                let known = known.entry(instance.id).or_insert_with(Known::nothing);
                known.take(router, &instance, facts);
            }
        }
        known.values().map(|known| known.next).min()
    }

    fn question(
        &self,
        instance: Arc<Instance>,
        timeouts: &Timeouts,
    ) -> impl Future<Output = (Arc<Instance>, Result<WorkerFacts, String>)> + Send + 'static {
        let (upstreams, room, timeouts) =
            (self.upstreams.clone(), self.room.clone(), timeouts.clone());
        async move {
            let _place = room.acquire().await;
            let facts = timeout(PATIENCE, read(&upstreams, &instance, &timeouts)).await;
            let facts = facts.unwrap_or_else(|_| Err("it did not answer in time".to_owned()));
            (instance, facts)
        }
    }
}

async fn read(
    upstreams: &Upstreams,
    instance: &Instance,
    timeouts: &Timeouts,
) -> Result<WorkerFacts, String> {
    let call = Call::get(&instance.address, "/server_info", MAX_ANSWER);
    let answer = upstreams.call(&call, timeouts).await;
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(format!("it answered with status {}", answer.status));
    }
    serde_json::from_slice(&answer.body).map_err(|error| error.to_string())
}

impl Known {
    fn nothing() -> Self {
        Self {
            next: Instant::now(),
            failures: 0,
            said: None,
        }
    }

    /// Hands facts on, and notes when to ask again.
    fn take(
        &mut self,
        router: &KvCacheAware,
        instance: &Instance,
        facts: Result<WorkerFacts, String>,
    ) {
        let (pause, said) = match facts {
            Err(reason) => {
                let doublings = self.failures.min(8);
                self.failures = self.failures.saturating_add(1);
                let said = format!(
                    "its /server_info could not be read: {reason}; until it can, it is taken for \
                     one with upstream's defaults"
                );
                (
                    (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE),
                    Some(said),
                )
            }
            Ok(facts) => {
                self.failures = 0;
                (LIFETIME, learn(router, instance, &facts))
            }
        };
        self.next = Instant::now() + pause;
        if let Some(said) = said
            .as_ref()
            .filter(|said| self.said.as_ref() != Some(*said))
        {
            tracing::warn!(
                instance = &*instance.alias,
                address = &*instance.address,
                "{said}"
            );
        }
        self.said = said;
    }
}

/// Hands facts on; what a person should know of them is returned.
fn learn(router: &KvCacheAware, instance: &Instance, facts: &WorkerFacts) -> Option<String> {
    match router.learn(instance.id, facts) {
        Err(unfit) => Some(unfit.to_string()),
        Ok(learned) if !learned.events => Some(format!(
            "its KV cache events are not read, since its blocks have not the {} tokens of the \
             router's",
            learned.tokens_per_block
        )),
        Ok(learned) if learned.assumed_hash => Some(
            "it names no kv_cache_hash_algo at /server_info; v1_block_key is assumed".to_owned(),
        ),
        Ok(_) => None,
    }
}
