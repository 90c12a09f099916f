//! `max_in_flight`, wherever it stands: how much is served at once.

use crate::config::{
    PlacesByRole,
    raw::{self, Field, Section, node::Value},
    report::Report,
};

/// The most that can be asked for.
const MOST: u32 = 10_000_000;

/// One bound.
pub(crate) fn places(field: Option<Field>, report: &mut Report) -> Option<usize> {
    let field = field.filter(|field| !field.is_null())?;
    let places = field.integer(report, 1..=MOST)?;
    usize::try_from(places).ok()
}

/// `limits.max_in_flight`: one bound for the fleets of every role, or one for each.
pub(crate) fn by_role(field: Option<Field>, report: &mut Report) -> PlacesByRole {
    match field {
        Some(field) if matches!(field.value, Value::Map(_)) => {
            let raw = raw::MaxInFlight::closed(field, report);
            PlacesByRole {
                context: places(raw.context, report),
                generation: places(raw.generation, report),
                aggregated: places(raw.aggregated, report),
            }
        }
        field => {
            let all = places(field, report);
            PlacesByRole {
                context: all,
                generation: all,
                aggregated: all,
            }
        }
    }
}
