//! Whether and when a leg is tried again.
//!
//! The budget is upstream's `max_retries`: attempts after the first, for each leg. A failed attempt
//! moves to another instance where there is one, but takes its key along only from an instance that
//! cannot be reached; a new attempt on the same instance waits first.

use std::time::Duration;

use crate::http::upstream::CallError;

/// Wait before the second attempt at one place; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The attempts that a leg has left.
#[derive(Debug, Clone, Copy)]
pub struct Attempts {
    left: u32,
    made: u32,
}

impl Attempts {
    pub fn new(max_retries: u32) -> Self {
        Self {
            left: max_retries,
            made: 0,
        }
    }

    /// Takes one attempt after the first; `false` when none is left.
    pub fn again(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.made += 1;
        true
    }

    /// How long to wait before the attempt just taken if it goes where the last one failed.
    pub fn pause(&self) -> Duration {
        let doublings = self.made.saturating_sub(1).min(8);
        (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE)
    }
}

/// Whether an attempt without an answer may be repeated: nothing of it can have reached the client.
/// A deadline that passed is final; waiting as long again helps nobody.
pub fn retryable(error: CallError) -> bool {
    matches!(
        error,
        CallError::Connect | CallError::Reset | CallError::Unheard | CallError::Unresolved
    )
}

/// Whether the instance could not be reached at all, so that its keys are better off elsewhere.
pub fn unreachable(error: CallError) -> bool {
    matches!(error, CallError::Connect | CallError::Unresolved)
}

/// Whether an attempt that was answered may be repeated (specification section 4.8).
pub fn retryable_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_run_out_and_pauses_grow_to_a_bound() {
        let mut attempts = Attempts::new(10);
        let mut last = Duration::ZERO;
        while attempts.again() {
            assert!(attempts.pause() >= last);
            last = attempts.pause();
        }
        assert_eq!(last, LONGEST_PAUSE);
        assert!(!Attempts::new(0).again());
    }

    #[test]
    fn only_transient_statuses_are_repeated() {
        for status in [408, 429, 500, 503] {
            assert!(retryable_status(status), "{status}");
        }
        for status in [200, 400, 401, 404, 413, 422] {
            assert!(!retryable_status(status), "{status}");
        }
    }
}
