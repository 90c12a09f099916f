//! `limits` of a client: what it may take.

use std::num::NonZeroU32;

use crate::config::{
    ClientLimits,
    raw::{self, Field, Section},
    report::Report,
};

/// The most that can be asked for, of any of them.
const MOST: u32 = 1_000_000_000;

/// Reads the group; without it nothing is bounded.
pub(super) fn client_limits(field: Option<Field>, report: &mut Report) -> ClientLimits {
    let field = field.filter(|field| !field.is_null());
    let raw = field.map(|field| raw::ClientLimits::closed(field, report));
    let raw = raw.unwrap_or_default();
    if let (Some(burst), None) = (&raw.burst, &raw.requests_per_second) {
        report.error(
            &burst.at,
            "needs requests_per_second beside it: it says how many may come at once",
        );
    }
    let mut count = |field: Option<Field>| {
        let field = field.filter(|field| !field.is_null())?;
        field.integer(report, 1..=MOST)
    };
    ClientLimits {
        requests_per_second: count(raw.requests_per_second).and_then(NonZeroU32::new),
        burst: count(raw.burst).and_then(NonZeroU32::new),
        prompt_tokens_per_minute: count(raw.prompt_tokens_per_minute).map(u64::from),
        subagents_in_flight: count(raw.subagents_in_flight)
            .and_then(|most| usize::try_from(most).ok()),
    }
}
