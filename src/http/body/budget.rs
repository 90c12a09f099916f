//! The bytes of request bodies that are held at once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{http::reply::Failure, telemetry::labels::Outcome};

/// Bytes of request bodies held at once, over all requests.
#[derive(Debug, Default)]
pub struct Budget {
    used: AtomicUsize,
}

impl Budget {
    /// Bytes held now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize, max: usize) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= max)
            })
            .is_ok()
    }
}

/// A share of the [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<Budget>,
    max: usize,
    held: usize,
}

impl Lease {
    pub(super) fn new(budget: Arc<Budget>, max: usize) -> Self {
        Self {
            budget,
            max,
            held: 0,
        }
    }

    /// Holds `bytes` in all, if the budget allows.
    ///
    /// # Errors
    /// 503 with `Retry-After` when the budget is spent.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Failure> {
        let more = bytes.saturating_sub(self.held);
        if more > 0 && !self.budget.take(more, self.max) {
            return Err(Failure::unavailable(
                "body_budget_spent",
                Outcome::Overloaded,
                "Too many bytes of request bodies are held at once; retry shortly.",
            ));
        }
        self.held += more;
        Ok(())
    }

    /// Holds exactly `bytes` from now on, without asking: the work that has been done for the request
    /// is worth more than the hand-over by which the budget may be exceeded.
    pub fn settle(&mut self, bytes: usize) {
        if bytes > self.held {
            let more = bytes - self.held;
            self.budget.used.fetch_add(more, Ordering::AcqRel);
        } else {
            let less = self.held - bytes;
            self.budget.used.fetch_sub(less, Ordering::AcqRel);
        }
        self.held = bytes;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.held, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_given_back_and_never_exceeded() {
        let budget = Arc::new(Budget::default());
        let mut first = Lease::new(budget.clone(), 100);
        first.hold(60).unwrap();
        first.hold(50).unwrap();
        assert_eq!(budget.used(), 60);
        let mut second = Lease::new(budget.clone(), 100);
        assert_eq!(second.hold(41).unwrap_err().status, 503);
        second.hold(40).unwrap();
        drop(first);
        assert_eq!(budget.used(), 40);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_settled_is_held_and_given_back() {
        let budget = Arc::new(Budget::default());
        let mut lease = Lease::new(budget.clone(), 100);
        lease.hold(60).unwrap();
        for bytes in [110, 20, 0, 70] {
            lease.settle(bytes);
            assert_eq!(budget.used(), bytes);
        }
        drop(lease);
        assert_eq!(budget.used(), 0);
    }
}
