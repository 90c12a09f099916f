//! The choice itself: scores, caps, pins and turns.
//!
//! Decides among the usable instances that are not at their cap or full, or among all of them if every
//! one is: the pinned one wins, else the one with the best score; of several, in the fleet's order, the
//! one that the count of picks so far falls on. It knows of blocks only how far each instance holds the
//! prompt.

use std::sync::Arc;

use super::{
    blocks::Slot,
    pin,
    workers::{Worker, Workers},
};
use crate::{
    affinity::{AffinityKey, SharedTable},
    config::KvCacheAwareConfig,
    fleet::{Fleet, Instance, InstanceId},
    routing::{
        Decision, Query, RouteError, exhausted,
        kv_hash::{Family, HashAlgo},
        slow_start,
    },
};

/// What is remembered from one choice to the next.
#[derive(Debug)]
pub(super) struct Choice {
    pins: SharedTable<InstanceId>,
    evictions: u64,
    /// Picks so far.
    turn: u64,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            pins: SharedTable::new(pin::PINS),
            evictions: 0,
            turn: 0,
        }
    }
}

/// A prompt's block hashes in each family that is in use, and how far each slot holds them.
pub(super) struct Held([Option<(Vec<u64>, Vec<u32>)>; 2]);

impl Held {
    pub(super) fn of(look_up: impl Fn(Family) -> Option<(Vec<u64>, Vec<u32>)>) -> Self {
        Self([Family::V1, Family::Sha256].map(look_up))
    }

    fn depth(&self, family: Family, slot: Slot) -> u32 {
        let depths = self.0[family as usize].as_ref().map(|(_, depths)| depths);
        let depth = depths.and_then(|depths| depths.get(usize::from(slot)));
        depth.copied().unwrap_or(0)
    }

    /// The hashes, which are not needed here any more.
    pub(super) fn take(&mut self, family: Family) -> Vec<u64> {
        let held = self.0[family as usize].take();
        held.map(|(hashes, _)| hashes).unwrap_or_default()
    }
}

/// What a choice goes by.
pub(super) struct Rules<'r> {
    pub(super) config: &'r KvCacheAwareConfig,
    pub(super) workers: &'r Workers,
    pub(super) held: &'r Held,
}

/// The outcome of a choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen<'f> {
    pub(super) instance: &'f Arc<Instance>,
    pub(super) family: Family,
    /// Leading blocks of the prompt that it holds.
    pub(super) depth: u32,
    pub(super) tokens_per_block: u32,
    pub(super) decision: Decision,
    /// Some instance of the fleet has no slot yet.
    pub(super) unknown: bool,
}

impl Choice {
    /// Chooses, and moves the pin to the instance that is chosen, unless the pinned one is avoided
    /// this once or is full.
    pub(super) fn choose<'f>(
        &mut self,
        fleet: &'f Fleet,
        query: &Query<'_>,
        pin: Option<AffinityKey>,
        rules: &Rules<'_>,
    ) -> Result<Chosen<'f>, RouteError> {
        let pinned = pin.and_then(|pin| self.pins.get_touch(query.scope, pin));
        let mut offers = Offers::of(fleet, query, pinned, Some(self.turn), rules);
        if offers.best.tied.is_empty() {
            offers = Offers::of(fleet, query, pinned, None, rules);
        }
        let winner = offers.best.winner(self.turn).ok_or_else(|| {
            if offers.only_unfit {
                RouteError::Unfit { role: fleet.role() }
            } else {
                exhausted(fleet)
            }
        })?;
        self.turn = self.turn.wrapping_add(1);
        let bound = pinned == Some(winner.instance.id);
        let overflow = pinned.is_some_and(|pinned| {
            !bound
                && (offers.pinned_full || query.avoids_once(pinned) && fleet.get(pinned).is_some())
        });
        if let Some(pin) = pin.filter(|_| !overflow) {
            let evicted = self.pins.insert(query.scope, pin, winner.instance.id);
            self.evictions += u64::from(evicted.is_some());
        }
        Ok(Chosen {
            instance: winner.instance,
            family: winner.family,
            depth: winner.depth,
            tokens_per_block: rules.workers.tokens_per_block(),
            decision: match (pin, pinned) {
                (None, _) => Decision::Unkeyed,
                (_, None) => Decision::New,
                _ if overflow => Decision::Overflow,
                _ if bound => Decision::Bound,
                _ => Decision::Failover,
            },
            unknown: offers.unknown,
        })
    }

    /// What one client's pins may fill of the table at most.
    pub(super) fn set_share(&mut self, share: f64) {
        self.pins.set_share(share);
    }

    /// Drops the pins to instances that do not stay. Linear in the pins.
    pub(super) fn keep_pins(&mut self, stays: impl Fn(InstanceId) -> bool) {
        self.pins.retain(|_, instance| stays(instance));
    }

    /// Pins held.
    pub(super) fn pins(&self) -> usize {
        self.pins.len()
    }

    /// Pins dropped so far because there were too many.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }
}

