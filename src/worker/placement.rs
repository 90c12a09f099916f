//! Which attention-DP rank a request gets (specification section 6.1).
//!
//! Decides by upstream's conversation-aware rules: a bound session returns to its rank while that
//! is below the hard cap and goes elsewhere without being bound anew when it is not; what is new
//! goes by the configured policy to a rank below the fair share. It is pure: loads are told, ranks
//! are answered, and nothing but the bindings and the cursor is remembered. It must never answer a
//! rank that does not exist.

use crate::{
    affinity::{AffinityKey, BindingTable},
    config::{NewConversationPlacement, PlacementConfig},
    telemetry::labels::PlacementReason,
};

/// What is active on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankLoad {
    pub requests: u32,
    /// Prompt tokens of those requests.
    pub tokens: u64,
}

/// One request to place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The parent's key if the signed header names one, else the conversation's.
    pub key: Option<AffinityKey>,
    /// The rank that the request itself names.
    pub rank: Option<u32>,
    /// `attention_dp_relax`; requests that do not relax are placed first. True by default.
    pub relax: bool,
    /// Prompt tokens.
    pub tokens: u64,
}

impl Ask {
    /// A request of this session, or of none.
    pub fn new(key: Option<AffinityKey>, tokens: u64) -> Self {
        Self {
            key,
            rank: None,
            relax: true,
            tokens,
        }
    }
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// `None` only if there are no ranks.
    pub rank: Option<u32>,
    pub reason: PlacementReason,
    /// How many requests of the batch were placed before this one.
    pub turn: usize,
}

/// Places requests on ranks and remembers which session is where.
#[derive(Debug)]
pub struct RankPlacer {
    affinity: bool,
    multiplier: f64,
    policy: NewConversationPlacement,
    bindings: BindingTable<u32>,
    cursor: u32,
    expected: u32,
    evictions: u64,
    /// The batch's loads while it is placed.
    loads: Vec<RankLoad>,
}

impl RankPlacer {
    /// A placer with no bindings.
    pub fn new(config: &PlacementConfig) -> Self {
        Self {
            affinity: config.conversation_affinity,
            multiplier: config.fair_share_multiplier.max(1.0),
            policy: config.new_conversation,
            bindings: BindingTable::new(config.max_sessions),
            cursor: 0,
            expected: 0,
            evictions: 0,
            loads: Vec::new(),
        }
    }

    /// Places by `config` from now on. Bindings to ranks that still exist stay; of too many the least
    /// recently used go.
    pub fn reconfigure(&mut self, config: &PlacementConfig) {
        self.affinity = config.conversation_affinity;
        self.multiplier = config.fair_share_multiplier.max(1.0);
        self.policy = config.new_conversation;
        self.bindings.retain(|_, rank| rank < config.ranks);
        self.bindings.set_bound(config.max_sessions);
        while self.bindings.len() > self.bindings.bound() && self.bindings.pop_oldest().is_some() {
            self.evictions += 1;
        }
    }

    /// Places a batch: `loads` are the ranks' loads before it, `cap` is the most requests that may
    /// be active on one rank. The answers are in the batch's order.
    pub fn place(&mut self, loads: &[RankLoad], cap: u32, batch: &[Ask]) -> Vec<Placed> {
        self.loads.clear();
        self.loads.extend_from_slice(loads);
        let nowhere = Placed {
            rank: None,
            reason: PlacementReason::Unkeyed,
            turn: 0,
        };
        let mut placed = vec![nowhere; batch.len()];
        if loads.is_empty() {
            return placed;
        }
        let fair_share = self.fair_share(batch.len()).min(cap);
        let mut turn = 0;
        let mut settle = |at: usize, rank: u32, reason| {
            if let Some(placed) = placed.get_mut(at) {
                *placed = Placed {
                    rank: Some(rank),
                    reason,
                    turn,
                };
                turn += 1;
            }
        };
        let mut order: Vec<(usize, &Ask)> = batch.iter().enumerate().collect();
        order.sort_by_key(|(_, ask)| ask.relax);
        order.retain(|&(at, ask)| match self.place_explicit(ask, cap) {
            Some(rank) => {
                settle(at, rank, PlacementReason::Explicit);
                false
            }
            None => true,
        });
        let soft_cap = fair_share.max(self.busiest());
        for (at, ask) in order {
            let (rank, reason) = self.place_other(ask, cap, soft_cap);
            settle(at, rank, reason);
        }
        self.expected = soft_cap.max(self.busiest());
        placed
    }

    /// Places one request.
    pub fn place_one(&mut self, loads: &[RankLoad], cap: u32, ask: Ask) -> Placed {
        let nowhere = Placed {
            rank: None,
            reason: PlacementReason::Unkeyed,
            turn: 0,
        };
        self.place(loads, cap, &[ask]).pop().unwrap_or(nowhere)
    }

