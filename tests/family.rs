//! A family of agents stays together: the table of the feature document against the running demo.

mod support;

use std::{collections::HashSet, thread};

use serde_json::{Value, json};
use support::{Kindred, raw};

const PARENT: &str = "X-Dynamo-Parent-Session-ID";

/// Where one turn of an agent was served, and the answer.
#[derive(Debug)]
struct Turn {
    context: String,
    rank: String,
    generation: String,
    answer: Value,
}

impl Turn {
    /// Context instance and rank.
    fn place(&self) -> (&str, &str) {
        (&self.context, &self.rank)
    }

    fn cached_tokens(&self) -> u64 {
        self.answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    }
}

/// Turn number `number` (from 0) of an agent whose family shares a long beginning.
fn turn(demo: &Kindred, family: &str, session: &str, parent: Option<&str>, number: usize) -> Turn {
    let task = "Read the whole report before you answer and keep your answers short. ".repeat(4);
    let mut messages = vec![json!({"role": "system", "content": format!("{family}: {task}")})];
    for step in 0..=number {
        let content = format!("{session} does step {step}");
        messages.push(json!({"role": "user", "content": content}));
    }
    let body = json!({"model": "demo", "max_tokens": 4, "messages": messages}).to_string();
    let mut headers = vec![("x-session-id", session)];
    headers.extend(parent.map(|parent| (PARENT, parent)));
    let answer = raw::post(demo.edge(), "/v1/chat/completions", &headers, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let named = |name: &str| answer.header(name).unwrap().to_owned();
    Turn {
        context: named("x-kindred-context"),
        rank: named("x-kindred-rank"),
        generation: named("x-kindred-generation"),
        answer: answer.json(),
    }
}

/// The table of the feature document: parent, sub-agent A, sub-agent B, three turns each.
fn table(demo: &Kindred) -> [Vec<Turn>; 3] {
    let agents = [
        ("parent-1", None),
        ("child-a", Some("parent-1")),
        ("child-b", Some("parent-1")),
    ];
    let mut turns: [Vec<Turn>; 3] = Default::default();
    for number in 0..3 {
        for (turns, (session, parent)) in turns.iter_mut().zip(agents) {
            turns.push(turn(demo, "the family", session, parent, number));
            demo.assert_idle();
        }
    }
    turns
}

fn only<'a>(values: impl Iterator<Item = &'a str>) -> &'a str {
    let values: HashSet<&str> = values.collect();
    assert_eq!(values.len(), 1, "{values:?}");
    values.into_iter().next().unwrap()
}

fn assert_one_context_place(turns: &[Vec<Turn>; 3]) {
    let places: HashSet<_> = turns.iter().flatten().map(Turn::place).collect();
    assert_eq!(places.len(), 1, "{places:?}");
}

