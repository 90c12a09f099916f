//! The instance that holds most of a prompt's KV cache (specification section 2.4).
//!
//! Decides by the blocks that each instance is known to hold, less a weight for what is in flight on
//! it, and keeps requests that begin alike together. What is known comes from requests that ended
//! well and from the workers' events; both are brought by the caller, since nothing here does I/O.
//! A request without token ids is left to a conversation router inside; it must never fail for want
//! of them.

mod blocks;
mod choice;
mod events;
mod pin;
mod workers;

use parking_lot::{Mutex, RwLock};

use super::{
    Conversation, Pick, Query, RouteError, exhausted,
    kv_hash::{Family, HashAlgo, Salt, block_hashes},
};
use crate::{
    affinity::AffinityKey,
    config::{ConversationConfig, KvCacheAwareConfig},
    fleet::{Fleet, InstanceId},
    telemetry::{self, labels::FallbackReason},
    wire::prompt::{Kind, Prompt},
};
use blocks::Blocks;
use choice::{Choice, Held, Rules};
pub use events::{Change, Event};
use workers::Workers;
pub use workers::{Learned, Unfit, WorkerFacts};

/// The `kv_cache_aware` router.
#[derive(Debug)]
pub struct KvCacheAware {
    config: RwLock<KvCacheAwareConfig>,
    workers: RwLock<Workers>,
    blocks: Blocks,
    /// Held while a pick is made, so that requests that arrive together see each other. Taken before
    /// the lock of the workers.
    choice: Mutex<Choice>,
    /// Places what has no token ids.
    conversation: Conversation,
}

/// What the router knew of a prompt when it placed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvMatch {
    /// Tokens of the prompt whose cache the instance holds, in whole blocks: it can be more than
    /// there are, by less than a block.
    pub match_length: u64,
    /// Tokens of the prompt.
    pub num_tokens: u64,
    family: Family,
    blocks: Vec<u64>,
}

impl KvMatch {
    /// Whether the prompt needs a context leg, or may be served whole by the generation instance
    /// that holds nearly all of it (specification section 4.6).
    pub fn needs_context(&self, max_local_prefill_length: u64) -> bool {
        let missing = self.num_tokens.saturating_sub(self.match_length);
        self.match_length == 0 || missing > max_local_prefill_length
    }
}

impl KvCacheAware {
    pub fn new(config: &KvCacheAwareConfig) -> Self {
        Self {
            config: RwLock::new(config.clone()),
            workers: RwLock::new(Workers::new(config.tokens_per_block)),
            blocks: Blocks::default(),
            choice: Mutex::default(),
            conversation: Conversation::new(&ConversationConfig::default()),
        }
    }

    /// Chooses an instance for the request's tokens, or for its session where it has no tokens.
    pub fn route(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        if fleet.is_empty() {
            return Err(exhausted(fleet));
        }
        let Some(tokens) = query.tokens else {
            return self.fall_back(fleet, query);
        };
        let mut held = self.look_up(tokens, query.prompt);
        let pin = pin::of(query.prompt).map(AffinityKey::of_content);
        let (chosen, load) = {
            let config = self.config.read().clone();
            let mut choice = self.choice.lock();
            let workers = self.workers.read();
            let rules = Rules {
                config: &config,
                workers: &workers,
                held: &held,
            };
            let chosen = choice.choose(fleet, query, pin, &rules)?;
            (
                chosen,
                chosen.instance.reserve((tokens.len() as u64).max(1)),
            )
        };
        if chosen.unknown {
            self.admit(fleet);
        }
        let kv = KvMatch {
            match_length: u64::from(chosen.depth) * u64::from(chosen.tokens_per_block),
            num_tokens: tokens.len() as u64,
            family: chosen.family,
            blocks: held.take(chosen.family),
        };
        Ok(Pick {
            load,
            decision: chosen.decision,
            kv: Some(Box::new(kv)),
        })
    }

    /// Gives every instance a slot.
    fn admit(&self, fleet: &Fleet) {
        let gone = self.workers.write().admit(fleet);
        self.release(gone);
    }

    /// Makes the slots of removed instances free for others. Nothing is added for them any more,
    /// since that is done only while the instance is known.
    fn release(&self, gone: Vec<blocks::Slot>) {
        if !gone.is_empty() {
            self.blocks.forget(&gone);
            self.workers.write().release(gone);
        }
    }

    fn look_up(&self, tokens: &[u32], prompt: &Prompt<'_>) -> Held {
        let (size, slots, used) = {
            let workers = self.workers.read();
            let used = [Family::V1, Family::Sha256].map(|family| workers.use_family(family));
            (workers.tokens_per_block(), workers.slots(), used)
        };
        let salt = prompt.cache_salt().map(|salt| Salt::of(&salt));
        Held::of(|family| {
            used[family as usize].then(|| {
                let hashes = block_hashes(family, tokens, size, salt);
                let depths = self.blocks.depths(&hashes, slots);
                (hashes, depths)
            })
        })
    }

