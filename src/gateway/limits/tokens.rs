//! Prompt tokens a minute, as a bucket that fills steadily.
//!
//! What a prompt costs is known only afterwards, so an estimate is taken and corrected: a rate limiter
//! whose past cannot be changed does not do. Whoever was estimated too low is in debt for a while.

use std::time::Duration;

use tokio::time::Instant;

use super::{Exceeded, Left, Limited};

#[derive(Debug)]
pub(super) struct Bucket {
    capacity: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(per_minute: u64) -> Self {
        let capacity = per_minute as f64;
        Self {
            capacity,
            level: capacity,
            at: Instant::now(),
        }
    }

    /// Another size from now on; what was taken stays taken.
    pub(super) fn set_capacity(&mut self, per_minute: u64) {
        let capacity = per_minute as f64;
        self.level += capacity - self.capacity;
        self.capacity = capacity;
    }

    pub(super) fn take(&mut self, tokens: u64, now: Instant) -> Result<(), Exceeded> {
        let tokens = tokens as f64;
        self.fill(now);
        if tokens > self.capacity {
            return Err(Exceeded::Ever);
        }
        if tokens > self.level {
            return Err(Exceeded::For(self.time_for(tokens - self.level)));
        }
        self.level -= tokens;
        Ok(())
    }

    /// Makes an estimate good.
    pub(super) fn correct(&mut self, estimated: u64, tokens: u64) {
        let level = self.level + estimated as f64 - tokens as f64;
        // A debt is paid within a minute.
        self.level = level.clamp(-self.capacity, self.capacity);
    }

    pub(super) fn left(&mut self, now: Instant) -> Left {
        self.fill(now);
        Left {
            limited: Limited::Tokens,
            limit: self.capacity as u64,
            remaining: self.level.max(0.0) as u64,
            reset: self.time_for(self.capacity - self.level),
        }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * self.capacity / 60.0).min(self.capacity);
        self.at = self.at.max(now);
    }

    fn time_for(&self, tokens: f64) -> Duration {
        let seconds = 60.0 * tokens / self.capacity;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_with_time_and_never_above_its_size() {
        let mut bucket = Bucket::new(600);
        let start = bucket.at;
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(bucket.take(600, start), Ok(()));
        let wait = bucket.take(100, start);
        assert_eq!(wait, Err(Exceeded::For(Duration::from_secs(10))));
        assert!(bucket.take(100, after(9)).is_err());
        assert_eq!(bucket.take(100, after(10)), Ok(()));
        assert_eq!(bucket.left(after(1000)).remaining, 600);
        assert_eq!(bucket.take(601, after(2000)), Err(Exceeded::Ever));
    }

    #[test]
    fn estimates_are_made_good() {
        let mut bucket = Bucket::new(600);
        let start = bucket.at;
        assert_eq!(bucket.take(100, start), Ok(()));
        bucket.correct(100, 40);
        assert_eq!(bucket.left(start).remaining, 560);
        assert_eq!(bucket.take(100, start), Ok(()));
        bucket.correct(100, 1000);
        let left = bucket.left(start);
        assert_eq!((left.remaining, left.limit), (0, 600));
        assert!(bucket.take(1, start).is_err(), "in debt");
        let later = start + Duration::from_secs(60);
        assert!(bucket.take(1, later).is_ok(), "which is paid");
    }
}
