//! Who may come in: API keys.

use kindred::wire::Role;

use crate::support::{
    chat,
    raw::{self, Answer},
    run,
};
use crate::{CHAT, CLIENTS, INTERNAL, PARENT, Site, affinity, affinity_id, digest, key, section};

fn assert_unauthorised(answer: &Answer, about: &str) {
    assert_eq!(answer.status, 401, "{about}: {}", answer.text());
    let challenge = answer.header("www-authenticate").unwrap_or_default();
    assert!(challenge.starts_with("Bearer"), "{about}: {challenge}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{about}"
    );
    let body = answer.json();
    let error = body["error"].as_object().unwrap();
    let names: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(names, ["message", "type", "param", "code"], "{about}");
    for name in ["message", "type", "code"] {
        assert!(!error[name].as_str().unwrap().is_empty(), "{about}: {name}");
    }
}

#[test]
fn a_known_key_is_taken_in_any_spelling_of_the_scheme() {
    let site = Site::guarded();
    let key = key("first");
    for value in [
        "Bearer KEY",
        "bearer KEY",
        "BEARER KEY",
        "Bearer   KEY",
        "Bearer KEY  ",
    ] {
        let value = value.replace("KEY", &key);
        assert_eq!(
            site.post(&[("authorization", &value)]).status,
            200,
            "{value:?}"
        );
        assert_eq!(
            site.post(&[("AUTHORIZATION", &value)]).status,
            200,
            "{value:?}"
        );
    }
    site.kindred.assert_idle();
}

#[test]
fn whoever_has_no_single_good_key_is_answered_401_and_reaches_no_worker() {
    let site = Site::guarded();
    let (good, other) = (key("first"), key("second"));
    let hashed = digest(&good);
    let lines: [&[(&str, &str)]; 19] = [
        &[],
        &[("authorization", "")],
        &[("authorization", "Bearer")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Bearer not-a-key")],
        &[("authorization", "Bearer HASHED")],
        &[("authorization", "GOOD")],
        &[("authorization", "BearerGOOD")],
        &[("authorization", "Basic GOOD")],
        &[("authorization", "Token GOOD")],
        &[("authorization", "Bearer \"GOOD\"")],
        &[("authorization", "Bearer GOOD more")],
        &[("authorization", "Bearer GOOD, Bearer GOOD")],
        &[("authorization", "Bearer GOOD,")],
        &[
            ("authorization", "Bearer GOOD"),
            ("authorization", "Bearer GOOD"),
        ],
        &[
            ("authorization", "Bearer GOOD"),
            ("Authorization", "Bearer OTHER"),
        ],
        &[("authorization", "Bearer GOOD"), ("authorization", "")],
        &[("proxy-authorization", "Bearer GOOD")],
        &[("x-api-key", "Bearer GOOD")],
    ];
    for line in lines {
        let fill = |value: &str| {
            value
                .replace("GOOD", &good)
                .replace("OTHER", &other)
                .replace("HASHED", &hashed)
        };
        let filled: Vec<_> = line
            .iter()
            .map(|(name, value)| (*name, fill(value)))
            .collect();
        let headers: Vec<_> = filled
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let answer = site.post(&headers);
        assert_unauthorised(&answer, &format!("{line:?}"));
        for secret in [&good, &other, &hashed] {
            assert!(
                !answer.text().contains(secret.as_str()),
                "{}",
                answer.text()
            );
        }
    }
    let path = format!("{CHAT}?api_key={good}");
    let answer = raw::post(site.kindred.edge(), &path, &[], &chat("hello").to_string());
    assert_unauthorised(&answer, "a key in the query");
    assert!(
        site.fleet
            .workers
            .iter()
            .all(|worker| worker.requests().is_empty())
    );
    let outcome = ["outcome=\"unauthenticated\""];
    site.kindred
        .assert_metric("kindred_requests_total", &outcome, 20.0);
    assert_eq!(
        site.kindred
            .metric("kindred_authentications_total", &["outcome=\"ok\""]),
        0.0
    );
}

#[test]
fn a_request_without_a_key_is_refused_before_its_body_is_looked_at() {
    let site = Site::guarded();
    let answer = raw::post(site.kindred.edge(), CHAT, &[], "this is not JSON");
    assert_unauthorised(&answer, "a bad body");
    let answer = raw::post(
        site.kindred.edge(),
        "/v1/completions",
        &[],
        r#"{"model":"m","prompt":"p"}"#,
    );
    assert_unauthorised(&answer, "a completion");
}

#[test]
fn a_wrong_key_does_not_become_anonymous() {
    let site = Site::open(&(affinity() + &section("  anonymous: none\n")));
    assert_eq!(site.post(&[]).status, 200);
    assert_unauthorised(
        &site.post(&[("authorization", "Bearer wrong")]),
        "a wrong key",
    );
    let seen = site.post(&[("x-session-id", "child"), (PARENT, "parent")]);
    assert_eq!(seen.status, 200);
    assert_eq!(
        site.kindred
            .metric("kindred_parent_claims_total", &["outcome=\"not_allowed\""]),
        1.0
    );
    assert!(
        site.fleet
            .requests(Role::Context)
            .iter()
            .all(|seen| affinity_id(seen).is_none())
    );
}

#[test]
fn keys_are_neither_logged_nor_measured_nor_forwarded() {
    let more = affinity() + &section("") + "telemetry: {log: debug}\n";
    let site = Site::open(&more);
    site.turn("open", "child", Some("parent"));
    site.turn("first", "child", Some("parent"));
    let wrong = "Bearer wrong-key-that-somebody-mistyped";
    assert_unauthorised(&site.post(&[("authorization", wrong)]), wrong);
    site.told(&["dropped", "not_owned"]);
    let running = site.kindred.admin("/config").text();
    let masked = running.matches("********").count();
    assert!(masked > 0, "{running}");
    let mut places = vec![
        site.kindred.admin("/metrics").text(),
        site.kindred.log(),
        running,
    ];
    places.push(site.kindred.announced.clone());
    let (code, out, errors) = run(
        &[
            "check",
            "--print",
            "--config",
            site.kindred.file.as_ref().unwrap().to_str().unwrap(),
        ],
        "",
    );
    assert_eq!(code, 0);
    places.extend([out, errors]);
    for worker in &site.fleet.workers {
        places.push(format!("{:?}", worker.requests()));
    }
    let mut secrets: Vec<_> = CLIENTS.iter().map(|(client, _)| key(client)).collect();
    secrets.extend([
        INTERNAL.to_owned(),
        "wrong-key-that-somebody-mistyped".to_owned(),
    ]);
    for secret in &secrets {
        assert!(
            places.iter().all(|place| !place.contains(secret.as_str())),
            "{secret} is to be seen"
        );
    }
}
