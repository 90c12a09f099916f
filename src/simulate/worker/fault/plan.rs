//! What a worker has been told to do wrong, and how it behaves beside its requests.
//!
//! Shared by the worker and whoever gives it orders. Orders are carried out one request after the
//! other and are bounded in number; manners hold until they are changed.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;

use super::Faults;

/// Most requests that are planned to fail, in as many orders.
const ORDERS: usize = 1024;

/// How `GET /health` is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Well,
    /// With 503.
    Unwell,
    /// Never.
    Silent,
}

/// How a worker behaves beside its requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manners {
    pub health: Health,
    /// After how long an idle connection is closed, where that is shorter than its keep-alive.
    pub idle: Option<Duration>,
}

/// The orders of one worker.
#[derive(Debug, Default)]
pub struct Control {
    orders: Mutex<VecDeque<(u64, Faults)>>,
    manners: Mutex<Manners>,
}

impl Control {
    /// The next `count` requests after those already planned go wrong like this. A count of 0
    /// withdraws all orders. Returns how many are planned now.
    pub fn plan(&self, count: u64, faults: Faults) -> u64 {
        let mut orders = self.orders.lock();
        if count == 0 {
            orders.clear();
        } else if orders.len() < ORDERS {
            orders.push_back((count, faults));
        }
        pending(&orders)
    }

    /// The faults of the request that comes now.
    pub(in crate::simulate::worker) fn take(&self) -> Faults {
        let mut orders = self.orders.lock();
        let Some((left, faults)) = orders.front_mut() else {
            return Faults::default();
        };
        *left -= 1;
        let faults = faults.clone();
        if *left == 0 {
            orders.pop_front();
        }
        faults
    }

    /// How many requests are still planned to go wrong.
    pub fn pending(&self) -> u64 {
        pending(&self.orders.lock())
    }

    pub fn manners(&self) -> Manners {
        *self.manners.lock()
    }

    /// Behaves like this from now on.
    pub fn behave(&self, manners: Manners) {
        *self.manners.lock() = manners;
    }
}

fn pending(orders: &VecDeque<(u64, Faults)>) -> u64 {
    let counts = orders.iter().map(|(left, _)| *left);
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_carried_out_one_request_after_the_other() {
        let reset: Faults = "reset".parse().expect("a known fault");
        let control = Control::default();
        assert_eq!(control.plan(2, reset.clone()), 2);
        assert_eq!(control.take(), reset);
        assert_eq!(control.take(), reset);
        assert_eq!(control.take(), Faults::default());
        control.plan(9, reset);
        assert_eq!(control.plan(0, Faults::default()), 0);
        assert_eq!(control.pending(), 0);
    }
}
