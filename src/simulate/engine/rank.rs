//! One attention data-parallel rank: its cache and what runs on it.
//!
//! It only counts. Whoever counts a request in has to count it out with the same numbers.

use super::blocks::BlockCache;

/// What a request is doing on its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Prefill,
    Decode,
}

/// One rank's cache and load.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) cache: BlockCache,
    pub(super) prefills: u32,
    pub(super) prefill_tokens: usize,
    pub(super) decodes: u32,
    pub(super) decode_tokens: usize,
}

impl Rank {
    /// An idle rank that can keep `blocks` blocks.
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            cache: BlockCache::new(blocks),
            prefills: 0,
            prefill_tokens: 0,
            decodes: 0,
            decode_tokens: 0,
        }
    }

    /// Requests that run here.
    pub(super) fn active(&self) -> u32 {
        self.prefills + self.decodes
    }

    /// Counts a request of `tokens` prompt tokens in.
    pub(super) fn enter(&mut self, phase: Phase, tokens: usize) {
        match phase {
            Phase::Prefill => {
                self.prefills += 1;
                self.prefill_tokens += tokens;
            }
            Phase::Decode => {
                self.decodes += 1;
                self.decode_tokens += tokens;
            }
        }
    }

    /// Counts out what [`Rank::enter`] counted in.
    pub(super) fn leave(&mut self, phase: Phase, tokens: usize) {
        match phase {
            Phase::Prefill => {
                self.prefills -= 1;
                self.prefill_tokens -= tokens;
            }
            Phase::Decode => {
                self.decodes -= 1;
                self.decode_tokens -= tokens;
            }
        }
    }
}
