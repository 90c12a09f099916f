//! Asks the instances how they are, in the background.
//!
//! Decides when: an instance that is new at once, every one again after `health.interval`, give or
//! take a tenth, so that many edges do not ask in step. It has threads and connections of its own and
//! asks a bounded number at once, so that neither requests nor silent instances hold it up. What an
//! answer means is decided by the instance's health.

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
    time::{Instant, sleep, timeout},
};

use super::{Edge, live::Live};
use crate::{
    config::HealthConfig,
    fleet::{Instance, InstanceId, health::Change},
    http::upstream::{Call, CallError, Upstreams},
    telemetry::{
        self,
        labels::{FleetLabel, ProbeResult},
    },
};

/// Bytes of an answer at most.
const MAX_ANSWER: usize = 1024 * 1024;
/// Probes at once.
const AT_ONCE: usize = 128;
/// Bounds of the time after which the fleets are looked through again.
const TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Whoever probes.
pub struct Probes {
    edge: Arc<Edge>,
    /// Connections of its own: those of requests belong to other threads.
    upstreams: Arc<Upstreams>,
    room: Arc<Semaphore>,
}

/// The background service that probes the instances of `edge`.
pub fn probes(edge: Arc<Edge>, options: ConnectorOptions) -> GenBackgroundService<Probes> {
    background_service(
        "health probes",
        Probes {
            upstreams: Arc::new(Upstreams::new(options, edge.upstreams.tls())),
            edge,
            room: Arc::new(Semaphore::new(AT_ONCE)),
        },
    )
}

/// When each instance is probed next; never while a probe of it is under way.
type Due = HashMap<InstanceId, Option<Instant>>;

#[async_trait]
impl BackgroundService for Probes {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut due = Due::new();
        let mut running = JoinSet::new();
        loop {
            let live = self.edge.live.load_full();
            let health = &live.edge.health;
            if health.active {
                self.begin(&live, &mut due, &mut running);
            } else {
                due.clear();
                running.abort_all();
            }
            let tick = sleep((health.interval / 20).clamp(TICK.0, TICK.1));
            tokio::pin!(tick);
            loop {
                tokio::select! {
                    () = &mut tick => break,
                    Some(ended) = running.join_next() => {
                        if let Ok(id) = ended {
                            due.entry(id).and_modify(|next| *next = Some(after(health)));
                        }
                    }
                    _ = shutdown.changed() => return,
                }
            }
        }
    }
}

/// The time of the next probe.
fn after(health: &HealthConfig) -> Instant {
    Instant::now() + health.interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

impl Probes {
    /// Begins every probe that is due, and forgets the instances that are gone.
    fn begin(&self, live: &Arc<Live>, due: &mut Due, running: &mut JoinSet<InstanceId>) {
        let now = Instant::now();
        let mut present = Vec::new();
        for destination in live.destinations() {
            let fleet = destination.fleet();
            for instance in fleet.instances() {
                present.push(instance.id);
                let next = due.entry(instance.id).or_insert(Some(now));
                if next.is_some_and(|next| next <= now) {
                    *next = None;
                    running.spawn(self.probe(live.clone(), fleet.label(), instance.clone()));
                }
            }
        }
        present.sort_unstable();
        due.retain(|id, _| present.binary_search(id).is_ok());
    }

    fn probe(
        &self,
        live: Arc<Live>,
        fleet: FleetLabel,
        instance: Arc<Instance>,
    ) -> impl Future<Output = InstanceId> + Send + use<> {
        let (upstreams, room) = (self.upstreams.clone(), self.room.clone());
        async move {
            let _place = room.acquire().await;
            let asked = ask(&upstreams, &live, &instance.address);
            let (result, outcome) = match timeout(live.edge.health.timeout, asked).await {
                Ok(Ok(200..=299)) => (ProbeResult::Good, Ok(())),
                Ok(Ok(status)) => {
                    let reason = format!("it answered with status {status}");
                    (ProbeResult::Refused, Err(reason))
                }
                Ok(Err(CallError::Timeout)) | Err(_) => {
                    (ProbeResult::Timeout, Err(CallError::Timeout.to_string()))
                }
                Ok(Err(error)) => (ProbeResult::Failed, Err(error.to_string())),
            };
            telemetry::metrics().probes.inc((fleet, result));
            tell(&instance, outcome);
            instance.id
        }
    }
}

/// The status of one answer to the question for an instance's health. A pooled connection that died
/// meanwhile says nothing of the instance.
pub(super) async fn ask(
    upstreams: &Upstreams,
    live: &Live,
    address: &str,
) -> Result<u16, CallError> {
    let call = Call::get(address, &live.edge.health.path, MAX_ANSWER);
    let timeouts = &live.config.timeouts;
    let answer = match upstreams.call(&call, timeouts).await {
        Err(CallError::Unheard) => upstreams.call(&call, timeouts).await,
        other => other,
    };
    answer.map(|answer| answer.status)
}

/// Brings an outcome to the instance, and a person the news.
fn tell(instance: &Instance, outcome: Result<(), String>) {
    let (alias, address) = (&*instance.alias, &*instance.address);
    let reason = outcome.clone().err();
    match instance.health().probed(outcome) {
        Change::Nothing => {}
        Change::Down => {
            let reason = reason.unwrap_or_default();
            tracing::warn!(instance = alias, address, reason, "an instance is down");
        }
        Change::Up => tracing::info!(instance = alias, address, "an instance is up again"),
    }
}
