//! How many legs a fleet serves at once, and who waits for a place.
//!
//! Decides who is next when a place is given back: whoever has already spent a prefill, then whoever
//! waits longest. The line is bounded; how long somebody waits is the caller's to bound. A place is given back
//! exactly once, on any way out, and bounds that change do not take places away.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What bounds a fleet's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Legs at once; `None` for no bound, and then nobody waits.
    pub places: Option<usize>,
    /// Requests that may wait for a place. One that has already spent a prefill may wait beyond it.
    pub waiting: usize,
}

/// Why somebody cannot wait for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests wait already")]
pub struct LineFull;

/// The places of one fleet.
#[derive(Debug)]
pub struct Queue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    limits: QueueLimits,
    taken: usize,
    /// Those that have spent a prefill, longest wait first.
    ahead: VecDeque<Waiter>,
    /// The others.
    line: VecDeque<Waiter>,
}

type Waiter = oneshot::Sender<Place>;

/// A place in a fleet, given back when dropped.
#[derive(Debug)]
#[must_use = "the place is only taken while this lives"]
pub struct Place {
    queue: Weak<Mutex<State>>,
}

/// A place in the line. Dropping it leaves the line.
#[derive(Debug)]
pub struct Turn(Entry);

#[derive(Debug)]
enum Entry {
    Place(Place),
    Waits(oneshot::Receiver<Place>),
}

impl Queue {
    pub fn new(limits: QueueLimits) -> Self {
        Self(Arc::new(Mutex::new(State {
            limits,
            taken: 0,
            ahead: VecDeque::new(),
            line: VecDeque::new(),
        })))
    }

    /// The bounds in force.
    pub fn limits(&self) -> QueueLimits {
        self.0.lock().limits
    }

    /// Other bounds from now on. Whoever waits and now has a place gets it.
    pub fn set_limits(&self, limits: QueueLimits) {
        let mut state = self.0.lock();
        state.limits = limits;
        let mut given = Vec::new();
        while state.has_room() && !state.is_empty() {
            given.extend(self.give(&mut state));
        }
        drop(state);
        hand_out(given);
    }

    /// Takes a place, or one in the line; `spent` says that a prefill is lost if none comes.
    ///
    /// # Errors
    /// [`LineFull`] where too many wait.
    pub fn enter(&self, spent: bool) -> Result<Turn, LineFull> {
        let mut state = self.0.lock();
        if state.has_room() && state.is_empty() {
            state.taken += 1;
            return Ok(Turn(Entry::Place(self.place())));
        }
        state.forget_the_gone();
        if !spent && state.line.len() >= state.limits.waiting {
            return Err(LineFull);
        }
        let (waiter, turn) = oneshot::channel();
        if spent {
            state.ahead.push_back(waiter);
        } else {
            state.line.push_back(waiter);
        }
        Ok(Turn(Entry::Waits(turn)))
    }

    /// Places that are taken.
    pub fn taken(&self) -> usize {
        self.0.lock().taken
    }

    /// Those that wait.
    pub fn waiting(&self) -> usize {
        let mut state = self.0.lock();
        state.forget_the_gone();
        state.ahead.len() + state.line.len()
    }

    fn place(&self) -> Place {
        Place {
            queue: Arc::downgrade(&self.0),
        }
    }

    /// The next one in the line with a place, which is counted.
    fn give(&self, state: &mut State) -> Option<(Waiter, Place)> {
        let waiter = state.next()?;
        state.taken += 1;
        Some((waiter, self.place()))
    }
}

/// Outside the lock: a place whose waiter has gone is given back at once, which takes it again.
fn hand_out(given: Vec<(Waiter, Place)>) {
    for (waiter, place) in given {
        drop(waiter.send(place));
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.limits.places.is_none_or(|places| self.taken < places)
    }

    fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.line.is_empty()
    }

    fn next(&mut self) -> Option<Waiter> {
        self.ahead.pop_front().or_else(|| self.line.pop_front())
    }

    fn forget_the_gone(&mut self) {
        self.ahead.retain(|waiter| !waiter.is_closed());
        self.line.retain(|waiter| !waiter.is_closed());
    }
}

impl Turn {
    /// Whether there is no place yet.
    pub fn waits(&self) -> bool {
        matches!(self.0, Entry::Waits(_))
    }

    /// The place, if it is there.
    pub fn now(self) -> Option<Place> {
        match self.0 {
            Entry::Place(place) => Some(place),
            Entry::Waits(_) => None,
        }
    }

