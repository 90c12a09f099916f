//! Whether an instance is usable, and since when.
//!
//! Decides by three things that do not know of each other: probes (down after some bad ones in a row,
//! up again after some good ones), what requests meet (ejected for a while, by the `breaker`) and an
//! operator's word (draining). What a pick looks at is one word that is read without a lock; it
//! changes under one. It does no I/O: whoever probes or calls brings what came of it. It must never
//! take the last usable instance of a fleet out for what its requests met.

mod fleet_health;
mod standing;

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::breaker::{Breaker, Observation, TooMuch};
use crate::{
    config::{DrainMode, HealthConfig},
    telemetry::{self, labels::EjectionCause},
};
pub use fleet_health::FleetHealth;
pub use standing::Standing;

/// Down by probes.
const DOWN: u32 = 1;
/// Out for what its requests met, until [`Health::until`].
const EJECTED: u32 = 1 << 1;
/// Nothing new is bound to it.
const NO_BINDINGS: u32 = 1 << 2;
/// Nothing at all is sent to it.
const NO_REQUESTS: u32 = 1 << 3;
/// It came back at [`Health::back`] and gets less than its share.
const SLOW: u32 = 1 << 4;

const ILL: u32 = DOWN | EJECTED;
const DRAINING: u32 = NO_BINDINGS | NO_REQUESTS;

/// The least share of its own that an instance gets of what is new when it has just come back.
const LEAST_WEIGHT: f64 = 0.05;

/// One instance's health.
pub struct Health {
    standing: AtomicU32,
    /// Milliseconds as of [`millis`].
    until: AtomicU64,
    back: AtomicU64,
    losses: AtomicU32,
    lost: Notify,
    record: Mutex<Record>,
    fleet: Arc<FleetHealth>,
    /// The instance's names, for the log.
    alias: Arc<str>,
    address: Arc<str>,
}

/// What the standing is made of.
struct Record {
    good_probes: u32,
    bad_probes: u32,
    /// Why the last probe was bad.
    probed: String,
    breaker: Breaker,
    ejected: Option<TooMuch>,
    /// The configuration's word and the operator's.
    draining: [Option<DrainMode>; 2],
    /// It belongs to no fleet any more.
    left: bool,
}

/// What changed by a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    Down,
    Up,
}

/// Who asks for an instance to be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainedBy {
    Configuration = 0,
    Operator = 1,
}

impl Health {
    pub(super) fn new(alias: &Arc<str>, address: &Arc<str>, fleet: &Arc<FleetHealth>) -> Self {
        Self {
            standing: AtomicU32::new(0),
            until: AtomicU64::new(0),
            back: AtomicU64::new(0),
            losses: AtomicU32::new(0),
            lost: Notify::new(),
            record: Mutex::new(Record {
                good_probes: 0,
                bad_probes: 0,
                probed: String::new(),
                breaker: Breaker::new(Instant::now()),
                ejected: None,
                draining: [None; 2],
                left: false,
            }),
            fleet: fleet.clone(),
            alias: alias.clone(),
            address: address.clone(),
        }
    }

    /// Whether it takes what is new: it is not down, not ejected and not draining.
    pub fn is_usable(&self) -> bool {
        self.standing() & (ILL | DRAINING) == 0
    }

    /// Whether something new may go to it; `ignored` says that the fleet's health is ignored, since
    /// nothing in it is usable.
    pub fn takes_new(&self, ignored: bool) -> bool {
        let against = if ignored { DRAINING } else { ILL | DRAINING };
        self.standing() & against == 0
    }

    /// Whether a request of a session that is bound to it may go to it; `ignored` as above.
    pub fn takes_bound(&self, ignored: bool) -> bool {
        let against = if ignored {
            NO_REQUESTS
        } else {
            ILL | NO_REQUESTS
        };
        self.standing() & against == 0
    }

    /// Whether it is being emptied.
    pub fn is_draining(&self) -> bool {
        self.standing.load(Ordering::Relaxed) & DRAINING != 0
    }

    /// The share of its own that it gets of what is new, 1 but for a while after it came back.
    pub fn weight(&self) -> f64 {
        if self.standing.load(Ordering::Relaxed) & SLOW == 0 {
            return 1.0;
        }
        self.weight_at(Instant::now())
    }

    fn weight_at(&self, now: Instant) -> f64 {
        let slow = self.fleet.slow_start().as_millis() as f64;
        let since = millis(now).saturating_sub(self.back.load(Ordering::Relaxed));
        let weight = since as f64 / slow;
        if weight < 1.0 {
            return weight.max(LEAST_WEIGHT);
        }
        self.standing.fetch_and(!SLOW, Ordering::Relaxed);
        1.0
    }

    /// An attempt of a leg ended.
    pub fn observe(&self, observation: Observation) {
        self.observe_at(observation, Instant::now());
    }

    pub(super) fn observe_at(&self, observation: Observation, now: Instant) {
        let rules = self.fleet.rules();
        if !rules.passive || self.standing_at(now) & ILL != 0 {
            return;
        }
        let mut record = self.record.lock();
        let too_much = record.breaker.observe(&rules.ejection, observation, now);
        let Some(too_much) = too_much.filter(|_| !record.left) else {
            return;
        };
        let is_out = self.standing.load(Ordering::Relaxed) & (ILL | DRAINING) != 0;
        if is_out || !self.fleet.eject(rules.ejection.max_ejected) {
            return;
        }
        let until = record.breaker.eject(&rules.ejection, now);
        record.ejected = Some(too_much);
        self.until.store(millis(until), Ordering::Relaxed);
        self.standing.fetch_and(!SLOW, Ordering::Relaxed);
        self.standing.fetch_or(EJECTED, Ordering::Relaxed);
        let ejections = &telemetry::metrics().ejections;
        ejections.inc((self.fleet.label(), too_much.cause));
        tracing::warn!(
            instance = &*self.alias,
            address = &*self.address,
            seconds = (until - now).as_secs_f64(),
            "an instance is ejected: {}",
            too_much.words()
        );
        drop(record);
        // Where it answers with errors, what it still works on may end well.
        if too_much.cause != EjectionCause::ServerError {
            self.lose();
        }
    }