    /// The rank that `key` is bound to; changes nothing.
    pub fn peek(&self, key: AffinityKey) -> Option<u32> {
        self.bindings.peek(key)
    }

    /// Number of bindings held.
    pub fn bindings(&self) -> usize {
        self.bindings.len()
    }

    /// Bindings dropped so far because the table was full.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Every binding, least recently used first. Linear.
    pub fn sessions(&mut self) -> impl Iterator<Item = (AffinityKey, u32)> + '_ {
        self.bindings.iter()
    }

    /// The rank at which the policy goes on looking.
    pub fn cursor(&self) -> u32 {
        self.cursor
    }

    /// The most requests that the last batch left, or allowed, on one rank.
    pub fn expected_active(&self) -> u32 {
        self.expected
    }

    /// A request that names its rank gets it while that is below the cap, unless its session is
    /// bound; a new session is bound to it.
    fn place_explicit(&mut self, ask: &Ask, cap: u32) -> Option<u32> {
        let rank = ask
            .rank
            .filter(|&rank| self.requests(rank).is_some_and(|active| active < cap))?;
        if let Some(key) = ask.key.filter(|_| self.affinity) {
            if self.bound(key).is_some() {
                return None;
            }
            self.bind(key, rank);
        }
        self.add(rank, ask.tokens);
        Some(rank)
    }

    fn place_other(&mut self, ask: &Ask, cap: u32, soft_cap: u32) -> (u32, PlacementReason) {
        let key = ask.key.filter(|_| self.affinity);
        let bound = key.and_then(|key| self.bound(key));
        if let (Some(key), Some(rank)) = (key, bound)
            && self.requests(rank).is_some_and(|active| active < cap)
        {
            self.bindings.get_touch(key);
            self.add(rank, ask.tokens);
            return (rank, PlacementReason::Sticky);
        }
        let rank = self.choose(soft_cap.min(cap));
        self.add(rank, ask.tokens);
        let reason = match (key, bound) {
            (None, _) => PlacementReason::Unkeyed,
            (Some(_), Some(_)) => PlacementReason::Overflow,
            (Some(key), None) => {
                self.bind(key, rank);
                PlacementReason::New
            }
        };
        (rank, reason)
    }

    /// A rank below `cap` by the policy; the least busy one if there is none.
    fn choose(&mut self, cap: u32) -> u32 {
        let ranks = self.loads.len() as u32;
        let cursor = self.cursor % ranks.max(1);
        let ahead = |rank: u32| (rank + ranks - cursor) % ranks;
        let below = self.ranks().filter(|(_, load)| load.requests < cap);
        let chosen = match self.policy {
            NewConversationPlacement::RoundRobin => below.min_by_key(|(rank, _)| ahead(*rank)),
            NewConversationPlacement::LeastQueued => below.min_by_key(|(_, load)| load.requests),
            NewConversationPlacement::LeastTokens => {
                below.min_by_key(|(rank, load)| (load.tokens, load.requests, ahead(*rank)))
            }
        };
        let moves = self.policy != NewConversationPlacement::LeastQueued;
        match chosen {
            Some((rank, _)) => {
                if moves {
                    self.cursor = (rank + 1) % ranks;
                }
                rank
            }
            None => self
                .ranks()
                .min_by_key(|(_, load)| load.requests)
                .map_or(0, |(rank, _)| rank),
        }
    }

    /// The multiplied fair share of all requests, those of the batch included.
    fn fair_share(&self, batch: usize) -> u32 {
        let active: u64 = self.loads.iter().map(|load| u64::from(load.requests)).sum();
        let share = (active + batch as u64).div_ceil(self.loads.len().max(1) as u64);
        (share as f64 * self.multiplier).ceil() as u32
    }

    fn ranks(&self) -> impl Iterator<Item = (u32, &RankLoad)> {
        (0..).zip(&self.loads)
    }

    fn busiest(&self) -> u32 {
        self.loads
            .iter()
            .map(|load| load.requests)
            .max()
            .unwrap_or(0)
    }

    fn requests(&self, rank: u32) -> Option<u32> {
        Some(self.loads.get(rank as usize)?.requests)
    }

    fn add(&mut self, rank: u32, tokens: u64) {
        if let Some(load) = self.loads.get_mut(rank as usize) {
            load.requests = load.requests.saturating_add(1);
            load.tokens = load.tokens.saturating_add(tokens);
        }
    }

    /// The rank of a session; one that does not exist any more counts as none.
    fn bound(&self, key: AffinityKey) -> Option<u32> {
        self.bindings
            .peek(key)
            .filter(|&rank| self.requests(rank).is_some())
    }

    fn bind(&mut self, key: AffinityKey, rank: u32) {
        if self.bindings.insert(key, rank).is_some() {
            self.evictions += 1;
        }
    }
}

#[cfg(test)]
mod tests;
