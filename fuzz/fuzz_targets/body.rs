//! A body as a client sends it: what is changed is changed, what is not stays byte for byte, and
//! nothing internal is left however it is read.
#![no_main]

use std::{collections::HashSet, fmt};

use kindred::wire::{
    body::BodyView,
    conversation,
    pruning::{self, TOP_LEVEL, WITHIN},
};
use libfuzzer_sys::fuzz_target;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = BodyView::parse(bytes) else {
        return;
    };
    let sent = members(bytes).expect("an object");
    spliced(&view, &sent);
    pruned(&view, &sent);
    forwarded(&view);
});

/// A further member changes no other one.
fn spliced(view: &BodyView<'_>, sent: &[Member]) {
    let spliced = view.splice(&[("fuzzed", Some("1"))]);
    BodyView::parse(&spliced).expect("a body still");
    let mut expected: Vec<_> = sent.iter().map(of).collect();
    match expected.iter_mut().find(|(name, _)| *name == "fuzzed") {
        Some((_, value)) => *value = "1",
        None => expected.push(("fuzzed", "1")),
    }
    let got = members(&spliced).expect("an object");
    assert_eq!(got.iter().map(of).collect::<Vec<_>>(), expected);
}

/// Nothing internal is left in any copy, so that a reader who takes the first of two members and one
/// who takes the last agree; all else is as it was.
fn pruned(view: &BodyView<'_>, sent: &[Member]) {
    let pruned = pruning::prune(view);
    let left = pruned.as_ref().map_or(view.bytes(), |pruned| &pruned.body);
    let again = BodyView::parse(left).expect("a body still");
    assert_eq!(pruning::prune(&again), None);

    let left = members(left).expect("an object");
    assert!(is_unique(&left));
    let stays = sent
        .iter()
        .filter(|(name, _)| !TOP_LEVEL.contains(&name.as_str()));
    let stays: Vec<_> = stays.collect();
    assert_eq!(left.len(), stays.len());
    for ((name, value), (sent_name, sent_value)) in left.iter().zip(stays) {
        assert_eq!(name, sent_name);
        let internal: Vec<&str> = WITHIN
            .iter()
            .filter(|(group, ..)| group == name)
            .map(|(_, field, _)| *field)
            .collect();
        let Some(group) = members(value.get().as_bytes()).filter(|_| !internal.is_empty()) else {
            assert_eq!(value.get(), sent_value.get());
            continue;
        };
        assert!(is_unique(&group), "{name}");
        let sent = members(sent_value.get().as_bytes()).expect("an object");
        let stays = sent.iter().map(of);
        let stays: Vec<_> = stays
            .filter(|(field, _)| !internal.contains(field))
            .collect();
        assert_eq!(group.iter().map(of).collect::<Vec<_>>(), stays, "{name}");
    }
}

/// The conversation that the workers are told is the one that was understood, and has no parent.
fn forwarded(view: &BodyView<'_>) {
    let nowhere: [(String, String); 0] = [];
    let Ok(Some(id)) = conversation::resolve(&nowhere[..], view) else {
        return;
    };
    let params = conversation::forwarded_params(view, Some(&id)).expect("a conversation");
    let fields = members(params.as_bytes()).expect("an object");
    assert!(fields.iter().all(|(name, _)| name != conversation::PARENT));
    let body = view.splice(&[(conversation::PARAMS, Some(&*params))]);
    let again = BodyView::parse(&body).expect("a body still");
    assert_eq!(conversation::resolve(&nowhere[..], &again), Ok(Some(id)));
}

type Member = (String, Box<RawValue>);

fn of((name, value): &Member) -> (&str, &str) {
    (name, value.get())
}

fn is_unique(members: &[Member]) -> bool {
    let mut seen = HashSet::new();
    members.iter().all(|(name, _)| seen.insert(name))
}

/// Every member of an object in order, by a reader that shares nothing with the one it checks.
fn members(text: &[u8]) -> Option<Vec<Member>> {
    struct Members(Vec<Member>);
    struct EveryMember;
    impl<'de> Visitor<'de> for EveryMember {
        type Value = Members;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(Members(members))
        }
    }
    impl<'de> Deserialize<'de> for Members {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(EveryMember)
        }
    }
    serde_json::from_slice::<Members>(text)
        .ok()
        .map(|members| members.0)
}
