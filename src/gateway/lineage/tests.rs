use super::*;
use crate::config::SubagentPolicy;

fn client(id: ClientId, name: &str) -> Client {
    Client {
        places: None,
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
    lineage.record(&ada, "s");
    assert!(lineage.owns(&ada, "s"));
    assert!(!lineage.owns(&ben, "s"));
    lineage.record(&ben, "s");
    assert_eq!(lineage.len(), 2);
}

#[test]
fn a_client_is_its_name_and_not_its_position() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Named(0), "ada"), "s");
    assert!(lineage.owns(&client(ClientId::Named(7), "ada"), "s"));
    assert!(!lineage.owns(&client(ClientId::Named(0), "ben"), "s"));
}

#[test]
fn nobody_is_anonymous_by_name() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Anonymous, "anonymous"), "s");
    assert!(!lineage.owns(&client(ClientId::Named(0), "anonymous"), "s"));
}

#[test]
fn names_and_ids_cannot_be_shifted_into_each_other() {
    let lineage = Lineage::new(100);
    lineage.record(&client(ClientId::Named(0), "ab"), "c");
    assert!(!lineage.owns(&client(ClientId::Named(0), "a"), "bc"));
}

#[test]
fn the_bound_holds_and_use_keeps_a_session() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(3200);
    lineage.record(&ada, "kept");
    for round in 0..100_000 {
        lineage.record(&ada, &format!("session-{round}"));
        if round % 100 == 0 {
            assert!(lineage.owns(&ada, "kept"), "lost after {round}");
        }
    }
    assert!(lineage.len() <= 3200, "{}", lineage.len());
    assert!(lineage.owns(&ada, "session-99999"));
    assert!(!lineage.owns(&ada, "session-0"));
}

#[test]
fn asking_for_a_session_does_not_make_it_seen() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(100);
    assert!(!lineage.owns(&ada, "s"));
    assert!(!lineage.owns(&ada, "s"));
    assert!(lineage.is_empty());
}

#[test]
fn a_smaller_bound_takes_effect() {
    let ada = client(ClientId::Named(0), "ada");
    let lineage = Lineage::new(32_000);
    let record = |from: usize| {
        for session in from..from + 20_000 {
            lineage.record(&ada, &session.to_string());
        }
    };
    record(0);
    assert_eq!(lineage.len(), 20_000);
    lineage.set_capacity(320);
    assert_eq!(lineage.len(), 320);
    assert!(lineage.owns(&ada, "19999"));
    record(20_000);
    assert_eq!(lineage.len(), 320);
}
