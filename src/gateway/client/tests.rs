use http::StatusCode;

use super::*;
use crate::config::ClientConfig;

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn clients(anonymous: Option<SubagentPolicy>) -> Clients {
    let client = |name: &str, keys: &[&str], subagents| ClientConfig {
        max_in_flight: None,
        name: name.to_owned(),
        api_keys: keys.iter().map(|key| digest(key)).collect(),
        subagents,
        ..Default::default()
    };
    Clients::new(
        &GatewayConfig {
            clients: vec![
                client("ada", &["key-a", "key-a2"], SubagentPolicy::Owned),
                client("ben", &["key-b"], SubagentPolicy::None),
            ],
            anonymous,
            prune_headers: Vec::new(),
            max_sessions: 100,
            ..Default::default()
        },
        None,
    )
}

fn identify(clients: &Clients, values: &[&[u8]]) -> Result<String, &'static str> {
    let mut headers = HeaderMap::new();
    for value in values {
        let value = HeaderValue::from_bytes(value).expect("a header value");
        headers.append(AUTHORIZATION, value);
    }
    let client = clients
        .identify(&Presented::headers(&headers))
        .map_err(|refusal| {
            assert_eq!(refusal.status, StatusCode::UNAUTHORIZED);
            assert!(refusal.www_authenticate.is_some());
            assert!(
                refusal.message.contains("Authorization: Bearer"),
                "{refusal}"
            );
            refusal.code
        })?;
    Ok(client.name.to_string())
}

#[test]
fn every_key_of_a_client_is_the_client() {
    let clients = clients(None);
    for (value, name) in [
        ("Bearer key-a", "ada"),
        ("bearer key-a2", "ada"),
        ("BEARER   key-b", "ben"),
        ("Bearer\tkey-b ", "ben"),
    ] {
        assert_eq!(
            identify(&clients, &[value.as_bytes()]),
            Ok(name.to_owned()),
            "{value}"
        );
    }
}

#[test]
fn everything_else_is_refused() {
    let clients = clients(None);
    assert_eq!(identify(&clients, &[]), Err("missing_api_key"));
    for value in [
        &b"Bearer wrong"[..],
        b"Bearer key-a,key-b",
        b"Bearer key-a, Bearer key-a",
        b"Bearer key-a key-a",
        b"Bearer \"key-a\"",
        b"Bearer",
        b"Bearer ",
        b"Bearerkey-a",
        b"Basic key-a",
        b"key-a",
        b"",
        b"Bear\xc3\xa9r key-a",
        b"Bearer \xff\xfe",
    ] {
        assert_eq!(
            identify(&clients, &[value]),
            Err("invalid_api_key"),
            "{value:?}"
        );
    }
    let twice: [&[u8]; 2] = [b"Bearer key-a", b"Bearer key-a"];
    assert_eq!(identify(&clients, &twice), Err("ambiguous_authorization"));
}

#[test]
fn a_wrong_key_is_not_anonymous() {
    let clients = clients(Some(SubagentPolicy::None));
    assert_eq!(identify(&clients, &[]), Ok("anonymous".to_owned()));
    assert_eq!(
        identify(&clients, &[b"Bearer wrong"]),
        Err("invalid_api_key")
    );
    assert_eq!(identify(&clients, &[b"Bearer key-a"]), Ok("ada".to_owned()));
}

#[test]
fn without_clients_every_key_is_a_placeholder() {
    let clients = Clients::new(
        &GatewayConfig {
            clients: Vec::new(),
            anonymous: Some(SubagentPolicy::Owned),
            prune_headers: Vec::new(),
            max_sessions: 100,
            ..Default::default()
        },
        None,
    );
    assert_eq!(
        identify(&clients, &[b"Bearer EMPTY"]),
        Ok("anonymous".to_owned())
    );
}

#[test]
fn debug_shows_no_digest() {
    let text = format!("{:?}", clients(None));
    assert!(text.contains("ada"), "{text}");
    assert!(!text.contains(&format!("{:?}", digest("key-a"))), "{text}");
}
