//! How the process ends.
//!
//! SIGINT and a second signal end it at once. SIGTERM turns readiness off and closes the listeners
//! (the operator's port stays open), then waits for requests in flight, `timeouts.drain` at most.
//! SIGHUP is not an end (see `reload`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{admin::Readiness, edge::Edge, worker::Filter};

/// How often requests in flight are counted while draining.
const POLL: Duration = Duration::from_millis(20);

/// Waits for the signal that ends the process.
pub struct Drain {
    limit: Duration,
    edge: Option<Arc<Edge>>,
    filters: Vec<Arc<Filter>>,
    readiness: Readiness,
}

impl Drain {
    pub fn new(
        limit: Duration,
        edge: Option<Arc<Edge>>,
        filters: Vec<Arc<Filter>>,
        readiness: Readiness,
    ) -> Self {
        Self {
            limit,
            edge,
            filters,
            readiness,
        }
    }

    /// Ends the process as soon as nothing is in flight, from a thread of its own because Pingora
    /// sleeps through its whole grace period.
    fn exit_when_idle(&self, mut terminations: Signal, mut interrupts: Signal) {
        let (edge, filters) = (self.edge.clone(), self.filters.clone());
        let deadline = Instant::now() + self.limit;
        tokio::spawn(async move {
            loop {
                let at_edge = edge.as_ref().map_or(0, |edge| edge.requests_in_flight());
                let at_filters = filters.iter().map(|filter| filter.requests_in_flight());
                let in_flight = at_edge + at_filters.sum::<usize>();
                if in_flight == 0 || Instant::now() >= deadline {
                    tracing::info!(in_flight, "drained; exiting");
                    std::process::exit(0);
                }
                tokio::select! {
                    () = tokio::time::sleep(POLL) => {}
                    _ = interrupts.recv() => std::process::exit(0),
                    _ = terminations.recv() => std::process::exit(0),
                }
            }
        });
    }
}

#[async_trait]
impl ShutdownSignalWatch for Drain {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            tracing::error!("cannot listen for signals; stop the process with SIGKILL");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => std::process::exit(0),
            _ = terminate.recv() => {}
        }
        self.readiness.drain();
        tracing::info!(limit = ?self.limit, "draining: no new connections, requests in flight go on");
        self.exit_when_idle(terminate, interrupt);
        ShutdownSignal::GracefulTerminate
    }
}

/// A server that no signal ends: it goes with the process.
pub struct Never;

#[async_trait]
impl ShutdownSignalWatch for Never {
    async fn recv(&self) -> ShutdownSignal {
        std::future::pending().await
    }
}
