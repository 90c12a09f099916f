//! Whether, when and where a leg is tried again.
//!
//! The budget is upstream's `max_retries`: attempts after the first, for each leg. A failed attempt
//! moves to another instance where one can serve it, and takes its key along only from an instance
//! that cannot be reached; another attempt where one was made before waits first. A generation
//! request whose KV cache waits for it must not move once its worker may have asked for that cache.
//! Nothing here is asked once a byte of the answer has gone to the client.

use std::time::Duration;

use http::{HeaderMap, header};

use super::live::Live;
use crate::{
    config::Timeouts,
    fleet::{Fleet, InstanceId, Observation},
    http::{reply::Failure, upstream::CallError},
    routing::Exclusion,
    telemetry::labels::RetryReason,
};

/// How long a worker may take to notice that nobody waits for a request any more (specification
/// section 4.9). The same id may not come back before.
const NOTICED: Duration = Duration::from_secs(1);

/// How an attempt failed.
pub struct Failed {
    /// What the client is to be told if it is the last one.
    pub failure: Failure,
    /// Why another one may do better; `None` where none can.
    pub cause: Option<Cause>,
}

impl Failed {
    /// Whatever is tried, it ends like this.
    pub fn finally(failure: Failure) -> Self {
        Self {
            failure,
            cause: None,
        }
    }
}

/// Why an attempt failed that may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Nothing was sent.
    Connect,
    /// The connection ended, and no byte of an answer had come.
    Reset,
    /// As that, of a pooled connection: most likely it was dead already.
    Unheard,
    /// The connection ended within the head of an answer.
    Cut,
    /// The attempt's deadline passed.
    Timeout,
    /// The worker answered, and not well.
    Refused {
        status: u16,
        /// Its `Retry-After`.
        wait: Option<Duration>,
    },
    /// The instance was taken out or has left the fleet.
    Lost,
}

/// What kind of request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A context request; each attempt has an id of its own, and none of an answer is told before
    /// it is whole.
    Context,
    /// A request for an answer that any instance of the fleet can give.
    Free,
    /// A generation request whose KV cache waits at a context worker, for one that asks for its id.
    HandedOver,
}

/// Where another attempt may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At another instance if there is one, else at the same.
    Elsewhere,
    /// At another instance only.
    OnlyElsewhere,
    /// At the same instance only.
    Here,
}

impl Cause {
    /// What a call without an answer was about; `None` where another one would end like it.
    pub fn of_error(error: CallError) -> Option<Self> {
        match error {
            CallError::Connect | CallError::Tls | CallError::Unresolved => Some(Self::Connect),
            CallError::Reset => Some(Self::Reset),
            CallError::Unheard => Some(Self::Unheard),
            CallError::Cut => Some(Self::Cut),
            CallError::Timeout => Some(Self::Timeout),
            CallError::TooLarge | CallError::Protocol => None,
        }
    }

    /// What an answer that is no good one was about; `None` where it is final (specification section
    /// 4.8).
    pub fn of_answer(status: u16, headers: &HeaderMap) -> Option<Self> {
        if !matches!(status, 408 | 429 | 500..) {
            return None;
        }
        let wait = headers.get(header::RETRY_AFTER);
        let wait = wait.and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        Some(Self::Refused {
            status,
            wait: wait.map(Duration::from_secs),
        })
    }

    /// Whether the worker has surely not begun to work on the request: it was never there, or there
    /// was no room for it.
    fn is_before_work(self) -> bool {
        let no_room = |status| matches!(status, 408 | 429 | 503);
        self == Self::Connect || matches!(self, Self::Refused { status, .. } if no_room(status))
    }

    /// Where another attempt can work; `None` where none can.
    pub fn place(self, kind: Kind) -> Option<Place> {
        match (self, kind) {
            _ if self.is_before_work() => Some(Place::Elsewhere),
            // Waiting as long again at the same place helps nobody.
            (Self::Timeout | Self::Lost, Kind::Context | Kind::Free) => Some(Place::OnlyElsewhere),
            // The cache may have been fetched, and it can be fetched only once.
            (Self::Timeout | Self::Lost, Kind::HandedOver) => None,
            (Self::Reset | Self::Unheard | Self::Refused { .. }, Kind::HandedOver) => {
                Some(Place::Here)
            }
            (Self::Cut, Kind::Free | Kind::HandedOver) => None,
            _ => Some(Place::Elsewhere),
        }
    }