    /// Leaves a request without token ids to the conversation router.
    fn fall_back(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        let reason = match query.prompt.kind() {
            Kind::Nothing => FallbackReason::NoPrompt,
            Kind::Chat => FallbackReason::ChatWithoutTokens,
            Kind::Completion => FallbackReason::CompletionWithoutTokens,
        };
        let metrics = telemetry::metrics();
        metrics.router_fallbacks.inc((fleet.label(), reason));
        let fit = {
            let workers = self.workers.read();
            if !workers.any_unfit() {
                drop(workers);
                return self.conversation.route(fleet, query);
            }
            fleet.only(|instance| workers.fit(instance.id))
        };
        if fit.is_empty() {
            return Err(RouteError::Unfit { role: fleet.role() });
        }
        self.conversation.route(&fit, query)
    }

    /// Takes over what an instance's worker says of itself; to be called when an instance is new and
    /// when its worker may have been started anew.
    ///
    /// # Errors
    /// Why the instance gets no requests until it says otherwise.
    pub fn learn(&self, instance: InstanceId, facts: &WorkerFacts) -> Result<Learned, Unfit> {
        self.workers.write().learn(instance, facts)
    }

    /// Whether there is a use in asking this instance's worker for its events. Reading them takes
    /// them from the worker, so it should be left alone otherwise.
    pub fn wants_events(&self, instance: InstanceId) -> bool {
        let workers = self.workers.read();
        let worker = workers.get(instance);
        worker.is_some_and(|worker| workers.aligned(worker))
    }

    /// Takes over what an instance's worker tells of its cache, in the worker's order. Events whose
    /// blocks are not the router's, and those in an algorithm that is not known, change nothing.
    pub fn apply_events(&self, instance: InstanceId, events: &[Event]) {
        for event in events {
            let named = event.hash_algo.as_deref();
            let algo = match named.map(HashAlgo::from_name) {
                Some(None) => continue,
                Some(Some(algo)) => Some(algo),
                None => None,
            };
            if let Some(algo) = algo {
                self.name_blocks_by(instance, algo);
            }
            // Held while blocks change, so that the slot stays this instance's.
            let workers = self.workers.read();
            let Some(worker) = workers
                .get(instance)
                .filter(|worker| workers.aligned(worker))
            else {
                return;
            };
            match event.change {
                Change::Stored => self.blocks.add(worker.slot, &event.blocks),
                Change::Removed => self.blocks.remove(worker.slot, &event.blocks),
                Change::Created | Change::Updated | Change::Unknown => {}
            }
        }
    }

    fn name_blocks_by(&self, instance: InstanceId, algo: HashAlgo) {
        let known = self.workers.read().get(instance).map(|worker| worker.algo);
        if known.is_some_and(|known| known != algo) {
            self.workers.write().switch(instance, algo);
        }
    }

    /// The request of this pick is over. After a success its instance holds the prompt's blocks.
    pub fn finished(&self, pick: &Pick, success: bool) {
        let Some(kv) = pick.kv.as_ref().filter(|_| success) else {
            return;
        };
        if !self.config.read().track_routed_blocks {
            return;
        }
        let workers = self.workers.read();
        let worker = workers.get(pick.load.instance().id);
        if let Some(worker) = worker.filter(|worker| worker.algo.family() == kv.family) {
            self.blocks.add(worker.slot, &kv.blocks);
        }
    }

    /// Takes new settings over; what is known stays.
    pub fn reconfigure(&self, config: &KvCacheAwareConfig) {
        *self.config.write() = config.clone();
        self.workers.write().configure(config.tokens_per_block);
    }

    /// See [`Router::forget`](super::Router::forget).
    pub fn forget(&self, removed: &[InstanceId]) {
        self.conversation.forget(removed);
        let mut sorted = removed.to_vec();
        sorted.sort_unstable();
        let stays = |instance| sorted.binary_search(&instance).is_err();
        self.choice.lock().keep_pins(stays);
        let gone = self.workers.write().remove(removed);
        self.release(gone);
    }

    /// As [`Conversation::set_share`], of the pins too.
    pub fn set_share(&self, share: f64) {
        self.choice.lock().set_share(share);
        self.conversation.set_share(share);
    }

    /// Pins, and bindings of requests without token ids.
    pub fn bindings(&self) -> usize {
        self.choice.lock().pins() + self.conversation.bindings()
    }

    /// Pins and bindings dropped so far because a table was full.
    pub fn evictions(&self) -> u64 {
        self.choice.lock().evictions() + self.conversation.evictions()
    }

    /// The block size in force.
    pub fn tokens_per_block(&self) -> u32 {
        self.workers.read().tokens_per_block()
    }

    /// How the first instance that has told names blocks; upstream's default until one has.
    pub fn hash_algo(&self) -> HashAlgo {
        self.workers.read().hash_algo()
    }

    /// Blocks that are known, each counted once however many instances hold it.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks dropped so far because the index was full.
    pub fn blocks_dropped(&self) -> u64 {
        self.blocks.dropped()
    }

    /// The router of requests without token ids.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }
}

#[cfg(test)]
mod tests;
