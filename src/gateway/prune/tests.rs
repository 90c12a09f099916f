use super::*;

const INTERNAL: [&str; 8] = [
    AFFINITY_ID,
    AFFINITY_AUTH,
    DISAGG_AUTH,
    MSGPACK,
    DATA_PARALLEL_RANK,
    "x-kindred-rank",
    "x-trtllm-something-new",
    "x-parent",
];

fn pruner() -> Pruner {
    Pruner::new(["x-parent"].into_iter(), &["x-team".to_owned()])
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        map.append(name, value.parse().expect("a header value"));
    }
    map
}

fn removed(pairs: &[(&str, &str)]) -> Vec<String> {
    let pruned = pruner().prune(&headers(pairs));
    let names = pruned.remove.iter().map(|name| name.as_str().to_owned());
    names.collect()
}

/// Every way to write `name` with its dashes as underscores or not.
fn dash_spellings(name: &str) -> Vec<String> {
    name.chars().fold(vec![String::new()], |heads, c| {
        let choices: &[char] = if c == '-' { &['-', '_'] } else { &[c] };
        let with = |head: &String| {
            let head = head.clone();
            choices
                .iter()
                .map(move |c| format!("{head}{c}"))
                .collect::<Vec<_>>()
        };
        heads.iter().flat_map(with).collect()
    })
}

#[test]
fn every_internal_name_goes_in_every_spelling() {
    let mut tried = 0;
    for name in INTERNAL.into_iter().chain(PARENT_HEADERS).chain(["x-team"]) {
        for spelling in dash_spellings(name) {
            for cased in [spelling.to_uppercase(), spelling.clone()] {
                assert_eq!(removed(&[(&cased, "v")]), [spelling.as_str()], "{cased}");
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "{tried}");
}

#[test]
fn all_copies_and_all_spellings_at_once_go_and_are_counted() {
    let before = metrics().pruned_header(PrunedHeader::DisaggAuth).get();
    let mut map = headers(&[
        ("x-trtllm-disagg-auth", "a"),
        ("X-TRTLLM-Disagg-Auth", "b"),
        ("x_trtllm_disagg_auth", "c, d"),
        ("content-type", "application/json"),
    ]);
    for name in pruner().prune(&map).remove {
        map.remove(name);
    }
    let left: Vec<_> = map.keys().map(HeaderName::as_str).collect();
    assert_eq!(left, ["content-type"]);
    // Other tests count the same name at the same time.
    let after = metrics().pruned_header(PrunedHeader::DisaggAuth).get();
    assert!(after >= before + 3, "{before} {after}");
}

#[test]
fn what_only_looks_alike_stays() {
    let pairs = [
        ("x-session-id", "s"),
        ("authorization", "Bearer k"),
        ("x-trtllm", "v"),
        ("x-kindred", "v"),
        ("x-data-parallel-rank-hint", "v"),
        ("ax-trtllm-disagg-auth", "v"),
        ("x-parents", "v"),
        ("x-parent-", "v"),
        ("trtllm-msgpack", "v"),
    ];
    assert_eq!(removed(&pairs), [""; 0]);
}

#[test]
fn a_value_changes_nothing() {
    for value in ["", " ", "0", "x-trtllm-disagg-auth"] {
        assert_eq!(removed(&[("x-kindred-rank", value)]), ["x-kindred-rank"]);
    }
}

#[test]
fn nominations_in_connection_go_and_the_others_stay() {
    let pruned = pruner().prune(&headers(&[
        ("connection", "keep-alive, X-TRTLLM-Disagg_Auth"),
        ("connection", ",x-parent , te"),
    ]));
    assert_eq!(pruned.remove, [CONNECTION]);
    assert_eq!(
        pruned.connection,
        Some(HeaderValue::from_static("keep-alive, te"))
    );

    let all = pruner().prune(&headers(&[("connection", "x-kindred-rank")]));
    assert_eq!((all.remove, all.connection), (vec![CONNECTION], None));

    let none = pruner().prune(&headers(&[("connection", "keep-alive, te")]));
    assert_eq!(none, Pruned::default());
}

#[test]
fn the_usual_parent_header_goes_also_where_affinity_is_off() {
    let pruner = Pruner::new(std::iter::empty(), &[]);
    for name in PARENT_HEADERS {
        assert_eq!(pruner.prune(&headers(&[(name, "p")])).remove, [name]);
    }
}

#[test]
fn every_field_that_is_pruned_from_bodies_has_a_label() {
    use crate::{
        telemetry::labels::{Label, PrunedField},
        wire::pruning::{TOP_LEVEL, WITHIN},
    };
    let within = WITHIN.map(|(_, _, label)| label);
    let names = TOP_LEVEL.into_iter().chain(within);
    for name in names {
        assert!(PrunedField::from_text(name).is_some(), "{name}");
    }
    assert_eq!(PrunedField::ALL.len(), TOP_LEVEL.len() + WITHIN.len());
}

#[test]
fn a_trusted_parent_header_goes_without_being_counted() {
    let counted = || metrics().pruned_configured_header("x-trusted").get();
    let before = counted();
    let trusting = Pruner::new(["x-trusted"].into_iter(), &[]).trusting(Some("x-trusted"));
    let pruned = trusting.prune(&headers(&[("x-trusted", "p")]));
    assert_eq!((pruned.remove.len(), counted()), (1, before));
    trusting.prune(&headers(&[("x_trusted", "p")]));
    assert_eq!(counted(), before + 1);
}