    /// What it says of the instance's health.
    pub fn observation(self) -> Option<Observation> {
        match self {
            Self::Connect => Some(Observation::Connect),
            Self::Reset | Self::Cut => Some(Observation::Reset),
            Self::Timeout => Some(Observation::Timeout),
            Self::Refused { status, .. } => Some(Observation::of_status(status)),
            Self::Unheard | Self::Lost => None,
        }
    }

    pub fn reason(self) -> RetryReason {
        match self {
            Self::Connect => RetryReason::Connect,
            Self::Reset | Self::Unheard | Self::Cut => RetryReason::Reset,
            Self::Timeout => RetryReason::Timeout,
            Self::Refused { .. } => RetryReason::Status,
            Self::Lost => RetryReason::Lost,
        }
    }

    /// The least pause before the same request may be sent to the same worker again.
    fn least_pause(self, kind: Kind) -> Duration {
        match (self, kind) {
            (Self::Reset | Self::Unheard, Kind::HandedOver) => NOTICED,
            (Self::Refused { wait, .. }, _) => wait.unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// The attempts of one leg.
#[derive(Debug)]
pub struct Attempts {
    left: u32,
    /// How many were made after the first.
    made: u32,
    /// Where they were made.
    tried: Vec<InstanceId>,
    replaced_connection: bool,
    first_pause: Duration,
    longest_pause: Duration,
}

impl Attempts {
    pub fn new(live: &Live) -> Self {
        Self::with(live.edge.max_retries, &live.config.timeouts)
    }

    fn with(max_retries: u32, timeouts: &Timeouts) -> Self {
        Self {
            left: max_retries,
            made: 0,
            tried: Vec::new(),
            replaced_connection: false,
            first_pause: timeouts.retry_pause,
            longest_pause: timeouts.retry_pause_max,
        }
    }

    /// Whether another one may be made.
    pub fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Whether another one is left, and a usable instance other than `instance` to make it at.
    pub fn could_move(&self, fleet: &Fleet, instance: InstanceId) -> bool {
        let mut all = fleet.instances().iter();
        self.is_left() && all.any(|other| other.id != instance && other.health().is_usable())
    }

    /// What the next choice leaves out, after `cause` at `instance`.
    pub fn exclusion(&self, cause: Cause, instance: InstanceId) -> Exclusion {
        let last = match cause {
            Cause::Connect | Cause::Lost => Exclusion::rebinding(instance),
            _ => Exclusion::once(instance),
        };
        last.after(&self.tried)
    }

    /// Whether a pooled connection that died unheard may be replaced; once for each leg, and without
    /// taking one of the attempts.
    pub fn replace_connection(&mut self) -> bool {
        !std::mem::replace(&mut self.replaced_connection, true)
    }

    /// Whether the next one must not go out on a pooled connection: none after the first, so that an
    /// attempt is never lost to a connection that was dead before.
    pub fn wants_fresh(&self) -> bool {
        self.replaced_connection || self.made > 0
    }

    /// Takes one, at `instance`, after one that failed at `failed` for `cause`. The answer is how long
    /// to wait before it.
    pub fn take(
        &mut self,
        (failed, instance): (InstanceId, InstanceId),
        cause: Cause,
        kind: Kind,
    ) -> Duration {
        self.left = self.left.saturating_sub(1);
        self.made += 1;
        if !self.tried.contains(&failed) {
            self.tried.push(failed);
        }
        if !self.tried.contains(&instance) {
            return Duration::ZERO;
        }
        let least = if failed == instance {
            cause.least_pause(kind)
        } else {
            Duration::ZERO
        };
        self.back_off().max(least).min(self.longest_pause)
    }

    /// A pause that grows with the attempts, up to a bound. Half of it is left to chance, so that
    /// requests that failed together do not come back together.
    fn back_off(&self) -> Duration {
        let doublings = self.made.saturating_sub(1).min(16);
        let pause = self.first_pause.saturating_mul(1 << doublings);
        pause
            .min(self.longest_pause)
            .mul_f64((1.0 + fastrand::f64()) / 2.0)
    }
}

#[cfg(test)]
mod tests;
