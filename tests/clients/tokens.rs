//! Signed tokens: which are good, whose they are, and keys that are renewed.

use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

use super::{
    bearer,
    issuer::{ISSUER, Key, claims, hmac_by, now, set, unsigned},
    start, told,
};
use crate::support::{
    Kindred, eventually,
    fleet::Fleet,
    reload::ask,
    scripted::{self, Scripted},
};

fn jwt(more: &str) -> String {
    format!(
        "  failed_attempts: off\n  jwt:\n    issuer: {ISSUER}\n    audience: [kindred, other]\n    {more}\n"
    )
}

fn from_file(path: &Path, more: &str) -> (Fleet, Kindred) {
    start(&jwt(&format!("jwks_file: '{}'\n{more}", path.display())))
}

/// Good claims with one of them changed, or removed where it is null.
fn but(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims
}

#[test]
fn a_token_is_good_by_its_issuer_audience_time_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let keys = [Key::rsa("r"), Key::p256("e"), Key::p384("f"), Key::ed("d")];
    let foreign = Key::ed("d");
    let mut jwks: Vec<Value> = keys.iter().map(Key::jwk).collect();
    // What is not for us may be in a set as well.
    jwks.push(json!({"kty": "oct", "kid": "s", "k": "c2VjcmV0LXNlY3JldA"}));
    jwks.push(json!({"kty": "new", "kid": "n"}));
    fs::write(&file, set(&jwks)).unwrap();
    let (_fleet, kindred) = from_file(&file, "");
    let [rsa, p256, p384, ed] = &keys;
    let rsas = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].map(|name| (name, rsa));
    for (algorithm, key) in
        rsas.into_iter()
            .chain([("ES256", p256), ("ES384", p384), ("EdDSA", ed)])
    {
        let answer = bearer(&kindred, &key.token(algorithm, &claims()));
        assert_eq!(told(&answer), (200, String::new()), "{algorithm}");
    }
    let good = |changed: Value| ed.token("EdDSA", &changed);
    for claims in [
        but("aud", json!(["x", "other"])),
        but("exp", json!(now() - 30)),
        but("nbf", json!(now() + 30)),
    ] {
        assert_eq!(
            bearer(&kindred, &good(claims.clone())).status,
            200,
            "{claims}"
        );
    }
    for (claims, status, code) in [
        (
            but("iss", json!("https://else.test")),
            401,
            "invalid_api_key",
        ),
        (but("iss", Value::Null), 401, "invalid_api_key"),
        (but("aud", json!("somebody")), 401, "invalid_api_key"),
        (but("aud", Value::Null), 401, "invalid_api_key"),
        (but("exp", Value::Null), 401, "invalid_api_key"),
        (but("exp", json!("soon")), 401, "invalid_api_key"),
        (but("exp", json!(now() - 90)), 401, "token_expired"),
        (but("nbf", json!(now() + 90)), 401, "token_expired"),
        (but("sub", json!("eve@x")), 403, "not_a_client"),
        (but("sub", json!("ADA@x")), 403, "not_a_client"),
        (but("sub", json!(" ada@x")), 403, "not_a_client"),
        (but("sub", Value::Null), 403, "not_a_client"),
    ] {
        let answer = bearer(&kindred, &good(claims.clone()));
        assert_eq!(told(&answer), (status, code.to_owned()), "{claims}");
        assert!(!answer.text().contains("eve@x"));
    }
    let denied = bearer(&kindred, &good(but("sub", json!("eve@x")))).json();
    assert_eq!(denied["error"]["type"], "permission_error");
    let long = good(but("more", json!("x".repeat(17 * 1024))));
    let token = good(claims());
    let (message, _) = token.rsplit_once('.').unwrap();
    let unnamed = |key: &Key, alg: &str| key.signed(&json!({"alg": alg}), &claims());
    for (what, token) in [
        ("another's signature", foreign.token("EdDSA", &claims())),
        ("no signature", format!("{message}.")),
        ("none", unsigned("none")),
        ("None", unsigned("None")),
        ("a public key as a secret", hmac_by(&rsa.public(), "r")),
        ("a public key as a secret", hmac_by(&ed.public(), "d")),
        (
            "a public key in JSON as a secret",
            hmac_by(rsa.jwk().to_string().as_bytes(), "r"),
        ),
        ("a symmetric key of the set", hmac_by(b"secret-secret", "s")),
        (
            "an algorithm of another type",
            rsa.token("ES256", &claims()),
        ),
        (
            "an algorithm of another curve",
            p256.token("ES384", &claims()),
        ),
        ("an algorithm of another type", ed.token("RS256", &claims())),
        (
            "another padding",
            rsa.signed(&json!({"alg": "RS256", "kid": "e"}), &claims()),
        ),
        ("an unknown key", Key::ed("new").token("EdDSA", &claims())),
        (
            "its own key",
            ed.signed(
                &json!({"alg": "EdDSA", "kid": "x", "jwk": ed.jwk()}),
                &claims(),
            ),
        ),
        (
            "critical extensions",
            ed.signed(
                &json!({"alg": "EdDSA", "kid": "d", "crit": ["b64"], "b64": false}),
                &claims(),
            ),
        ),
        ("too long", long),
        ("not base64", "a.b.c".to_owned()),
        ("empty parts", "..".to_owned()),
    ] {
        let status = bearer(&kindred, &token).status;
        // Too long for the whole head is refused before anybody looks.
        assert!(matches!(status, 401 | 431), "{what}: {status}");
    }
    assert_eq!(
        bearer(&kindred, &unnamed(ed, "EdDSA")).status,
        200,
        "the only one that fits"
    );
    assert_eq!(
        ask(&kindred, &[("x-api-key", &token)]).status,
        401,
        "it is no API key"
    );
    let mixed = |key| format!("Bearer {key}");
    let both = ask(
        &kindred,
        &[("authorization", &mixed(&token)), ("x-api-key", "ada-key")],
    );
    assert_eq!(both.status, 200);
    let both = ask(
        &kindred,
        &[("authorization", &mixed(&token)), ("x-api-key", "ben-key")],
    );
    assert_eq!(told(&both).1, "ambiguous_authorization");
    let page = kindred.admin("/metrics").text();
    assert!(!page.contains("eve@x") && !page.contains("ada@x"));
    assert!(!kindred.log().contains(message));
}

