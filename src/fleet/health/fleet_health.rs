//! What the instances of one fleet have in common: the rules they are judged by, and how many are out.
//!
//! Decides whether one more may sit out. It outlives every snapshot of the fleet, as instances do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use super::{DRAINING, EJECTED, ILL};
use crate::{config::HealthConfig, telemetry::labels::FleetLabel};

/// The health of a fleet.
#[derive(Debug)]
pub struct FleetHealth {
    label: FleetLabel,
    rules: RwLock<Arc<HealthConfig>>,
    slow_start: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    members: usize,
    /// Down, ejected or draining.
    out: usize,
    ejected: usize,
}

impl FleetHealth {
    /// Of a fleet without instances, with the default rules.
    pub fn new(label: FleetLabel) -> Self {
        let rules = HealthConfig::default();
        Self {
            label,
            slow_start: AtomicU64::new(whole_millis(rules.slow_start)),
            rules: RwLock::new(Arc::new(rules)),
            counts: Mutex::default(),
        }
    }

    /// What the fleet is called in metrics.
    pub fn label(&self) -> FleetLabel {
        self.label
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<HealthConfig> {
        self.rules.read().clone()
    }

    /// How long an instance that came back gets less than its share.
    pub fn slow_start(&self) -> Duration {
        Duration::from_millis(self.slow_start.load(Ordering::Relaxed))
    }

    pub(in crate::fleet) fn set_rules(&self, rules: &HealthConfig) {
        let slow_start = whole_millis(rules.slow_start);
        self.slow_start.store(slow_start, Ordering::Relaxed);
        *self.rules.write() = Arc::new(rules.clone());
    }

    /// An instance came.
    pub(in crate::fleet) fn joined(&self) {
        self.counts.lock().members += 1;
    }

    /// An instance with this standing left.
    pub(super) fn left(&self, standing: u32) {
        let mut counts = self.counts.lock();
        counts.members = counts.members.saturating_sub(1);
        counts.move_from(standing, 0);
    }

    /// An instance's standing changed.
    pub(super) fn changed(&self, before: u32, after: u32) {
        let is_counted = |bits| bits & (ILL | DRAINING);
        if is_counted(before) != is_counted(after) {
            self.counts.lock().move_from(before, after);
        }
    }

    /// Counts a usable instance as ejected, unless too many are or no other one is usable; `false`
    /// then.
    pub(super) fn eject(&self, max_ejected: f64) -> bool {
        let mut counts = self.counts.lock();
        let most = (counts.members as f64 * max_ejected).floor().max(1.0);
        let may = (counts.ejected + 1) as f64 <= most && counts.out + 1 < counts.members;
        if may {
            counts.move_from(0, EJECTED);
        }
        may
    }
}

impl Counts {
    fn move_from(&mut self, before: u32, after: u32) {
        for (count, reason) in [
            (&mut self.out, ILL | DRAINING),
            (&mut self.ejected, EJECTED),
        ] {
            let (was, is) = (before & reason != 0, after & reason != 0);
            *count = (*count + usize::from(is)).saturating_sub(usize::from(was));
        }
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
