//! `disagg_request_id`: the number under which both legs hand a KV cache over.
//!
//! Ids have upstream's layout (specification section 4.7) and lie in `[2^40, 2^63)`; smaller ones are
//! a worker's own. Unlike upstream's they are unique also past 1024 ids in a millisecond: the counter
//! then runs into the milliseconds to come. Replicas must be given distinct node or process numbers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// The smallest id that is not a worker's own.
pub const FIRST: u64 = 1 << 40;
const END: u64 = 1 << 63;
const COUNTER_BITS: u32 = 10;
const MILLISECOND_MASK: u64 = (1 << 39) - 1;

/// The id of one millisecond, node, process and counter (specification section 4.7).
///
/// Bits beyond the layout's widths (39, 8, 6 and 10) are cut off.
pub fn compose(milliseconds: u64, node: u8, process: u8, counter: u16) -> u64 {
    let value = (milliseconds & MILLISECOND_MASK) << 24
        | u64::from(node) << 16
        | u64::from(process & 63) << COUNTER_BITS
        | u64::from(counter & 1023);
    value % (END - 1 - FIRST) + FIRST
}

/// A source of ids for one process; share it between threads.
#[derive(Debug)]
pub struct RequestIds {
    node: u8,
    process: u8,
    /// Milliseconds shifted by the counter's width, plus the counter: only ever grows.
    ticks: AtomicU64,
    started: Instant,
    started_ms: u64,
}

impl RequestIds {
    /// Ids of this node (0..=255) and process (0..=63; higher bits are cut off).
    ///
    /// The clock starts at the wall clock's milliseconds and then runs monotonically, so that a
    /// process that starts again does not give out its ids again.
    pub fn new(node: u8, process: u8) -> Self {
        let started_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        Self {
            node,
            process,
            ticks: AtomicU64::new(0),
            started: Instant::now(),
            started_ms,
        }
    }

    /// A new id. Lock-free.
    pub fn next(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0);
        self.next_at(self.started_ms.wrapping_add(elapsed))
    }

    fn next_at(&self, milliseconds: u64) -> u64 {
        let now = (milliseconds & MILLISECOND_MASK) << COUNTER_BITS;
        let advance = |last: u64| last.wrapping_add(1).max(now);
        let last = self
            .ticks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(advance(last))
            })
            .unwrap_or_else(|last| last);
        let tick = advance(last);
        let counter = u16::try_from(tick & 1023).unwrap_or(0);
        compose(tick >> COUNTER_BITS, self.node, self.process, counter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn has_the_specified_check_values() {
        assert_eq!(compose(0, 0, 0, 0), 1_099_511_627_776);
        assert_eq!(compose(1, 2, 3, 4), 1_099_528_539_140);
        assert_eq!(compose(123_456_789, 255, 63, 1023), 2_072_360_744_124_415);
    }

    #[test]
    fn stays_in_range_at_the_ends_of_the_layout() {
        for milliseconds in [0, 1, MILLISECOND_MASK, MILLISECOND_MASK + 1, u64::MAX] {
            let id = compose(milliseconds, 255, 255, u16::MAX);
            assert!((FIRST..END).contains(&id), "{milliseconds}: {id}");
        }
        assert_eq!(
            compose(MILLISECOND_MASK + 1, 0, 0, 0),
            compose(0, 0, 0, 0),
            "the millisecond field wraps"
        );
    }

    #[test]
    fn runs_ahead_instead_of_repeating_within_a_millisecond() {
        let ids = RequestIds::new(1, 1);
        let seen: HashSet<u64> = (0..5000).map(|_| ids.next_at(7)).collect();
        assert_eq!(seen.len(), 5000);
        assert!(
            !seen.contains(&ids.next_at(8)),
            "a late clock does not repeat"
        );
        assert_eq!(ids.next_at(20), compose(20, 1, 1, 0), "and catches up");
    }

    const THREADS: usize = 16;
    const EACH: usize = 10_000_000 / THREADS;

    /// Ten million ids, 80 MB of them, taken by 16 threads at once; sorted by the stable sort, which
    /// makes use of each thread's ids being in order already.
    fn ten_million(next: impl Fn() -> u64 + Sync) -> Vec<u64> {
        let mut all = vec![0; THREADS * EACH];
        let barrier = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for part in all.chunks_mut(EACH) {
                let (next, barrier) = (&next, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    part.fill_with(next);
                });
            }
        });
        all.sort();
        all
    }

    #[test]
    fn ten_million_ids_of_sixteen_threads_are_unique() {
        let ids = RequestIds::new(3, 4);
        let all = ten_million(|| ids.next());
        assert!(all.first() >= Some(&FIRST) && all.last() < Some(&END));
        assert!(all.is_sorted_by(|a, b| a < b), "no two are the same");
    }

    #[test]
    fn ten_million_ids_of_one_millisecond_are_unique() {
        let ids = RequestIds::new(3, 4);
        let all = ten_million(|| ids.next_at(77));
        assert!(all.is_sorted_by(|a, b| a < b), "no two are the same");
    }

    #[test]
    fn replicas_do_not_meet() {
        let numbers = [(1, 0), (1, 1), (2, 0), (2, 1), (255, 63), (0, 0)];
        let mut all = Vec::new();
        for (node, process) in numbers {
            let ids = RequestIds::new(node, process);
            all.extend((0..5000).map(|_| ids.next_at(9)));
        }
        all.sort_unstable();
        assert!(all.is_sorted_by(|a, b| a < b), "no two are the same");
    }
}