    /// The place, when it comes. Cancel-safe: whoever drops this leaves the line.
    pub async fn place(self) -> Place {
        match self.0 {
            Entry::Place(place) => place,
            Entry::Waits(turn) => match turn.await {
                Ok(place) => place,
                // The fleet is gone, and its bounds with it.
                Err(_) => Place { queue: Weak::new() },
            },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(queue) = self.queue.upgrade().map(Queue) else {
            return;
        };
        let mut given = Vec::new();
        let mut state = queue.0.lock();
        state.taken = state.taken.saturating_sub(1);
        if state.has_room() {
            given.extend(queue.give(&mut state));
        }
        drop(state);
        hand_out(given);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    fn limits(places: usize, waiting: usize) -> QueueLimits {
        QueueLimits {
            places: Some(places),
            waiting,
        }
    }

    fn now(turn: Turn) -> Place {
        turn.place().now_or_never().expect("a place")
    }

    #[test]
    fn without_a_bound_nobody_waits() {
        let queue = Queue::new(QueueLimits {
            places: None,
            waiting: 0,
        });
        let places: Vec<Place> = (0..100).map(|_| now(queue.enter(false).unwrap())).collect();
        assert_eq!((queue.taken(), queue.waiting()), (100, 0));
        drop(places);
        assert_eq!(queue.taken(), 0);
    }

    #[test]
    fn the_line_is_served_in_order_and_a_spent_prefill_goes_first() {
        let queue = Queue::new(limits(1, 2));
        let first = now(queue.enter(false).unwrap());
        let second = queue.enter(false).unwrap();
        let third = queue.enter(false).unwrap();
        assert!(second.waits() && third.waits());
        assert_eq!(queue.enter(false).unwrap_err(), LineFull);
        let ahead = queue.enter(true).unwrap();
        assert_eq!(queue.waiting(), 3);
        drop(first);
        let ahead = now(ahead);
        assert!(queue.waiting() == 2 && queue.taken() == 1);
        drop(ahead);
        let second = now(second);
        drop(second);
        drop(now(third));
        assert_eq!((queue.taken(), queue.waiting()), (0, 0));
    }

    #[test]
    fn whoever_leaves_the_line_makes_room_in_it() {
        let queue = Queue::new(limits(1, 1));
        let first = now(queue.enter(false).unwrap());
        drop(queue.enter(false).unwrap());
        let second = queue.enter(false).unwrap();
        drop(first);
        // A place that comes as its waiter leaves goes to the next one.
        let third = queue.enter(false).unwrap();
        drop(second);
        drop(now(third));
        assert_eq!((queue.taken(), queue.waiting()), (0, 0));
    }

    #[test]
    fn bounds_may_change_while_places_are_taken() {
        let queue = Queue::new(limits(2, 10));
        let held: Vec<Place> = (0..2).map(|_| now(queue.enter(false).unwrap())).collect();
        let waiting: Vec<Turn> = (0..3).map(|_| queue.enter(false).unwrap()).collect();
        queue.set_limits(limits(4, 10));
        let mut waiting = waiting.into_iter();
        let more: Vec<Place> = waiting.by_ref().take(2).map(now).collect();
        assert_eq!((queue.taken(), queue.waiting()), (4, 1));
        queue.set_limits(limits(1, 10));
        drop(more);
        drop(held);
        drop(now(waiting.next().unwrap()));
        assert_eq!((queue.taken(), queue.waiting()), (0, 0));
    }

    proptest! {
        #[test]
        fn places_are_never_more_than_allowed_and_never_lost(
            places in 1_usize..5,
            steps in prop::collection::vec(0_u8..5, 1..200),
        ) {
            let queue = Queue::new(limits(places, 8));
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => waiting.extend(queue.enter(at % 3 == 0).ok()),
                    2 if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(at % waiting.len())),
                    _ => {}
                }
                let mut still = Vec::new();
                for turn in waiting.drain(..) {
                    let mut turn: Turn = turn;
                    let came = match &mut turn.0 {
                        Entry::Place(_) => true,
                        Entry::Waits(receiver) => match receiver.try_recv() {
                            Ok(place) => {
                                turn.0 = Entry::Place(place);
                                true
                            }
                            Err(_) => false,
                        },
                    };
                    if came { held.push(now(turn)) } else { still.push(turn) }
                }
                waiting = still;
                prop_assert!(queue.taken() <= places);
                prop_assert_eq!(queue.taken(), held.len());
                prop_assert_eq!(queue.waiting(), waiting.len());
                prop_assert!(waiting.is_empty() || held.len() == places);
            }
            drop((held, waiting));
            prop_assert_eq!((queue.taken(), queue.waiting()), (0, 0));
        }
    }
}
