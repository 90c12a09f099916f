//! Counts requests that have not ended.
//!
//! It decides nothing: whoever drains or exports asks for the number. A count must never outlive its
//! request, however that ends, so it is given back when the guard is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The requests of one listener that have not ended.
#[derive(Debug, Default)]
pub struct Requests(Arc<AtomicUsize>);

impl Requests {
    /// Counts one more request, for as long as the guard lives.
    pub fn enter(&self) -> InFlight {
        self.0.fetch_add(1, Ordering::AcqRel);
        InFlight(self.0.clone())
    }

    /// How many have not ended.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// One request that is counted.
#[derive(Debug)]
pub struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_its_guard_is_dropped() {
        let requests = Requests::default();
        let (one, two) = (requests.enter(), requests.enter());
        assert_eq!(requests.count(), 2);
        drop(one);
        assert_eq!(requests.count(), 1);
        drop(two);
        assert_eq!(requests.count(), 0);
    }
}
