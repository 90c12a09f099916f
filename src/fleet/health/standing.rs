//! An instance's standing in words, for an operator.

use super::{DOWN, DRAINING, EJECTED, Health, ILL, SLOW};
use crate::{config::DrainMode, fleet::breaker::TooMuch};

/// An instance's standing in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// `usable`, `slow_start`, `draining`, `ejected`, `down` or `removed`.
    pub name: &'static str,
    /// Whether it takes new requests.
    pub usable: bool,
    pub why: Option<String>,
    pub draining: Option<DrainMode>,
}

impl Health {
    /// The standing in words.
    pub fn describe(&self) -> Standing {
        let bits = self.standing();
        let record = self.record.lock();
        let draining = record.draining.iter().flatten().max().copied();
        let (name, why) = if record.left {
            ("removed", None)
        } else if bits & DOWN != 0 {
            let reason = &record.probed;
            let why = format!("{} bad probes in a row: {reason}", record.bad_probes);
            ("down", Some(why))
        } else if bits & EJECTED != 0 {
            ("ejected", record.ejected.map(|too_much| too_much.words()))
        } else if let Some(mode) = draining {
            ("draining", Some(format!("it takes no {}", mode.words())))
        } else if bits & SLOW != 0 && self.weight() < 1.0 {
            ("slow_start", Some("it came back a moment ago".to_owned()))
        } else {
            ("usable", None)
        };
        Standing {
            name,
            usable: !record.left && bits & (ILL | DRAINING) == 0,
            why,
            draining,
        }
    }
}

impl TooMuch {
    pub(super) fn words(&self) -> String {
        let Self { cause, failed, of } = self;
        format!("{failed} of {of} requests failed ({cause})")
    }
}

impl DrainMode {
    fn words(self) -> &'static str {
        match self {
            Self::NewBindings => "new bindings",
            Self::NewRequests => "new requests",
        }
    }
}