#[test]
fn in_scope_context_a_family_shares_instance_and_rank_and_each_generates_where_it_is_bound() {
    let demo = Kindred::demo(&[]);
    let turns = table(&demo);
    assert_one_context_place(&turns);
    let bound: Vec<&str> = turns
        .iter()
        .map(|turns| only(turns.iter().map(|turn| turn.generation.as_str())))
        .collect();
    // Each has a binding of its own: on an idle fleet new ones take turns.
    assert_ne!(bound[0], bound[1]);
    assert_ne!(bound[1], bound[2]);
    // One binding for the family's context, and one for each agent's generation.
    assert_eq!(
        demo.metric("kindred_affinity_bindings", &[r#"fleet="context""#]),
        1.0
    );
    assert_eq!(
        demo.metric("kindred_affinity_bindings", &[r#"fleet="generation""#]),
        3.0
    );
    let decisions = |fleet: &str, decision: &str| {
        let labels = [format!("fleet={fleet:?}"), format!("decision={decision:?}")];
        demo.metric(
            "kindred_affinity_decisions_total",
            &[&labels[0], &labels[1]],
        )
    };
    assert_eq!(
        [decisions("context", "new"), decisions("context", "bound")],
        [1.0, 8.0]
    );
    assert_eq!(
        [
            decisions("generation", "new"),
            decisions("generation", "bound")
        ],
        [3.0, 6.0]
    );
}

#[test]
fn in_scope_both_a_family_generates_where_its_parent_does() {
    let demo = Kindred::demo(&["--scope", "both"]);
    let turns = table(&demo);
    assert_one_context_place(&turns);
    only(turns.iter().flatten().map(|turn| turn.generation.as_str()));
    assert_eq!(
        demo.metric("kindred_affinity_bindings", &[r#"fleet="generation""#]),
        1.0
    );
}

#[test]
fn sub_agents_find_what_their_parent_computed() {
    let demo = Kindred::demo(&[]);
    let parent = turn(&demo, "planners", "parent-1", None, 0);
    assert_eq!(parent.cached_tokens(), 0);
    demo.assert_idle();
    let child = turn(&demo, "planners", "child-a", Some("parent-1"), 0);
    let shared = child.cached_tokens();
    assert!(shared > 0);
    let second = turn(&demo, "planners", "child-a", Some("parent-1"), 1);
    assert!(second.cached_tokens() > shared);
    demo.assert_idle();
    // The control: the same words in a session of its own land where nothing is known of them.
    let stranger = turn(&demo, "planners", "stranger", None, 0);
    assert_ne!(stranger.place(), parent.place());
    assert_eq!(stranger.cached_tokens(), 0);
}

#[test]
fn twelve_sub_agents_at_once_stay_with_their_parent_over_three_turns() {
    for scope in ["context", "both"] {
        let demo = Kindred::demo(&["--scope", scope]);
        let parent = turn(&demo, "crowd", "parent-1", None, 0);
        let turns: Vec<Vec<Turn>> = thread::scope(|threads| {
            let agents: Vec<_> = (0..12)
                .map(|child| {
                    let (demo, session) = (&demo, format!("child-{child}"));
                    threads.spawn(move || {
                        let number = 0..3;
                        number
                            .map(|number| turn(demo, "crowd", &session, Some("parent-1"), number))
                            .collect()
                    })
                })
                .collect();
            agents
                .into_iter()
                .map(|agent| agent.join().unwrap())
                .collect()
        });
        let last = turn(&demo, "crowd", "parent-1", None, 1);
        for turn in turns.iter().flatten().chain([&last]) {
            assert_eq!(turn.place(), parent.place(), "{scope}");
            assert!(turn.cached_tokens() > 0, "{scope}");
        }
        let bound: Vec<&str> = turns
            .iter()
            .map(|turns| only(turns.iter().map(|turn| turn.generation.as_str())))
            .collect();
        let all: HashSet<&str> = bound.iter().copied().collect();
        assert_eq!(last.generation, parent.generation);
        match scope {
            "context" => assert_eq!(all.len(), 2, "thirteen bindings over two instances"),
            _ => assert_eq!(all, HashSet::from([parent.generation.as_str()])),
        }
        demo.assert_idle();
    }
}

#[test]
fn families_do_not_mix() {
    let demo = Kindred::demo(&["--scope", "both"]);
    let mut parents = Vec::new();
    for parent in ["parent-1", "parent-2"] {
        parents.push(turn(&demo, parent, parent, None, 0));
        demo.assert_idle();
    }
    assert_ne!(parents[0].context, parents[1].context);
    assert_ne!(parents[0].generation, parents[1].generation);
    for number in 0..3 {
        for (parent, first) in ["parent-1", "parent-2"].iter().zip(&parents) {
            for child in ["a", "b"] {
                let session = format!("{parent}-{child}");
                let turn = turn(&demo, parent, &session, Some(parent), number);
                assert_eq!(turn.place(), first.place());
                assert_eq!(turn.generation, first.generation);
                assert!(turn.cached_tokens() > 0);
            }
        }
    }
}

#[test]
fn a_parent_comes_and_goes_with_the_request_that_names_it() {
    let demo = Kindred::demo(&[]);
    let parent = turn(&demo, "movers", "parent-1", None, 0);
    demo.assert_idle();
    let other = turn(&demo, "movers", "other", None, 0);
    assert_ne!(other.context, parent.context);
    // The same session follows the parent that this request names, and only in this request.
    let visit = turn(&demo, "movers", "other", Some("parent-1"), 1);
    assert_eq!(visit.place(), parent.place());
    let home = turn(&demo, "movers", "other", None, 2);
    assert_eq!(home.place(), other.place());
}
