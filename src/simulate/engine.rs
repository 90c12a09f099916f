//! The engine of a simulated worker: ranks, their prefix caches, and time that passes.
//!
//! It answers on which rank a request runs, how many of its prompt tokens are already in that
//! rank's cache, and how long prefill and decode take. A token counts as cached only when its block
//! was computed on that rank before the request came and is still there. It knows no HTTP.

mod blocks;
mod rank;
mod report;
pub mod tokens;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use thiserror::Error;

pub use blocks::{BlockCache, BlockHash, Stored, chain};
use rank::{Phase, Rank};
use report::Report;

/// Size and speed of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Attention data-parallel ranks, at least 1.
    pub ranks: u32,
    /// Tokens of one cache block, at least 1.
    pub block_size: usize,
    /// Blocks that each rank can keep.
    pub cache_blocks: usize,
    /// Prefill time of each token that is not cached; zero takes no time.
    pub prefill_per_token: Duration,
    /// Time between two tokens of an answer; zero takes no time.
    pub decode_interval: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            ranks: 1,
            block_size: 32,
            cache_blocks: 8192,
            prefill_per_token: Duration::ZERO,
            decode_interval: Duration::ZERO,
        }
    }
}

/// A rank was asked for that the engine does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("data parallel rank {asked} does not exist: this worker has ranks 0 to {last}")]
pub struct NoSuchRank {
    asked: u32,
    last: u32,
}

#[derive(Debug)]
struct State {
    ranks: Vec<Rank>,
    cursor: usize,
    completed: u64,
    cancelled: u64,
    report: Report,
}

impl State {
    /// The rank with the fewest active requests; of equal ones the next in turn.
    fn least_active(&mut self) -> usize {
        let count = self.ranks.len();
        let start = self.cursor % count;
        self.cursor = self.cursor.wrapping_add(1);
        let in_turn = (start..count).chain(0..start);
        in_turn
            .min_by_key(|at| self.ranks.get(*at).map_or(u32::MAX, Rank::active))
            .unwrap_or_default()
    }
}

/// What an engine has done and is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests on each rank now.
    pub active: Vec<u32>,
    /// Cached blocks of each rank.
    pub cache_blocks: Vec<usize>,
    /// Requests that ran to their end.
    pub completed: u64,
    /// Requests whose client left before their end.
    pub cancelled: u64,
}

/// The engine; shared by all connections of a worker.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    state: Mutex<State>,
}

impl Engine {
    /// An engine with empty caches. Zero ranks or an empty block size count as 1.
    pub fn new(mut config: EngineConfig) -> Arc<Self> {
        config.ranks = config.ranks.max(1);
        config.block_size = config.block_size.max(1);
        let ranks = (0..config.ranks)
            .map(|_| Rank::new(config.cache_blocks))
            .collect();
        let state = State {
            ranks,
            cursor: 0,
            completed: 0,
            cancelled: 0,
            report: Report::new(&config),
        };
        Arc::new(Self {
            config,
            state: Mutex::new(state),
        })
    }

    /// Size and speed.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Takes a request in, on `rank` or, when none is told, on the least active one.
    ///
    /// # Errors
    /// When there is no such rank.
    pub fn admit(self: &Arc<Self>, rank: Option<u32>, tokens: Vec<u32>) -> Result<Job, NoSuchRank> {
        let chain = chain(&tokens, self.config.block_size);
        let mut state = self.state.lock();
        let at = match rank {
            Some(asked) => usize::try_from(asked).unwrap_or(usize::MAX),
            None => state.least_active(),
        };
        let entry = state.ranks.get_mut(at).ok_or(NoSuchRank {
            asked: rank.unwrap_or_default(),
            last: self.config.ranks - 1,
        })?;
        let matched = entry.cache.matched(&chain);
        entry.enter(Phase::Prefill, tokens.len());
        drop(state);
        Ok(Job {
            engine: Arc::clone(self),
            rank: at,
            cached_tokens: matched * self.config.block_size,
            weight: tokens.len(),
            tokens,
            chain,
            phase: Phase::Prefill,
            finished: false,
        })
    }

    /// Load, cache sizes and counts now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot {
            active: state.ranks.iter().map(Rank::active).collect(),
            cache_blocks: state.ranks.iter().map(|rank| rank.cache.len()).collect(),
            completed: state.completed,
            cancelled: state.cancelled,
        }
    }

    /// The iteration statistics since the last call, as `GET /metrics` gives them (specification
    /// section 6.3). Reading takes them away.
    pub fn take_statistics(&self) -> Vec<Value> {
        self.state.lock().report.take_statistics()
    }

    /// The cache events since the last call, as `POST /kv_cache_events` gives them (specification
    /// section 6.3). Reading takes them away.
    pub fn take_events(&self) -> Vec<Value> {
        self.state.lock().report.take_events()
    }
}

/// One request in the engine. Dropping it before [`Job::finish`] cancels it.
#[derive(Debug)]
pub struct Job {
    engine: Arc<Engine>,
    rank: usize,
    cached_tokens: usize,
    /// Tokens that it counts for on its rank: those of its prompt.
    weight: usize,
    tokens: Vec<u32>,
    chain: Vec<BlockHash>,
    phase: Phase,
    finished: bool,
}

impl Job {
    /// The rank that it runs on.
    pub fn rank(&self) -> u32 {
        u32::try_from(self.rank).unwrap_or(u32::MAX)
    }

    /// The prompt.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the prompt that were in the rank's cache when the request came.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Computes what is not cached, which takes its time; then the prompt is cached.
    pub async fn prefill(&mut self) {
        let missing = self.tokens.len().saturating_sub(self.cached_tokens);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        pass(self.engine.config.prefill_per_token.saturating_mul(missing)).await;
        self.receive();
    }

    /// Takes the prompt's cache blocks as computed elsewhere; then the prompt is cached here too.
    pub fn receive(&mut self) {
        let engine = Arc::clone(&self.engine);
        let mut guard = engine.state.lock();
        let state = &mut *guard;
        self.store(state);
        if let Some(rank) = state.ranks.get_mut(self.rank) {
            rank.leave(self.phase, self.weight);
            rank.enter(Phase::Decode, self.weight);
            self.phase = Phase::Decode;
        }
        state.report.iteration(&state.ranks);
    }

    /// Waits until the next token is there.
    pub async fn next_token(&self) {
        pass(self.engine.config.decode_interval).await;
    }

    /// Ends the request; `output` continues the prompt in the cache.
    pub fn finish(mut self, output: &[u32]) {
        self.finished = true;
        self.tokens.extend_from_slice(output);
        self.chain = chain(&self.tokens, self.engine.config.block_size);
        let engine = Arc::clone(&self.engine);
        let mut state = engine.state.lock();
        self.store(&mut state);
        state.completed += 1;
    }

    fn store(&self, state: &mut State) {
        if let Some(rank) = state.ranks.get_mut(self.rank) {
            let stored = rank.cache.store(&self.chain);
            state.report.stored(self.rank(), stored);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut guard = self.engine.state.lock();
        let state = &mut *guard;
        if let Some(rank) = state.ranks.get_mut(self.rank) {
            rank.leave(self.phase, self.weight);
        }
        state.cancelled += u64::from(!self.finished);
        state.report.iteration(&state.ranks);
    }
}

/// Lets `time` pass; zero takes no time at all.
async fn pass(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

#[cfg(test)]
mod tests;
