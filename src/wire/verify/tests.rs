use http::HeaderMap;

use super::*;
use crate::wire::signature::SigningKey;

fn facts() -> SignedFacts<'static> {
    SignedFacts {
        model: "m".into(),
        conversation_id: Some("child".into()),
        request_type: Some("context_only".into()),
        disagg_request_id: Some(42.into()),
    }
}

fn keys(secret: &str) -> SigningKeys {
    SigningKey::new(secret).expect("a key").into()
}

fn verifier(profile: SigningProfile) -> Verifier {
    Verifier {
        role: None,
        profile,
        keys: Some(keys("secret")),
    }
}

fn header(map: &mut HeaderMap, name: &'static str, value: &[u8]) {
    let value = http::HeaderValue::from_bytes(value).expect("a value");
    map.insert(name, value);
}

fn signed(profile: SigningProfile, id: &[u8]) -> HeaderMap {
    let payload = facts().payload(profile, Role::Context, &headers::latin1(id));
    let signature = keys("secret").sign_payload(&payload.expect("a context request"));
    let mut map = HeaderMap::new();
    header(&mut map, headers::AFFINITY_ID, id);
    header(&mut map, headers::AFFINITY_AUTH, signature.as_bytes());
    map
}

fn parent(id: &str) -> Result<Option<Verified>, Refusal> {
    Ok(Some(Verified {
        affinity_id: id.to_owned(),
        key: 0,
    }))
}

use SigningProfile::{Dynamo, Trtllm};

#[test]
fn header_bytes_are_read_as_latin1() {
    for profile in [Trtllm, Dynamo] {
        let map = signed(profile, "caf\u{e9}".as_bytes());
        let verdict = verifier(profile).affinity(&map, &facts());
        assert_eq!(verdict, parent("caf\u{c3}\u{a9}"));
    }
}

#[test]
fn each_profile_refuses_the_others_signature() {
    for (signs, checks) in [(Trtllm, Dynamo), (Dynamo, Trtllm)] {
        let verdict = verifier(checks).affinity(&signed(signs, b"parent"), &facts());
        assert_eq!(verdict, Err(Refusal::BadAffinity));
    }
}

#[test]
fn other_roles_ignore_upstreams_headers() {
    let mut map = signed(Trtllm, b"parent");
    header(&mut map, headers::AFFINITY_AUTH, b"sha256=0");
    let mut check = verifier(Trtllm);
    for role in [Some(Role::Aggregated), None] {
        let mut facts = facts();
        facts.request_type = None;
        check.role = role;
        assert_eq!(check.affinity(&map, &facts), Ok(None));
    }
    let verdict = check.affinity(&map, &facts());
    assert_eq!(verdict, Err(Refusal::BadAffinity));
    check.role = Some(Role::Generation);
    let verdict = check.affinity(&signed(Trtllm, b"parent"), &facts());
    let refused = Err(Refusal::BadAffinity);
    assert_eq!(verdict, refused, "the configured role counts");
}

#[test]
fn two_copies_are_refused_in_any_order() {
    for profile in [Trtllm, Dynamo] {
        for name in [headers::AFFINITY_ID, headers::AFFINITY_AUTH] {
            let mut map = signed(profile, b"parent");
            let same = map.get(name).cloned().expect("a value");
            map.append(name, same);
            let verdict = verifier(profile).affinity(&map, &facts());
            assert_eq!(verdict, Err(Refusal::Repeated(name)));
        }
    }
}

#[test]
fn an_id_needs_a_key() {
    for profile in [Trtllm, Dynamo] {
        let check = Verifier {
            keys: None,
            ..verifier(profile)
        };
        let verdict = check.affinity(&signed(profile, b"parent"), &facts());
        assert_eq!(verdict, Err(Refusal::KeyMissing));
        assert_eq!(check.affinity(&HeaderMap::new(), &facts()), Ok(None));
    }
}

#[test]
fn dynamo_takes_both_headers_or_none() {
    let check = verifier(Dynamo);
    let mut map = signed(Dynamo, b"parent");
    map.remove(headers::AFFINITY_AUTH);
    assert_eq!(check.affinity(&map, &facts()), Err(Refusal::BadAffinity));
    let mut map = signed(Dynamo, b"parent");
    map.remove(headers::AFFINITY_ID);
    assert_eq!(check.affinity(&map, &facts()), Err(Refusal::NoParent));
    assert_eq!(check.affinity(&HeaderMap::new(), &facts()), Ok(None));
    for id in [&b""[..], b" ", b"\xa0", b"parent ", b"\tparent"] {
        header(&mut map, headers::AFFINITY_ID, id);
        let verdict = check.affinity(&map, &facts());
        assert_eq!(verdict, Err(Refusal::NoParent), "{id:?}");
    }
}

#[test]
fn dynamo_refuses_affinity_on_other_requests() {
    let mut check = verifier(Dynamo);
    let map = signed(Dynamo, b"parent");
    for kind in [None, Some("generation_only"), Some("Context_Only")] {
        let mut facts = facts();
        facts.request_type = kind.map(Text::from);
        let verdict = check.affinity(&map, &facts);
        assert_eq!(verdict, Err(Refusal::NotContext), "{kind:?}");
    }
    let mut childless = facts();
    childless.conversation_id = None;
    assert_eq!(check.affinity(&map, &childless), Err(Refusal::NoChild));
    let mut unnumbered = facts();
    unnumbered.disagg_request_id = None;
    assert_eq!(check.affinity(&map, &unnumbered), Err(Refusal::NoChild));
    for role in [Role::Generation, Role::Aggregated] {
        check.role = Some(role);
        assert_eq!(check.affinity(&map, &facts()), Err(Refusal::NotContext));
    }
    check.role = Some(Role::Context);
    assert_eq!(check.affinity(&map, &facts()), parent("parent"));
}

#[test]
fn the_verdict_says_which_key_signed() {
    let both = SigningKeys::of(&["new".into(), "secret".into()]);
    for profile in [Trtllm, Dynamo] {
        let check = Verifier {
            keys: both.clone(),
            ..verifier(profile)
        };
        let verdict = check.affinity(&signed(profile, b"parent"), &facts());
        assert_eq!(verdict.map(|parent| parent.map(|it| it.key)), Ok(Some(1)));
        let transfer = KvTransfer::new(Some("\"x\""), None).expect("JSON");
        let mut map = HeaderMap::new();
        let signature = keys("secret").sign_payload(&transfer.canonical());
        header(&mut map, headers::DISAGG_AUTH, signature.as_bytes());
        assert_eq!(check.kv_transfer(&map, &transfer), Ok(Some(1)));
    }
}

#[test]
fn transfers_are_checked_where_there_is_a_key() {
    let check = verifier(Trtllm);
    let transfer = KvTransfer::new(Some("\"x\""), None).expect("JSON");
    let mut map = HeaderMap::new();
    let refused = Err(Refusal::BadKvTransfer);
    assert_eq!(check.kv_transfer(&map, &transfer), refused);
    assert_eq!(Verifier::default().kv_transfer(&map, &transfer), Ok(None));
    assert_eq!(check.kv_transfer(&map, &KvTransfer::default()), Ok(None));
    let signature = keys("secret").sign_payload(&transfer.canonical());
    header(&mut map, headers::DISAGG_AUTH, signature.as_bytes());
    assert_eq!(check.kv_transfer(&map, &transfer), Ok(Some(0)));
    map.append(headers::DISAGG_AUTH, "x".parse().expect("a value"));
    let repeated = Err(Refusal::Repeated(headers::DISAGG_AUTH));
    assert_eq!(check.kv_transfer(&map, &transfer), repeated);
}
