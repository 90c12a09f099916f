//! How an instance that came back gets its share little by little.
//!
//! Decides by the instance's weight, which grows to 1: while it is idle it takes part in that share of
//! the picks, else what is in flight on it counts for more. So it is never flooded for having nothing
//! to do. The turn is what chance goes by, so that the same picks come out the same again. Sessions
//! that are bound to the instance are none of its business.

use crate::fleet::Instance;

/// The golden ratio as a part of 2^64: its multiples are spread evenly.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Whether an instance of this weight takes part in this turn.
pub(super) fn takes_part(weight: f64, turn: u64) -> bool {
    weight >= 1.0 || turn.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64 <= weight
}

/// What the load of an instance counts for in this turn; `None` where it takes no part.
pub(super) fn load(instance: &Instance, turn: u64, load: u64) -> Option<u64> {
    let weight = instance.health().weight();
    if weight >= 1.0 {
        return Some(load);
    }
    match load {
        0 => takes_part(weight, turn).then_some(0),
        busy => Some((busy as f64 / weight) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_turns_is_the_weight() {
        for weight in [0.05, 0.3, 0.75] {
            let taken = (0..1000).filter(|turn| takes_part(weight, *turn)).count();
            assert!(
                taken.abs_diff((weight * 1000.0) as usize) < 10,
                "{weight}: {taken}"
            );
        }
    }
}
