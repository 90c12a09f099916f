//! When an instance counts as usable, and when a bound one as full.

use std::{collections::BTreeMap, time::Duration};

/// `health`: how instances are judged. The default is what a file without the section gets.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthConfig {
    /// `health.active`: whether instances are probed.
    pub active: bool,
    /// `health.path`: what is asked for; a status of 200 to 299 is a good answer.
    pub path: String,
    /// `health.interval`, from one probe of an instance to the next, give or take a tenth.
    pub interval: Duration,
    /// `health.timeout`, of one probe.
    pub timeout: Duration,
    /// `health.unhealthy_after`: bad probes in a row that make an instance count as down.
    pub unhealthy_after: u32,
    /// `health.healthy_after`: good probes in a row that make it count as up again.
    pub healthy_after: u32,
    /// `health.slow_start`: how long an instance that came back gets less than its share of what is
    /// new; zero turns that off.
    pub slow_start: Duration,
    /// `health.passive`: whether an instance is ejected for what its requests meet.
    pub passive: bool,
    pub ejection: EjectionConfig,
}

/// `health.ejection`: when what requests meet makes an instance sit out.
#[derive(Debug, Clone, PartialEq)]
pub struct EjectionConfig {
    /// `window`: how long a request's end is remembered.
    pub window: Duration,
    /// `min_requests` that ended within the window; with fewer an instance is not judged.
    pub min_requests: u32,
    /// `failure_share` of them that failed for one and the same cause.
    pub failure_share: f64,
    /// `time` of the first ejection; doubled for each further one.
    pub time: Duration,
    /// `max_time` of an ejection. After as long without one the next is the first again.
    pub max_time: Duration,
    /// `max_ejected`: the share of a fleet that sits out at once, one instance at least; never the
    /// last usable one.
    pub max_ejected: f64,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            active: true,
            path: "/health".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            unhealthy_after: 3,
            healthy_after: 2,
            slow_start: Duration::from_secs(30),
            passive: true,
            ejection: EjectionConfig::default(),
        }
    }
}

impl Default for EjectionConfig {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(30),
            min_requests: 10,
            failure_share: 0.5,
            time: Duration::from_secs(10),
            max_time: Duration::from_secs(300),
            max_ejected: 0.5,
        }
    }
}

/// `affinity.overflow`: when the instance that a request is bound to is full. Without a bound it
/// never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverflowConfig {
    /// Requests in flight on one instance.
    pub max_in_flight: Option<u64>,
    /// Estimated prompt tokens in flight on one instance.
    pub max_tokens: Option<u64>,
}

/// What an instance that is being emptied still takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainMode {
    /// `new_bindings`: requests of sessions that are bound to it, and nothing new.
    NewBindings,
    /// `new_requests`: nothing; sessions that are bound to it fail over.
    NewRequests,
}

impl DrainMode {
    /// Every mode by its name.
    pub const BY_NAME: [(&'static str, Self); 2] = [
        ("new_bindings", Self::NewBindings),
        ("new_requests", Self::NewRequests),
    ];

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut modes = Self::BY_NAME.into_iter();
        modes.find_map(|(known, mode)| (known == name).then_some(mode))
    }

    /// Its name in files and paths.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewBindings => "new_bindings",
            Self::NewRequests => "new_requests",
        }
    }
}

/// `draining` of a fleet: the instances that are being emptied, by address.
pub type Draining = BTreeMap<String, DrainMode>;
