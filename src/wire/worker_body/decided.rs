//! Fields by which a body would decide what the filter in front of its worker decides.
//!
//! A worker is told a parent in a signed header, and a rank by the filter that places. An engine might
//! believe the body over either, and no signature covers these fields, so a request that has one is
//! not to be forwarded. An honest edge sends none; `null` says nothing.

use crate::wire::{
    conversation::{PARAMS, PARENT},
    object::Object,
    pruning::CONVERSATION_PARENT,
};

/// Fields by which engines let a request choose its rank.
const RANKS: [&str; 3] = [
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
];

/// The first such field of a body; those of ranks only where the filter places.
pub fn of_members(body: &Object<'_>, places: bool) -> Option<&'static str> {
    let mut ranks = RANKS.into_iter().filter(|_| places);
    let rank = ranks.find(|rank| says(body, rank));
    rank.or_else(|| names_a_parent(body).then_some(CONVERSATION_PARENT))
}

/// As [`of_members`], of a body that has more than one reading: where any reader might find one.
pub fn of_bytes(body: &[u8], places: bool) -> Option<&'static str> {
    let text = std::str::from_utf8(body).ok();
    if let Some(object) = text.and_then(|text| Object::parse(text).ok()) {
        return of_members(&object, places);
    }
    let holds = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
    let mut ranks = RANKS.into_iter().filter(|_| places);
    let rank = ranks.find(|rank| holds(rank));
    rank.or_else(|| holds(PARENT).then_some(CONVERSATION_PARENT))
}

/// Whether any copy of a member is more than `null`.
fn says(object: &Object<'_>, name: &str) -> bool {
    let mut members = object.members().iter();
    members.any(|(own, value)| own == name && value.get() != "null")
}

fn names_a_parent(body: &Object<'_>) -> bool {
    let members = body.members().iter();
    let groups = members.filter(|(name, _)| name == PARAMS);
    let mut groups = groups.filter_map(|(_, raw)| Object::parse(raw.get()).ok());
    groups.any(|params| says(&params, PARENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_and_spelling_is_found() {
        for (body, found) in [
            (r#"{"model":"m","data_parallel_rank":null}"#, None),
            (r#"{"model":"data_parallel_rank"}"#, None),
            (r#"{"routed\u005fdp_rank":0}"#, Some("routed_dp_rank")),
            (
                r#"{"data_parallel_rank":1,"data_parallel_rank":null}"#,
                Some("data_parallel_rank"),
            ),
            (
                r#"{"conversation_params":{"subagent_affinity_i\u0064":"p"}}"#,
                Some(CONVERSATION_PARENT),
            ),
            (
                r#"{"conversation_params":{"subagent_affinity_id":null}}"#,
                None,
            ),
            // Python reads `NaN`.
            (
                r#"{"top_p":NaN,"disagg_prefill_dp_rank":1}"#,
                Some("disagg_prefill_dp_rank"),
            ),
            (r#"{"top_p":NaN}"#, None),
        ] {
            assert_eq!(of_bytes(body.as_bytes(), true), found, "{body}");
        }
        assert_eq!(of_bytes(br#"{"data_parallel_rank":1}"#, false), None);
    }
}
