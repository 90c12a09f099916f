//! The judge of what workers saw can fail: records that are doctored are found, each by what is wrong.

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{
        Role,
        headers::{AFFINITY_AUTH, AFFINITY_ID, DATA_PARALLEL_RANK, DISAGG_AUTH},
    },
};

use crate::{
    KEY, RANKS,
    support::{chat, fleet, guarded::Guarded, raw},
    unclean::unclean,
};

const PARENT: &str = "parent";

/// What the workers of both legs saw of a sub-agent's honest request.
fn honest() -> [(Role, Recorded); 2] {
    let fleet = fleet::start(1, 1, |config| config.engine.ranks = RANKS);
    let more =
        "conversation_affinity_header_for_subagents: x-parent\nsubagent_affinity_scope: both\n";
    let site = Guarded::open(fleet, KEY, RANKS, more);
    let headers = [("x-session-id", "child"), ("x-parent", PARENT)];
    let path = "/v1/chat/completions";
    let answer = raw::post(site.edge.edge(), path, &headers, &chat("hello").to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    [Role::Context, Role::Generation].map(|role| (role, site.fleet.requests(role).pop().unwrap()))
}

fn add(record: &mut Recorded, name: &str, value: &str) {
    record.headers.push((name.to_owned(), value.to_owned()));
}

fn value<'a>(record: &'a mut Recorded, name: &str) -> &'a mut String {
    let mut headers = record.headers.iter_mut();
    let found = headers.find(|(known, _)| known.eq_ignore_ascii_case(name));
    &mut found.unwrap().1
}

fn copied(record: &mut Recorded, name: &str) {
    let value = value(record, name).clone();
    add(record, name, &value);
}

/// Adds a member to the body.
fn write(record: &mut Recorded, member: &str) {
    record.body.insert_str(1, &format!("{member},"));
}

type Doctor = fn(&mut Recorded);

/// What was done to a record of either leg, and a part of what has to be said of it.
const DOCTORED: [(&str, Doctor, &str); 22] = [
    ("two ids", |r| copied(r, AFFINITY_ID), "affinity of"),
    (
        "two signatures of affinity",
        |r| copied(r, AFFINITY_AUTH),
        "affinity of",
    ),
    ("two ranks", |r| copied(r, DATA_PARALLEL_RANK), "rank told"),
    (
        "two signatures of a hand-over",
        |r| {
            add(r, DISAGG_AUTH, "sha256=00");
            add(r, DISAGG_AUTH, "sha256=00");
        },
        "signatures",
    ),
    (
        "an id with underscores",
        |r| add(r, &AFFINITY_ID.replace('-', "_"), PARENT),
        "affinity of",
    ),
    (
        "a rank with underscores",
        |r| add(r, "X_Data_Parallel_Rank", "0"),
        "rank told",
    ),
    (
        "a signature in capitals",
        |r| add(r, &AFFINITY_AUTH.to_uppercase(), "x"),
        "affinity of",
    ),
    (
        "another parent",
        |r| "other".clone_into(value(r, AFFINITY_ID)),
        "affinity of",
    ),
    (
        "a forged signature",
        |r| "sha256=00".clone_into(value(r, AFFINITY_AUTH)),
        "BadAffinity",
    ),
    (
        "a signature of another body",
        |r| r.body = r.body.replace("\"child\"", "\"other\""),
        "BadAffinity",
    ),
    (
        "no affinity",
        |r| {
            r.headers
                .retain(|(name, _)| !name.starts_with("x-trtllm-sub"))
        },
        "affinity of",
    ),
    (
        "no rank",
        |r| r.headers.retain(|(name, _)| name != DATA_PARALLEL_RANK),
        "rank told",
    ),
    (
        "another rank",
        |r| "7".clone_into(value(r, DATA_PARALLEL_RANK)),
        "rank told",
    ),
    (
        "a name that nobody uses yet",
        |r| add(r, "x-trtllm-next", "1"),
        "internal header x-trtllm-next",
    ),
    (
        "a name of Kindred's own",
        |r| add(r, "x_kindred_rank", "1"),
        "internal header x_kindred_rank",
    ),
    (
        "a parent as a program names it",
        |r| add(r, "X_Parent_Session_Id", "p"),
        "internal header X_Parent",
    ),
    (
        "a header that no worker needs",
        |r| add(r, "x-session-id", "child"),
        "saw header x-session-id",
    ),
    (
        "a client's value",
        |r| add(r, "content-type", "evil"),
        "saw content-type: evil",
    ),
    (
        "a field that chooses a place",
        |r| write(r, "\"data_parallel_rank\":0"),
        "body field data_parallel_rank",
    ),
    (
        "a member twice",
        |r| write(r, "\"model\":\"m\""),
        "ambiguous body",
    ),
    (
        "a client's number",
        |r| r.body = r.body.replace("\"max_tokens\":4", "\"max_tokens\":666"),
        "a client's value",
    ),
    (
        "a parent in the body",
        |r| {
            let params = "\"conversation_params\":{";
            r.body = r
                .body
                .replace(params, &format!("{params}\"subagent_affinity_id\":\"p\","));
        },
        "conversation_params",
    ),
];

#[test]
fn a_doctored_record_is_found_by_what_is_wrong_with_it() {
    for (role, record) in honest() {
        assert_eq!(unclean(&record, role, Some(PARENT)), [""; 0]);
        for (what, doctor, said) in DOCTORED {
            let mut doctored = record.clone();
            doctor(&mut doctored);
            let wrong = unclean(&doctored, role, Some(PARENT));
            let named = wrong.iter().any(|wrong| wrong.contains(said));
            assert!(named, "{what} at {role:?}: {wrong:?}");
        }
    }
}

#[test]
fn a_hand_over_is_found_where_it_is_unsigned_or_anothers() {
    let [(context, asked), (generation, handed)] = honest();
    let judged = |role, record: &Recorded| unclean(record, role, Some(PARENT)).join("\n");
    let mut unsigned = handed.clone();
    unsigned.headers.retain(|(name, _)| name != DISAGG_AUTH);
    assert!(judged(generation, &unsigned).contains("BadKvTransfer"));
    let mut forged = handed.clone();
    "sha256=00".clone_into(value(&mut forged, DISAGG_AUTH));
    assert!(judged(generation, &forged).contains("BadKvTransfer"));
    // Each leg's record is wrong at the other.
    assert!(judged(generation, &asked).contains("request type"));
    assert!(judged(context, &handed).contains("request type"));
    let nobodys = unclean(&handed, generation, None).join("\n");
    assert!(nobodys.contains("affinity of"), "{nobodys}");
}
