//! Misbehaviour on demand, so that tests and operators can see what a failure looks like.
//!
//! Faults are named in a text such as `delay=250ms, status=503`, given with one request in its
//! `x-simulate` header or for the next requests by `POST /simulate/fault`. The second way is the one
//! that works through the edge, which forwards no client's headers. A worker misbehaves only when
//! told to.

use std::{collections::VecDeque, str::FromStr, time::Duration};

use http::StatusCode;
use thiserror::Error;

/// The header that names the faults of one request.
pub const HEADER: &str = "x-simulate";

/// Most requests that are planned to fail, in as many orders.
const ORDERS: usize = 1024;

/// How one request is to go wrong. The default is: not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// `delay=250ms`: wait before anything else.
    pub delay: Option<Duration>,
    /// `status=503`: answer with that status.
    pub status: Option<StatusCode>,
    /// `reset`: close the connection instead of an answer.
    pub reset: bool,
    /// `final`: the answer is complete with its first token.
    pub finish_at_once: bool,
    /// `invalid-json`: the answer (of a stream its first event) is cut in the middle.
    pub invalid_json: bool,
    /// `die-after=3`: close the connection after that many events, or in the middle of an answer
    /// that is no stream.
    pub die_after: Option<u32>,
}

/// A fault that this worker does not know.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown fault {0:?}: known are delay=DURATION, status=CODE, reset, final, invalid-json and \
     die-after=EVENTS"
)]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Self::default();
        for word in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let known = match name {
                "delay" => {
                    faults.delay = humantime::parse_duration(value).ok();
                    faults.delay.is_some()
                }
                "status" => {
                    faults.status = value.parse().ok();
                    faults
                        .status
                        .is_some_and(|status| !status.is_informational())
                }
                "die-after" => {
                    faults.die_after = value.parse().ok();
                    faults.die_after.is_some()
                }
                "reset" => set(&mut faults.reset, value),
                "final" => set(&mut faults.finish_at_once, value),
                "invalid-json" => set(&mut faults.invalid_json, value),
                _ => false,
            };
            if !known {
                return Err(UnknownFault(word.to_owned()));
            }
        }
        Ok(faults)
    }
}

fn set(flag: &mut bool, value: &str) -> bool {
    *flag = true;
    value.is_empty()
}

/// The faults of the next requests, in order.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    orders: VecDeque<(u64, Faults)>,
}

impl FaultPlan {
    /// The next `count` requests after those already planned go wrong like this. A count of 0
    /// withdraws all orders.
    pub(super) fn plan(&mut self, count: u64, faults: Faults) {
        if count == 0 {
            self.orders.clear();
        } else if self.orders.len() < ORDERS {
            self.orders.push_back((count, faults));
        }
    }

    /// The faults of the request that comes now.
    pub(super) fn take(&mut self) -> Faults {
        let Some((left, faults)) = self.orders.front_mut() else {
            return Faults::default();
        };
        *left -= 1;
        let faults = faults.clone();
        if *left == 0 {
            self.orders.pop_front();
        }
        faults
    }

    /// How many requests are still planned to go wrong.
    pub(super) fn pending(&self) -> u64 {
        self.orders
            .iter()
            .fold(0, |sum: u64, (left, _)| sum.saturating_add(*left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_faults_is_read() {
        let faults: Faults = "status=503, delay=250ms,die-after=3, final"
            .parse()
            .expect("known faults");
        assert_eq!(faults.status, Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(faults.delay, Some(Duration::from_millis(250)));
        assert_eq!(faults.die_after, Some(3));
        assert!(faults.finish_at_once && !faults.reset);
        assert_eq!("".parse(), Ok(Faults::default()));
    }

    #[test]
    fn an_unknown_fault_is_refused() {
        for text in ["explode", "status=9", "status=100", "delay=soon", "reset=1"] {
            assert_eq!(text.parse::<Faults>(), Err(UnknownFault(text.to_owned())));
        }
    }

    #[test]
    fn orders_are_carried_out_one_request_after_the_other() {
        let reset: Faults = "reset".parse().expect("a known fault");
        let mut plan = FaultPlan::default();
        plan.plan(2, reset.clone());
        assert_eq!(plan.pending(), 2);
        assert_eq!(plan.take(), reset);
        assert_eq!(plan.take(), reset);
        assert_eq!(plan.take(), Faults::default());
        plan.plan(9, reset);
        plan.plan(0, Faults::default());
        assert_eq!(plan.pending(), 0);
    }
}
