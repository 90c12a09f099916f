//! What an instance's requests met lately, and when that is too much.
//!
//! Decides by the requests that ended within a window: the causes are counted apart, and one of them
//! must have a share of a minimum number of requests before it counts, so that a blip takes nobody
//! out. How long an instance sits out grows with repeats up to a bound. Times are given; it looks at no
//! clock, and it knows of no other instance: whether one may sit out is its caller's matter.

use std::time::{Duration, Instant};

use crate::{
    config::EjectionConfig,
    telemetry::labels::{EjectionCause, Label},
};

/// Parts of the window, which are forgotten one by one.
const PARTS: usize = 8;
const CAUSES: usize = EjectionCause::ALL.len();

/// How one attempt of a leg ended, seen from the instance. What is the client's doing, such as a 4xx,
/// is an answer; an attempt that a client broke off is not observed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// It answered, whatever it said, but for 5xx.
    Answered,
    /// No connection could be made.
    Connect,
    /// The connection broke before the answer was whole.
    Reset,
    /// A deadline passed.
    Timeout,
    /// A status of 500 or above, or no HTTP.
    ServerError,
}

impl Observation {
    /// What an answer with this status says of its instance.
    pub fn of_status(status: u16) -> Self {
        if status >= 500 {
            Self::ServerError
        } else {
            Self::Answered
        }
    }

    fn cause(self) -> Option<EjectionCause> {
        match self {
            Self::Answered => None,
            Self::Connect => Some(EjectionCause::Connect),
            Self::Reset => Some(EjectionCause::Reset),
            Self::Timeout => Some(EjectionCause::Timeout),
            Self::ServerError => Some(EjectionCause::ServerError),
        }
    }
}

/// Why an instance should sit out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMuch {
    pub cause: EjectionCause,
    /// Requests that failed for it, of those that ended within the window.
    pub failed: u32,
    pub of: u32,
}

/// The memory of one instance's requests.
#[derive(Debug)]
pub struct Breaker {
    began: Instant,
    window: Duration,
    parts: [Part; PARTS],
    /// Ejections in a row, and the end of the last one.
    ejections: u32,
    back: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    /// Which part of time it is about.
    number: u64,
    requests: u32,
    failed: [u32; CAUSES],
}

