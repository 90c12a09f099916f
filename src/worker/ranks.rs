//! The ranks of one worker as the filter sees them: bindings, and what is in flight on each.
//!
//! A reload changes everything about placement in place, so that what is bound stays where its cache
//! is and what runs stays counted. A load belongs to the rank's number, not to a configuration: it
//! must never be given back to another one, nor be lost while a request holds it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::placement::{Ask, RankLoad, RankPlacer};
use crate::{
    config::PlacementConfig,
    telemetry::{self, labels::PlacementReason, metrics::RankMetrics},
};

/// Bindings and loads of one worker's ranks; without placement it has none.
pub struct Ranks {
    worker: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` without placement.
    placer: Option<RankPlacer>,
    cap: u32,
    ranks: Vec<Rank>,
    /// The loads of ranks that are gone, by number from `ranks.len()`; they count again if their
    /// ranks come back.
    gone: Vec<Weak<Load>>,
}

struct Rank {
    load: Arc<Load>,
    metrics: RankMetrics,
}

/// What is active on one rank; leases keep it.
#[derive(Default)]
struct Load {
    requests: AtomicU32,
    tokens: AtomicU64,
}

/// A request on its rank; the load is given back when it is dropped.
pub struct RankLease {
    load: Arc<Load>,
    rank: u32,
    tokens: u64,
}

impl Ranks {
    /// No ranks yet, of the worker that `worker` names in the metrics.
    pub fn new(worker: &str) -> Self {
        Self {
            worker: worker.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Places by `config` from now on; `None` places nothing. Loads and bindings of ranks that still
    /// exist stay, bindings to others go, and so do those ranks' metrics.
    pub fn reconfigure(&self, config: Option<&PlacementConfig>) {
        let mut state = self.state.lock();
        let count = config.map_or(0, |config| config.ranks);
        state.resize(&self.worker, usize::try_from(count).unwrap_or(usize::MAX));
        match (&mut state.placer, config) {
            (Some(placer), Some(config)) => placer.reconfigure(config),
            (placer, config) => *placer = config.map(RankPlacer::new),
        }
        state.cap = config.map_or(0, |config| config.max_active_per_rank);
    }

    /// Places one request and counts it on its rank. `None` only if there are no ranks.
    pub fn place(&self, ask: &Ask) -> Option<RankLease> {
        // Held until the request is counted, so that the next one sees it.
        let mut state = self.state.lock();
        let State {
            placer, cap, ranks, ..
        } = &mut *state;
        let loads: Vec<_> = ranks.iter().map(|rank| rank.load.now()).collect();
        let placed = placer.as_mut()?.place_one(&loads, *cap, *ask);
        let rank = placed.rank?;
        let found = ranks.get(usize::try_from(rank).ok()?)?;
        found.load.requests.fetch_add(1, Relaxed);
        found.load.tokens.fetch_add(ask.tokens, Relaxed);
        found.metrics.placed(placed.reason);
        let load = found.load.clone();
        drop(state);
        if placed.reason == PlacementReason::Overflow {
            tracing::debug!(
                rank,
                "the bound rank is full; placed elsewhere, the binding stays"
            );
        }
        Some(RankLease {
            load,
            rank,
            tokens: ask.tokens,
        })
    }

    /// Brings the gauges up to date.
    pub fn export(&self) {
        for rank in &self.state.lock().ranks {
            let load = rank.load.now();
            rank.metrics.in_flight.set(load.requests.into());
            rank.metrics
                .tokens
                .set(i64::try_from(load.tokens).unwrap_or(i64::MAX));
        }
    }
}

impl State {
    /// Adds or takes away ranks at the end.
    fn resize(&mut self, worker: &str, count: usize) {
        while self.ranks.len() > count {
            let Some(rank) = self.ranks.pop() else { break };
            self.gone.insert(0, Arc::downgrade(&rank.load));
            telemetry::metrics().forget_rank(worker, number(self.ranks.len()));
        }
        while self.ranks.len() < count {
            let before = (!self.gone.is_empty()).then(|| self.gone.remove(0));
            self.ranks.push(Rank {
                load: before.and_then(|load| load.upgrade()).unwrap_or_default(),
                metrics: telemetry::metrics().rank(worker, number(self.ranks.len())),
            });
        }
    }
}

/// A rank's number; the configuration allows far fewer than that.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl Load {
    fn now(&self) -> RankLoad {
        RankLoad {
            requests: self.requests.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
        }
    }
}

impl RankLease {
    /// The rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }
}

impl Drop for RankLease {
    fn drop(&mut self) {
        self.load.requests.fetch_sub(1, Relaxed);
        self.load.tokens.fetch_sub(self.tokens, Relaxed);
    }
}

#[cfg(test)]
mod tests;
