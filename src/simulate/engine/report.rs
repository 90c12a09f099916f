//! What an engine tells about itself: iteration statistics and cache events.
//!
//! Both are lists that reading empties, as upstream's are (specification section 6.3), and both are
//! bounded: the oldest entries are dropped and counted. It must not influence the engine.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::{BlockHash, EngineConfig, Rank, Stored};

/// Statistics rows kept until somebody reads them.
const ROWS: usize = 4096;

/// Block hashes in events kept until somebody reads them.
const HASHES: usize = 1 << 18;

/// One rank in one iteration.
#[derive(Debug)]
struct Row {
    iteration: u64,
    rank: usize,
    ranks: usize,
    prefills: u32,
    prefill_tokens: usize,
    decodes: u32,
    decode_tokens: usize,
    active: u32,
    used_blocks: usize,
}

#[derive(Debug)]
enum Change {
    Stored(Vec<BlockHash>),
    Removed(Vec<BlockHash>),
}

impl Change {
    fn len(&self) -> usize {
        let (Self::Stored(hashes) | Self::Removed(hashes)) = self;
        hashes.len()
    }
}

#[derive(Debug)]
struct Event {
    id: u64,
    rank: u32,
    change: Change,
}

#[derive(Debug)]
pub(super) struct Report {
    tokens_per_block: usize,
    blocks_per_rank: usize,
    iteration: u64,
    rows: VecDeque<Row>,
    dropped: u64,
    events: VecDeque<Event>,
    last_event: u64,
    hashes: usize,
}

impl Report {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            tokens_per_block: config.block_size,
            blocks_per_rank: config.cache_blocks,
            iteration: 0,
            rows: VecDeque::new(),
            dropped: 0,
            events: VecDeque::new(),
            last_event: 0,
            hashes: 0,
        }
    }

    /// Notes one iteration: a row for each rank.
    pub(super) fn iteration(&mut self, ranks: &[Rank]) {
        self.iteration += 1;
        let active = ranks.iter().map(Rank::active).sum();
        let used_blocks = ranks.iter().map(|rank| rank.cache.len()).sum();
        self.rows
            .extend(ranks.iter().enumerate().map(|(at, rank)| Row {
                iteration: self.iteration,
                rank: at,
                ranks: ranks.len(),
                prefills: rank.prefills,
                prefill_tokens: rank.prefill_tokens,
                decodes: rank.decodes,
                decode_tokens: rank.decode_tokens,
                active,
                used_blocks,
            }));
        while self.rows.len() > ROWS {
            self.rows.pop_front();
            self.dropped += 1;
        }
    }

    /// Notes what storing a prompt on `rank` changed.
    pub(super) fn stored(&mut self, rank: u32, stored: Stored) {
        let changes = [
            Change::Stored(stored.added),
            Change::Removed(stored.evicted),
        ];
        for change in changes.into_iter().filter(|change| change.len() > 0) {
            self.last_event += 1;
            self.hashes += change.len();
            self.events.push_back(Event {
                id: self.last_event,
                rank,
                change,
            });
        }
        while self.hashes > HASHES {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.hashes -= oldest.change.len();
        }
    }

    pub(super) fn take_statistics(&mut self) -> Vec<Value> {
        let rows = std::mem::take(&mut self.rows);
        rows.iter().map(|row| self.statistics(row)).collect()
    }

    pub(super) fn take_events(&mut self) -> Vec<Value> {
        self.hashes = 0;
        self.events.drain(..).map(|event| render(&event)).collect()
    }

    fn statistics(&self, row: &Row) -> Value {
        let blocks = self.blocks_per_rank * row.ranks;
        let mut statistics = json!({
            "iter": row.iteration,
            "statsSequence": row.iteration,
            "statsDroppedFrames": self.dropped,
            "numActiveRequests": row.active,
            "numQueuedRequests": 0,
            "kvCacheStats": {
                "maxNumBlocks": blocks,
                "freeNumBlocks": blocks.saturating_sub(row.used_blocks),
                "usedNumBlocks": row.used_blocks,
                "tokensPerBlock": self.tokens_per_block,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": row.prefills + row.decodes,
                "numContextRequests": row.prefills,
                "numCtxTokens": row.prefill_tokens,
                "numGenRequests": row.decodes,
                "numGenKvTokens": row.decode_tokens,
                "numPausedRequests": 0,
                "numQueuedContextRequests": 0,
                "numQueuedCtxTokens": 0,
                "numQueuedGenRequests": 0,
                "numQueuedGenKvTokens": 0,
            },
        });
        if row.ranks > 1 {
            statistics["attentionDpRank"] = json!(row.rank);
        }
        statistics
    }
}

fn render(event: &Event) -> Value {
    let data = match &event.change {
        Change::Stored(hashes) => {
            let blocks: Vec<Value> = hashes
                .iter()
                .map(|hash| json!({"block_hash": hash}))
                .collect();
            json!({"type": "stored", "blocks": blocks})
        }
        Change::Removed(hashes) => json!({"type": "removed", "block_hashes": hashes}),
    };
    json!({"event_id": event.id, "data": data, "attention_dp_rank": event.rank})
}
