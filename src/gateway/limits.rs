//! What one client may take: requests a second, prompt tokens a minute, sub-agents at once.
//!
//! Decides whether a request may go on, and what the client is told of what is left. What a limit has
//! counted survives a reload under the client's name. Whoever is refused has cost nothing, and a limit
//! must never make anybody wait.

mod families;
mod tokens;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::ClientLimits;
use families::Families;
pub use families::SubAgent;
use tokens::Bucket;

type Rate = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

/// Which of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    Requests,
    Tokens,
}

/// What a client has of one limit after a request was held against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub limited: Limited,
    pub limit: u64,
    pub remaining: u64,
    /// Until all of it is there again.
    pub reset: Duration,
}

/// A request that a limit does not let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// It may come again after so long.
    For(Duration),
    /// It is more than the limit lets pass at any time.
    Ever,
}

/// The limits of one client, and what it has taken of them.
#[derive(Debug)]
pub struct Limits {
    config: ClientLimits,
    requests: Option<Rate>,
    tokens: Option<Arc<Mutex<Bucket>>>,
    families: Arc<Families>,
}

impl Limits {
    /// The limits that are configured; what `previous` has counted stays.
    pub fn new(config: &ClientLimits, previous: Option<&Arc<Self>>) -> Arc<Self> {
        if let Some(previous) = previous.filter(|previous| previous.config == *config) {
            return previous.clone();
        }
        let tokens = config.prompt_tokens_per_minute.map(|per_minute| {
            let known = previous.and_then(|previous| previous.tokens.clone());
            let bucket = known.unwrap_or_else(|| Arc::new(Mutex::new(Bucket::new(per_minute))));
            bucket.lock().set_capacity(per_minute);
            bucket
        });
        Arc::new(Self {
            config: *config,
            requests: rate(config),
            tokens,
            families: previous.map_or_else(Arc::default, |previous| previous.families.clone()),
        })
    }

    /// Takes one request.
    pub fn request(&self) -> (Option<Left>, Result<(), Exceeded>) {
        let Some(rate) = &self.requests else {
            return (None, Ok(()));
        };
        let burst = rate_of(&self.config).1;
        let left = |remaining: u32, reset| Left {
            limited: Limited::Requests,
            limit: u64::from(burst.get()),
            remaining: u64::from(remaining),
            reset,
        };
        let until_full = |missing: u32| {
            let every = 1.0 / f64::from(rate_of(&self.config).0.get());
            Duration::from_secs_f64(every * f64::from(missing))
        };
        match rate.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let missing = burst.get().saturating_sub(remaining);
                (Some(left(remaining, until_full(missing))), Ok(()))
            }
            Err(until) => {
                let wait = until.wait_time_from(DefaultClock::default().now());
                let left = left(0, until_full(burst.get()));
                (Some(left), Err(Exceeded::For(wait)))
            }
        }
    }

    /// Takes the estimated tokens of a prompt, until the charge is settled.
    pub fn prompt(&self, estimated: u64) -> (Option<Left>, Result<Option<Charge>, Exceeded>) {
        let Some(bucket) = &self.tokens else {
            return (None, Ok(None));
        };
        let taken = bucket.lock().take(estimated, Instant::now());
        let left = bucket.lock().left(Instant::now());
        let charge = taken.map(|()| {
            Some(Charge {
                bucket: bucket.clone(),
                estimated,
            })
        });
        (Some(left), charge)
    }

    /// Takes one of a family's places for sub-agents; `None` where they are not bounded.
    ///
    /// # Errors
    /// How many the family may have, where it has them.
    pub fn sub_agent(&self, parent: &str) -> Result<Option<SubAgent>, usize> {
        let Some(most) = self.config.subagents_in_flight else {
            return Ok(None);
        };
        self.families.enter(parent, most).map(Some).ok_or(most)
    }
}

/// Prompt tokens that were taken on an estimate.
#[derive(Debug)]
pub struct Charge {
    bucket: Arc<Mutex<Bucket>>,
    estimated: u64,
}

impl Charge {
    /// The workers have said how many tokens the prompt had; 0 where it was never computed.
    pub fn settle(self, tokens: u64) {
        self.bucket.lock().correct(self.estimated, tokens);
    }
}

/// Requests a second, and at once after a quiet while.
fn rate_of(config: &ClientLimits) -> (NonZeroU32, NonZeroU32) {
    let every = config.requests_per_second.unwrap_or(NonZeroU32::MAX);
    (every, config.burst.unwrap_or(every))
}

fn rate(config: &ClientLimits) -> Option<Rate> {
    let (per_second, burst) = rate_of(config);
    config.requests_per_second?;
    let quota = Quota::per_second(per_second).allow_burst(burst);
    Some(RateLimiter::direct(quota).with_middleware())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ClientLimits {
        ClientLimits {
            requests_per_second: NonZeroU32::new(1),
            burst: NonZeroU32::new(3),
            prompt_tokens_per_minute: Some(600),
            subagents_in_flight: Some(2),
        }
    }

    #[test]
    fn a_burst_passes_and_no_more() {
        let limits = Limits::new(&config(), None);
        for remaining in [2, 1, 0] {
            let (left, passed) = limits.request();
            assert_eq!(
                (left.map(|left| left.remaining), passed),
                (Some(remaining), Ok(()))
            );
        }
        let (left, passed) = limits.request();
        let Err(Exceeded::For(wait)) = passed else {
            panic!("{passed:?}");
        };
        assert!(wait <= Duration::from_secs(1) && wait > Duration::ZERO);
        assert_eq!(left.map(|left| (left.limit, left.remaining)), Some((3, 0)));
    }

    #[test]
    fn nothing_is_limited_that_is_not_configured() {
        let limits = Limits::new(&ClientLimits::default(), None);
        for _ in 0..1000 {
            assert_eq!(limits.request(), (None, Ok(())));
            assert!(matches!(limits.prompt(1 << 40), (None, Ok(None))));
            assert!(matches!(limits.sub_agent("p"), Ok(None)));
        }
    }

    #[test]
    fn what_was_taken_stays_taken_over_a_reload() {
        let before = Limits::new(&config(), None);
        assert!(before.prompt(500).1.is_ok());
        let held = before.sub_agent("p").expect("room");
        let same = Limits::new(&config(), Some(&before));
        assert!(Arc::ptr_eq(&before, &same));
        let more = ClientLimits {
            burst: NonZeroU32::new(9),
            ..config()
        };
        let after = Limits::new(&more, Some(&before));
        assert!(matches!(after.prompt(500).1, Err(Exceeded::For(_))));
        let second = after.sub_agent("p").expect("room");
        assert_eq!(after.sub_agent("p").map(drop), Err(2));
        assert_eq!(after.sub_agent("q").map(drop), Ok(()));
        drop((held, second));
        assert_eq!(after.sub_agent("p").map(drop), Ok(()));
    }
}
