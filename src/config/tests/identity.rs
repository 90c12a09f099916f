//! How clients say who they are, as a file gives it.

use std::time::Duration;

use super::{bad, edge, good};
use crate::config::{Config, FailedAttempts, JwksSource};

const DIGEST: &str = "1bd55e6baf7e4e671e3078d6c4c21a42ad5b2a4167180b1ca3752381a30ff4e3";

fn with(gateway: &str) -> String {
    edge(&format!("gateway:\n  {gateway}"))
}

fn jwt(more: &str) -> String {
    with(&format!(
        "jwt: {{issuer: i, audience: [a, b], jwks_url: 'http://localhost/keys', {more}}}\n  \
         clients: [{{name: ada, subjects: [s]}}]"
    ))
}

fn attempts(config: Config) -> Option<FailedAttempts> {
    config.gateway.expect("a gateway").failed_attempts
}

#[test]
fn tokens_need_an_issuer_an_audience_and_keys() {
    let config = good(&jwt("leeway: 5s, refresh: 1m, algorithms: [ES256, EdDSA]"));
    let gateway = config.gateway.as_ref().expect("a gateway");
    let tokens = gateway.jwt.as_ref().expect("tokens");
    assert_eq!(tokens.audiences, ["a", "b"]);
    assert_eq!(tokens.leeway, Duration::from_secs(5));
    assert_eq!(tokens.client_claim, "sub");
    let JwksSource::Url(url) = &tokens.keys else {
        panic!("no address");
    };
    assert_eq!(
        (url.address.as_str(), url.path.as_str()),
        ("localhost:80", "/keys")
    );
    let printed = config.to_yaml_masked();
    let again = good(&printed).gateway.and_then(|gateway| gateway.jwt);
    let again = again.expect("tokens");
    assert_eq!(again.algorithms, tokens.algorithms);
    assert_eq!(again.leeway, tokens.leeway);

    for (text, parts) in [
        (
            "jwt: {audience: a, jwks_url: 'http://x/'}",
            ["gateway.jwt.issuer", "is missing"],
        ),
        (
            "jwt: {issuer: a, jwks_url: 'http://x/'}",
            ["gateway.jwt.audience", "is missing"],
        ),
        (
            "jwt: {issuer: a, audience: [], jwks_url: 'http://x/'}",
            ["jwt.audience", "is empty"],
        ),
        ("jwt: {issuer: a, audience: a}", ["jwks_file", "is missing"]),
        (
            "jwt: {issuer: a, audience: a, jwks_url: 'https://x/'}",
            ["jwks_url", "without TLS"],
        ),
        (
            "jwt: {issuer: a, audience: a, jwks_url: 'http://u:p@x/'}",
            ["jwks_url", "http://HOST"],
        ),
        (
            "jwt: {issuer: a, audience: a, jwks_file: no-such}",
            ["jwks_file", "cannot be read"],
        ),
        ("jwt: {isuer: a, audience: a}", ["isuer", "issuer"]),
        (
            "clients: [{name: ada, subjects: [s]}]",
            ["subjects", "gateway.jwt"],
        ),
        ("clients: [{name: ada}]", ["api_keys_sha256", "is missing"]),
        (
            "keys_file: no-such\n  clients: [{name: ada}]",
            ["keys_file", "cannot be read"],
        ),
    ] {
        bad(&with(text), &parts);
    }
    for algorithms in ["[HS256]", "[none]", "[RS256, HS512]", "[]"] {
        let text = jwt(&format!("algorithms: {algorithms}"));
        bad(&text, &["gateway.jwt.algorithms"]);
    }
}

#[test]
fn a_name_is_one_clients() {
    for key in ["certificate_names", "subjects"] {
        let clients = format!("clients: [{{name: a, {key}: [x]}}, {{name: b, {key}: [y, x]}}]");
        let tokens = "jwt: {issuer: i, audience: a, jwks_url: 'http://x/'}";
        bad(
            &with(&format!("{tokens}\n  {clients}")),
            &[key, "listed twice"],
        );
    }
}

#[test]
fn guesses_are_bounded_unless_that_is_off() {
    let clients = format!("clients: [{{name: a, api_keys_sha256: ['{DIGEST}']}}]");
    let with = |more: &str| with(&format!("{more}\n  {clients}"));
    assert_eq!(attempts(good(&with(""))), Some(FailedAttempts::default()));
    assert_eq!(attempts(good(&with("failed_attempts: off"))), None);
    let some = attempts(good(&with("failed_attempts: {max: 3}"))).expect("a bound");
    assert_eq!((some.max, some.per), (3, Duration::from_secs(60)));
    let off = good(&with("failed_attempts: off")).to_yaml_masked();
    assert_eq!(attempts(good(&off)), None, "{off}");
    bad(&with("failed_attempts: {max: 0}"), &["failed_attempts.max"]);
    bad(&with("failed_attempts: {most: 1}"), &["most"]);
}
