use super::*;
use crate::{config::SubagentPolicy, gateway::limits::Limits};

const TTL: Duration = Duration::from_secs(60);
const NOW: Seconds = Seconds(1000);

fn client(id: ClientId, name: &str) -> Client {
    Client {
        places: None,
        limits: Limits::new(&Default::default(), None),
        id,
        name: name.into(),
        subagents: SubagentPolicy::Owned,
    }
}

#[test]
fn equal_ids_of_two_clients_are_two_sessions() {
    let (ada, ben) = (
        client(ClientId::Named(0), "ada"),
        client(ClientId::Named(1), "ben"),
    );
    let lineage = Lineage::new(100);
    lineage.record(&ada, "s", None, NOW);
    assert!(lineage.owns(&ada, "s", TTL, NOW));
    assert!(!lineage.owns(&ben, "s", TTL, NOW));
    lineage.record(&ben, "s", None, NOW);
    assert_eq!(lineage.len(), 2);
}

#[test]
fn a_client_is_its_name_and_not_its_position() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Named(0), "ada"), "s", None, NOW);
    assert!(lineage.owns(&client(ClientId::Named(7), "ada"), "s", TTL, NOW));
    assert!(!lineage.owns(&client(ClientId::Named(0), "ben"), "s", TTL, NOW));
}

#[test]
fn nobody_is_anonymous_by_name() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Anonymous, "anonymous"), "s", None, NOW);
    assert!(!lineage.owns(&client(ClientId::Named(0), "anonymous"), "s", TTL, NOW));
}

#[test]
fn names_and_ids_cannot_be_shifted_into_each_other() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Named(0), "ab"), "c", None, NOW);
    assert!(!lineage.owns(&client(ClientId::Named(0), "a"), "bc", TTL, NOW));
}

#[test]
fn the_bound_holds_and_use_keeps_a_session() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(3200);
    lineage.record(&ada, "kept", None, NOW);
    for round in 0..100_000 {
        lineage.record(&ada, &format!("session-{round}"), None, NOW);
        if round % 100 == 0 {
            assert!(lineage.owns(&ada, "kept", TTL, NOW), "lost after {round}");
        }
    }
    assert!(lineage.len() <= 3200, "{}", lineage.len());
    assert!(lineage.owns(&ada, "session-99999", TTL, NOW));
    assert!(!lineage.owns(&ada, "session-0", TTL, NOW));
}

#[test]
fn asking_for_a_session_does_not_make_it_seen() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(100);
    assert!(!lineage.owns(&ada, "s", TTL, NOW));
    assert!(!lineage.owns(&ada, "s", TTL, NOW));
    assert!(lineage.is_empty());
}

#[test]
fn a_smaller_bound_takes_effect() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(32_000);
    let record = |from: usize| {
        for session in from..from + 20_000 {
            lineage.record(&ada, &session.to_string(), None, NOW);
        }
    };
    record(0);
    assert_eq!(lineage.len(), 20_000);
    lineage.set_capacity(320);
    assert_eq!(lineage.len(), 320);
    assert!(lineage.owns(&ada, "19999", TTL, NOW));
    record(20_000);
    assert_eq!(lineage.len(), 320);
}

#[test]
fn a_session_is_owned_for_a_time_after_its_last_use() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(100);
    lineage.record(&ada, "s", None, Seconds(0));
    assert!(lineage.owns(&ada, "s", TTL, Seconds(60)));
    // That was a use as well.
    assert!(lineage.owns(&ada, "s", TTL, Seconds(120)));
    assert!(!lineage.owns(&ada, "s", TTL, Seconds(181)));
    // Having asked in vain is none.
    assert!(!lineage.owns(&ada, "s", TTL, Seconds(182)));
    lineage.record(&ada, "s", None, Seconds(200));
    assert!(lineage.owns(&ada, "s", TTL, Seconds(201)));
}

#[test]
fn a_sub_agent_has_the_root_that_it_follows_now() {
    let ada = client(ClientId::Named(0), "ada");
    let ben = client(ClientId::Named(1), "ben");
    let lineage = Lineage::new(100);
    let root = |session, parent| lineage.root(&ada, (Some(session), parent), TTL, NOW);
    let is = |id: &str| Root::Session(id.into());
    assert_eq!(root("b", "a"), Root::Itself);
    lineage.record(&ada, "b", Some("a"), NOW);
    assert_eq!(root("c", "b"), is("a"));
    assert_eq!(root("c", "a"), Root::Itself);
    let of_another = lineage.root(&ben, (Some("c"), "b"), TTL, NOW);
    assert_eq!(of_another, Root::Itself);
    // The root becomes somebody's sub-agent, and is again on its own.
    lineage.record(&ada, "a", Some("r"), NOW);
    assert_eq!(root("c", "b"), is("r"));
    lineage.record(&ada, "a", None, NOW);
    assert_eq!(root("c", "b"), is("a"));
    let later = lineage.root(&ada, (Some("c"), "b"), TTL, Seconds(1061));
    assert_eq!(later, Root::Itself);
}

#[test]
fn sessions_that_name_each_other_have_no_root() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(100);
    let root = |session, parent| lineage.root(&ada, (session, parent), TTL, NOW);
    lineage.record(&ada, "b", Some("a"), NOW);
    assert_eq!(root(Some("a"), "b"), Root::Circle);
    lineage.record(&ada, "a", Some("b"), NOW);
    assert_eq!(root(Some("c"), "a"), Root::Circle);
    assert_eq!(root(None, "a"), Root::Circle);
}

#[test]
fn sub_agents_are_bounded_and_their_room_is_used_again() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(32);
    for number in 0..1000 {
        lineage.record(&ada, &format!("s{number}"), Some("a"), NOW);
    }
    assert_eq!(lineage.roots.lock().len(), 32);
    let newest = lineage.root(&ada, (None, "s999"), TTL, NOW);
    assert_eq!(newest, Root::Session("a".into()));
    assert_eq!(lineage.root(&ada, (None, "s900"), TTL, NOW), Root::Itself);
    lineage.set_capacity(16);
    assert_eq!(lineage.roots.lock().len(), 16);
}