    /// A probe ended, with the reason where it was bad.
    pub fn probed(&self, outcome: Result<(), String>) -> Change {
        self.probed_at(outcome, Instant::now())
    }

    pub(super) fn probed_at(&self, outcome: Result<(), String>, now: Instant) -> Change {
        let rules = self.fleet.rules();
        let mut record = self.record.lock();
        let down = self.standing.load(Ordering::Relaxed) & DOWN != 0;
        match outcome {
            Ok(()) => {
                record.bad_probes = 0;
                record.good_probes = record.good_probes.saturating_add(1);
                if down && record.good_probes >= rules.healthy_after {
                    record.breaker.forget();
                    self.comes_back(&record, DOWN, &rules, now);
                    return Change::Up;
                }
            }
            Err(reason) => {
                record.good_probes = 0;
                record.bad_probes = record.bad_probes.saturating_add(1);
                record.probed = reason;
                if !down && record.bad_probes >= rules.unhealthy_after {
                    self.set(&record, DOWN, SLOW);
                    drop(record);
                    self.lose();
                    return Change::Down;
                }
            }
        }
        Change::Nothing
    }

    /// What follows from other rules: nothing is held against an instance any more that is no reason
    /// by them.
    pub(super) fn apply(&self, rules: &HealthConfig) {
        let mut record = self.record.lock();
        if !rules.active {
            (record.bad_probes, record.good_probes) = (0, 0);
            self.set(&record, 0, DOWN);
        }
        if !rules.passive {
            record.ejected = None;
            self.set(&record, 0, EJECTED);
        }
        if rules.slow_start.is_zero() {
            self.set(&record, 0, SLOW);
        }
    }

    /// Empties the instance, or ends that with `None`. Of two words the stricter counts.
    pub fn drain(&self, by: DrainedBy, mode: Option<DrainMode>) {
        let mut record = self.record.lock();
        if let Some(word) = record.draining.get_mut(by as usize) {
            *word = mode;
        }
        let bits = match record.draining.iter().flatten().max() {
            None => 0,
            Some(DrainMode::NewBindings) => NO_BINDINGS,
            Some(DrainMode::NewRequests) => DRAINING,
        };
        self.set(&record, bits, DRAINING & !bits);
    }

    /// It belongs to no fleet any more.
    pub fn leave(&self) {
        let mut record = self.record.lock();
        if std::mem::replace(&mut record.left, true) {
            return;
        }
        self.fleet.left(self.standing.load(Ordering::Relaxed));
        drop(record);
        self.lose();
    }

    /// How often it was lost so far.
    pub(super) fn losses(&self) -> u32 {
        self.losses.load(Ordering::Acquire)
    }

    /// Waits until it was lost more often than `seen`.
    pub(super) async fn lost_since(&self, seen: u32) {
        loop {
            let mut lost = std::pin::pin!(self.lost.notified());
            lost.as_mut().enable();
            if self.losses() != seen {
                return;
            }
            lost.await;
        }
    }

    fn lose(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
        self.lost.notify_waiters();
    }

    /// The standing now.
    fn standing(&self) -> u32 {
        let bits = self.standing.load(Ordering::Relaxed);
        if bits & EJECTED == 0 {
            return bits;
        }
        self.standing_at(Instant::now())
    }

    /// The standing at a time, which may end an ejection.
    fn standing_at(&self, now: Instant) -> u32 {
        let bits = self.standing.load(Ordering::Relaxed);
        if bits & EJECTED == 0 || millis(now) < self.until.load(Ordering::Relaxed) {
            return bits;
        }
        let mut record = self.record.lock();
        let is_over = millis(now) >= self.until.load(Ordering::Relaxed);
        if is_over && record.ejected.take().is_some() {
            let (instance, address) = (&*self.alias, &*self.address);
            tracing::info!(
                instance,
                address,
                "an instance is in again after its ejection"
            );
            self.comes_back(&record, EJECTED, &self.fleet.rules(), now);
        }
        self.standing.load(Ordering::Relaxed)
    }

    /// Takes away what stood against it.
    fn comes_back(&self, record: &Record, reason: u32, rules: &HealthConfig, now: Instant) {
        self.back.store(millis(now), Ordering::Relaxed);
        let slow = if rules.slow_start.is_zero() { 0 } else { SLOW };
        self.set(record, slow, reason);
    }

    /// Changes the standing, and the fleet's counts with it. The record is that of the lock.
    fn set(&self, record: &Record, on: u32, off: u32) {
        let before = self.standing.load(Ordering::Relaxed);
        self.standing.fetch_and(!off, Ordering::Relaxed);
        let after = self.standing.fetch_or(on, Ordering::Relaxed) | on;
        if !record.left {
            self.fleet.changed(before, after);
        }
    }
}

/// A time as a number, so that it can be read without a lock.
fn millis(at: Instant) -> u64 {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    let since = at.saturating_duration_since(*EPOCH).as_millis();
    u64::try_from(since).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
