//! A body as a client sends it: what is changed is changed, what is not stays byte for byte, and
//! nothing internal is left however it is read.
#![no_main]

use kindred::wire::{
    body::BodyView,
    object::Object,
    pruning::{self, TOP_LEVEL},
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = BodyView::parse(bytes) else {
        return;
    };
    let spliced = view.splice(&[("fuzzed", Some("1"))]);
    let again = BodyView::parse(&spliced).expect("a body still");
    let others = |object: &Object<'_>| -> Vec<(String, String)> {
        let members = object.members().iter();
        let others = members.filter(|(name, _)| name != "fuzzed");
        others
            .map(|(name, raw)| (name.to_string(), raw.get().to_owned()))
            .collect()
    };
    assert_eq!(others(view.object()), others(again.object()));

    let pruned = pruning::prune(&view);
    let left = pruned.as_ref().map_or(bytes, |pruned| &pruned.body);
    // Of deep nesting and huge numbers this reader takes less than the body's.
    let Ok(left) = serde_json::from_slice::<Value>(left) else {
        return;
    };
    for name in TOP_LEVEL {
        assert!(left.get(name).is_none(), "{name}");
    }
    let parent = left.pointer("/conversation_params/subagent_affinity_id");
    assert!(parent.is_none());
});