impl Breaker {
    /// Nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            window: Duration::ZERO,
            parts: [Part::default(); PARTS],
            ejections: 0,
            back: None,
        }
    }

    /// Takes note of a request that ended; the answer is why the instance should sit out, if it
    /// should.
    pub fn observe(
        &mut self,
        rules: &EjectionConfig,
        observation: Observation,
        now: Instant,
    ) -> Option<TooMuch> {
        let number = self.number(rules, now);
        let part = self.parts.get_mut(number as usize % PARTS)?;
        if part.number != number {
            *part = Part {
                number,
                ..Part::default()
            };
        }
        part.requests = part.requests.saturating_add(1);
        let cause = observation.cause()?;
        if let Some(failed) = part.failed.get_mut(cause.index()) {
            *failed = failed.saturating_add(1);
        }
        self.judge(rules, cause, number)
    }

    fn judge(&self, rules: &EjectionConfig, cause: EjectionCause, now: u64) -> Option<TooMuch> {
        let recent = self.parts.iter();
        let recent = recent.filter(|part| part.number + PARTS as u64 > now);
        let (mut of, mut failed) = (0_u32, 0_u32);
        for part in recent {
            of = of.saturating_add(part.requests);
            failed = failed.saturating_add(part.failed.get(cause.index()).copied().unwrap_or(0));
        }
        let too_much =
            of >= rules.min_requests && f64::from(failed) >= rules.failure_share * f64::from(of);
        too_much.then_some(TooMuch { cause, failed, of })
    }

    /// The number of the part of time that `now` is in. Another window begins anew.
    fn number(&mut self, rules: &EjectionConfig, now: Instant) -> u64 {
        if self.window != rules.window {
            self.window = rules.window;
            self.forget();
        }
        let part = (rules.window / PARTS as u32).as_nanos().max(1);
        let elapsed = now.saturating_duration_since(self.began).as_nanos();
        // Counted from PARTS on, so that a part that was never used is always an old one.
        u64::try_from(elapsed / part).unwrap_or(u64::MAX / 2) + PARTS as u64
    }

    /// Forgets what requests met.
    pub fn forget(&mut self) {
        self.parts = [Part::default(); PARTS];
    }

    /// The instance sits out from now on; the answer is until when. What its requests met before is
    /// forgotten.
    pub fn eject(&mut self, rules: &EjectionConfig, now: Instant) -> Instant {
        let good = self
            .back
            .is_some_and(|back| now.saturating_duration_since(back) >= rules.max_time);
        if good {
            self.ejections = 0;
        }
        let doublings = self.ejections.min(16);
        self.ejections = self.ejections.saturating_add(1);
        self.forget();
        let time = rules.time.saturating_mul(1 << doublings);
        let until = now + time.min(rules.max_time);
        self.back = Some(until);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules() -> EjectionConfig {
        EjectionConfig {
            window: 8 * SECOND,
            min_requests: 10,
            failure_share: 0.5,
            time: 10 * SECOND,
            max_time: 60 * SECOND,
            max_ejected: 0.5,
        }
    }

    /// What comes of so many observations one after the other.
    fn observe(
        breaker: &mut Breaker,
        observation: Observation,
        count: u32,
        now: Instant,
    ) -> Option<TooMuch> {
        (0..count)
            .filter_map(|_| breaker.observe(&rules(), observation, now))
            .last()
    }

    #[test]
    fn case_h21_a_few_failures_at_the_start_are_no_reason() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        assert_eq!(observe(&mut breaker, Observation::Connect, 9, now), None);
        let too_much = observe(&mut breaker, Observation::Connect, 1, now).unwrap();
        assert_eq!(too_much.cause, EjectionCause::Connect);
        assert_eq!((too_much.failed, too_much.of), (10, 10));
    }

    #[test]
    fn case_h21_causes_are_counted_apart() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        let causes = [
            Observation::Connect,
            Observation::Reset,
            Observation::Timeout,
            Observation::ServerError,
        ];
        for _ in 0..20 {
            for cause in causes {
                let judged = breaker.observe(&rules(), cause, now);
                assert_eq!(judged, None, "a quarter each is not a half");
            }
        }
    }

    #[test]
    fn a_share_below_the_bound_is_no_reason() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        observe(&mut breaker, Observation::Answered, 60, now);
        assert_eq!(observe(&mut breaker, Observation::Reset, 59, now), None);
        assert!(observe(&mut breaker, Observation::Reset, 1, now).is_some());
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        observe(&mut breaker, Observation::ServerError, 9, now);
        let later = now + 8 * SECOND;
        assert_eq!(
            observe(&mut breaker, Observation::ServerError, 9, later),
            None
        );
        let within = later + 7 * SECOND;
        assert!(observe(&mut breaker, Observation::ServerError, 1, within).is_some());
    }

    #[test]
    fn ejections_grow_with_repeats_to_a_bound_and_are_forgotten() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(now);
        let mut times = Vec::new();
        for _ in 0..5 {
            let until = breaker.eject(&rules(), now);
            times.push((until - now).as_secs());
            now = until + SECOND;
        }
        assert_eq!(times, [10, 20, 40, 60, 60]);
        now += 60 * SECOND;
        assert_eq!(breaker.eject(&rules(), now), now + 10 * SECOND);
    }

    #[test]
    fn after_an_ejection_the_count_begins_anew() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        assert!(observe(&mut breaker, Observation::Connect, 10, now).is_some());
        let until = breaker.eject(&rules(), now);
        assert_eq!(observe(&mut breaker, Observation::Connect, 9, until), None);
    }
}