/// What the instances of a fleet have to offer to one request.
struct Offers<'f> {
    best: Best<'f>,
    only_unfit: bool,
    unknown: bool,
    pinned_full: bool,
}

impl<'f> Offers<'f> {
    /// Looks at every instance. With a `turn`, those that came back a moment ago are held back.
    fn of(
        fleet: &'f Fleet,
        query: &Query<'_>,
        pinned: Option<InstanceId>,
        turn: Option<u64>,
        rules: &Rules<'_>,
    ) -> Self {
        let mut offers = Self {
            best: Best::default(),
            only_unfit: true,
            unknown: false,
            pinned_full: false,
        };
        let ignored = fleet.ignores_health();
        for instance in fleet.instances() {
            let worker = rules.workers.get(instance.id);
            offers.unknown |= worker.is_none();
            if worker.is_some_and(|worker| worker.unfit.is_some()) {
                continue;
            }
            offers.only_unfit = false;
            let (health, is_pinned) = (instance.health(), Some(instance.id) == pinned);
            let takes = if is_pinned {
                health.takes_bound(ignored)
            } else {
                health.takes_new(ignored)
            };
            if !takes || query.excludes(instance.id) {
                continue;
            }
            let active = instance.in_flight();
            let counted = match turn.filter(|_| !is_pinned) {
                Some(turn) => slow_start::load(instance, turn, active),
                None => Some(active),
            };
            let full = fleet.is_full(instance);
            offers.pinned_full |= full && is_pinned;
            if let Some(active) = counted {
                let rated = rules.rate(instance, worker, active, full);
                offers.best.offer(rated, is_pinned);
            }
        }
        offers
    }
}

impl Rules<'_> {
    fn rate<'f>(
        &self,
        instance: &'f Arc<Instance>,
        worker: Option<&Worker>,
        active: u64,
        full: bool,
    ) -> Rated<'f> {
        let algo = worker.map_or_else(HashAlgo::default, |worker| worker.algo);
        let family = algo.family();
        let depth = worker.map_or(0, |worker| self.held.depth(family, worker.slot));
        let active = active as f64;
        Rated {
            instance,
            family,
            depth,
            score: f64::from(depth) - self.config.load_weight * active,
            full: full || active / f64::from(self.config.max_batch_size) >= self.config.load_cap,
        }
    }
}

/// An instance that may be chosen.
#[derive(Debug, Clone, Copy)]
struct Rated<'f> {
    instance: &'f Arc<Instance>,
    family: Family,
    depth: u32,
    score: f64,
    /// It is at its cap, or full.
    full: bool,
}

/// The instances with the best score so far, and the pinned one; full ones only while there is no
/// other.
#[derive(Debug, Default)]
struct Best<'f> {
    tied: Vec<Rated<'f>>,
    pinned: Option<Rated<'f>>,
}

impl<'f> Best<'f> {
    fn offer(&mut self, rated: Rated<'f>, is_pinned: bool) {
        match self.tied.first() {
            Some(first) if rated.full && !first.full => return,
            Some(first) if first.full && !rated.full => *self = Self::default(),
            _ => {}
        }
        if is_pinned {
            self.pinned = Some(rated);
        }
        let best = self
            .tied
            .first()
            .map_or(f64::NEG_INFINITY, |first| first.score);
        if rated.score > best {
            self.tied.clear();
        }
        if rated.score >= best {
            self.tied.push(rated);
        }
    }

    fn winner(self, turn: u64) -> Option<Rated<'f>> {
        let turned = turn.checked_rem(self.tied.len() as u64)?;
        self.pinned.or(self.tied.get(turned as usize).copied())
    }
}
