use http::StatusCode;

use super::*;
use crate::config::ClientConfig;

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn clients(anonymous: Option<SubagentPolicy>) -> Clients {
    let client = |name: &str, keys: &[&str], subagents| ClientConfig {
        max_in_flight: None,
        limits: Default::default(),
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

/// Who it is for these certificate names and this key.
fn shown(clients: &Clients, names: &[&str], key: Option<&str>) -> Result<String, &'static str> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        headers.insert(API_KEY, HeaderValue::from_str(key).expect("a key"));
    }
    let certificate: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let presented = Presented {
        certificate: &certificate,
        ..Presented::headers(&headers)
    };
    let found = clients.identify(&presented);
    found
        .map(|client| client.name.to_string())
        .map_err(|refusal| refusal.code)
}

fn certified(anonymous: Option<SubagentPolicy>) -> Clients {
    let client = |name: &str, names: &[&str]| ClientConfig {
        name: name.to_owned(),
        api_keys: vec![digest(name)],
        certificate_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    };
    let config = GatewayConfig {
        clients: vec![
            client("ada", &["ada.test", "spiffe://test/ada"]),
            client("ben", &["ben@test"]),
        ],
        anonymous,
        ..Default::default()
    };
    Clients::new(&config, None)
}

#[test]
fn a_certificate_is_its_client_by_any_of_its_names() {
    let clients = certified(None);
    let good = |name: &str| Ok(name.to_owned());
    for (names, key, expected) in [
        (&["ada.test"][..], None, good("ada")),
        (&["other.test", "spiffe://test/ada"], None, good("ada")),
        (&["ada.test", "spiffe://test/ada"], None, good("ada")),
        (&["ben@test"], None, good("ben")),
        (&["ben@test"], Some("ben"), good("ben")),
        (&["ben@test"], Some("ada"), Err("ambiguous_authorization")),
        (&["ben@test"], Some("wrong"), Err("invalid_api_key")),
        (
            &["ada.test", "ben@test"],
            None,
            Err("ambiguous_authorization"),
        ),
        (
            &["ada.test", "ben@test"],
            Some("ada"),
            Err("ambiguous_authorization"),
        ),
        (&["ADA.test"], None, Err("not_a_client")),
        (&["x.ada.test"], None, Err("not_a_client")),
        (&["nobody.test"], Some("ada"), good("ada")),
        (&["nobody.test"], Some("wrong"), Err("invalid_api_key")),
        (&[], None, Err("missing_api_key")),
    ] {
        assert_eq!(shown(&clients, names, key), expected, "{names:?} {key:?}");
    }
}

#[test]
fn a_certificate_of_nobody_is_anonymous_where_that_is_allowed() {
    let clients = certified(Some(SubagentPolicy::None));
    assert_eq!(
        shown(&clients, &["nobody.test"], None).as_deref(),
        Ok("anonymous")
    );
    assert_eq!(shown(&clients, &["ada.test"], None).as_deref(), Ok("ada"));
    let two = shown(&clients, &["ada.test", "ben@test"], None);
    assert_eq!(two, Err("ambiguous_authorization"));
}