#[test]
fn a_key_is_only_good_for_what_it_and_the_file_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let keys = [Key::rsa("r"), Key::ed("d"), Key::p256("e")];
    let [rsa, ed, p256] = &keys;
    let with = |key: &Key, name: &str, value: &str| {
        let mut jwk = key.jwk();
        jwk[name] = value.into();
        jwk
    };
    let jwks = [
        with(rsa, "alg", "PS256"),
        with(ed, "use", "enc"),
        p256.jwk(),
    ];
    fs::write(&file, set(&jwks)).unwrap();
    let (_fleet, kindred) = from_file(
        &file,
        "    algorithms: [PS256, RS256, EdDSA]\n    client_claim: azp",
    );
    let claims = but("azp", json!("ada@x"));
    assert_eq!(bearer(&kindred, &rsa.token("PS256", &claims)).status, 200);
    assert_eq!(bearer(&kindred, &rsa.token("RS256", &claims)).status, 401);
    assert_eq!(bearer(&kindred, &ed.token("EdDSA", &claims)).status, 401);
    assert_eq!(bearer(&kindred, &p256.token("ES256", &claims)).status, 401);
    let other = rsa.token("PS256", &super::issuer::claims());
    assert_eq!(bearer(&kindred, &other).status, 403, "sub does not count");
}

#[test]
fn a_key_set_in_a_file_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let [old, new] = ["old", "new"].map(Key::ed);
    fs::write(&file, set(&[old.jwk()])).unwrap();
    let (_fleet, kindred) = from_file(&file, "");
    let status = |key: &Key| bearer(&kindred, &key.token("EdDSA", &claims())).status;
    assert_eq!((status(&old), status(&new)), (200, 401));
    fs::write(&file, "{\"keys\": [").unwrap();
    let rejected = ["source=\"jwks_file\"", "result=\"rejected\""];
    eventually("it is rejected", || {
        (kindred.metric("kindred_credential_reloads_total", &rejected) > 0.0).then_some(())
    });
    assert_eq!((status(&old), status(&new)), (200, 401));
    fs::write(&file, set(&[new.jwk()])).unwrap();
    eventually("the new key is good", || {
        (status(&new) == 200).then_some(())
    });
    assert_eq!(status(&old), 401);
}

#[test]
fn a_key_set_at_an_address_is_fetched_and_renewed_and_outlives_the_issuer() {
    let [old, new] = ["old", "new"].map(Key::ed);
    let body = Arc::new(Mutex::new(set(&[old.jwk()])));
    let broken = Arc::new(AtomicBool::new(false));
    let (served, failing) = (body.clone(), broken.clone());
    let server = Scripted::start(move |_| match failing.load(Ordering::SeqCst) {
        true => vec![b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()],
        false => scripted::json(&served.lock().unwrap()),
    });
    let (_fleet, kindred) = start(&jwt(&format!(
        "jwks_url: http://{}/keys?a=b\n    refresh: 1h\n    min_refresh: 100ms",
        server.address
    )));
    let status = |key: &Key| bearer(&kindred, &key.token("EdDSA", &claims())).status;
    eventually("the first set is there", || {
        (status(&old) == 200).then_some(())
    });
    assert!(server.seen()[0].head.starts_with("GET /keys?a=b HTTP/1.1"));
    // A token that names an unknown key makes it be fetched, long before its time.
    *body.lock().unwrap() = set(&[old.jwk(), new.jwk()]);
    eventually("the new key is found", || {
        (status(&new) == 200).then_some(())
    });
    assert_eq!(status(&old), 200);
    broken.store(true, Ordering::SeqCst);
    let strange = Key::ed("strange");
    let rejected = ["source=\"jwks_url\"", "result=\"rejected\""];
    eventually("a fetch fails", || {
        assert_eq!(status(&strange), 401);
        (kindred.metric("kindred_credential_reloads_total", &rejected) > 0.0).then_some(())
    });
    assert_eq!((status(&old), status(&new)), (200, 200), "the keys stay");
    *body.lock().unwrap() = set(&[new.jwk()]);
    broken.store(false, Ordering::SeqCst);
    eventually("the old key is gone", || {
        (status(&old) == 401).then_some(())
    });
    assert_eq!(status(&new), 200);
}

#[test]
fn until_the_keys_are_there_a_token_cannot_be_judged() {
    let server = Scripted::start(|_| scripted::json("{}"));
    let (_fleet, kindred) = start(&jwt(&format!("jwks_url: http://{}/", server.address)));
    let answer = bearer(&kindred, &Key::ed("d").token("EdDSA", &claims()));
    assert_eq!(told(&answer), (503, "token_keys_unavailable".to_owned()));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(
        bearer(&kindred, "ada-key").status,
        200,
        "keys need no issuer"
    );
}
