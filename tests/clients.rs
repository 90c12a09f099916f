//! Who a request is from: keys in either header, a file of keys that changes, signed tokens, and
//! addresses that guess.

mod support;

#[path = "clients/attempts.rs"]
mod attempts;
#[path = "clients/issuer.rs"]
mod issuer;
#[path = "clients/keys_file.rs"]
mod keys_file;
#[path = "clients/tokens.rs"]
mod tokens;

use kindred::wire::Role;
use support::{
    Kindred,
    clients::digest,
    fleet::{self, Fleet},
    raw::Answer,
    reload::ask,
};

const OFF: &str = "  failed_attempts: off\n";

/// An edge with clients ada and ben, and `more` of its `gateway` section.
fn start(more: &str) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(&section(more)));
    (fleet, kindred)
}

fn section(more: &str) -> String {
    format!(
        "gateway:\n{more}  clients:\n  \
         - {{name: ada, api_keys_sha256: ['{}', '{}'], subjects: [ada@x]}}\n  \
         - {{name: ben, api_keys_sha256: ['{}']}}\n",
        digest("ada-key"),
        digest("ada-next"),
        digest("ben-key"),
    )
    .replace(
        ", subjects: [ada@x]",
        if more.contains("jwt:") {
            ", subjects: [ada@x]"
        } else {
            ""
        },
    )
}

/// Status and OpenAI's code.
fn told(answer: &Answer) -> (u16, String) {
    let code = match answer.status {
        200 => String::new(),
        _ => answer.json()["error"]["code"].as_str().unwrap().to_owned(),
    };
    (answer.status, code)
}

fn bearer(kindred: &Kindred, credential: &str) -> Answer {
    ask(
        kindred,
        &[("authorization", &format!("Bearer {credential}"))],
    )
}

#[test]
fn a_key_may_stand_in_either_header_and_never_reaches_a_worker() {
    let (fleet, kindred) = start(OFF);
    let bearer = |key: &str| ("authorization", format!("Bearer {key}"));
    let header = |key: &str| ("x-api-key", key.to_owned());
    let ambiguous = (401, "ambiguous_authorization");
    let invalid = (401, "invalid_api_key");
    let good = (200, "");
    for (headers, expected) in [
        (vec![header("ada-key")], good),
        (vec![header(" ada-next ")], good),
        (vec![("X-API-KEY", "ben-key".to_owned())], good),
        (vec![bearer("ada-key"), header("ada-next")], good),
        (vec![bearer("ada-key"), header("ben-key")], ambiguous),
        (vec![bearer("ada-key"), header("wrong")], invalid),
        (vec![bearer("wrong"), header("ada-key")], invalid),
        (vec![header("ada-key"), header("ada-key")], ambiguous),
        (
            vec![bearer("ada-key"), header("ada-key"), header("ada-key")],
            ambiguous,
        ),
        (vec![header("")], invalid),
        (vec![header("Bearer ada-key")], invalid),
        (vec![], (401, "missing_api_key")),
    ] {
        let given: Vec<_> = headers.iter().map(|(name, key)| (*name, &**key)).collect();
        let answer = ask(&kindred, &given);
        assert_eq!(
            told(&answer),
            (expected.0, expected.1.to_owned()),
            "{given:?}"
        );
        if answer.status == 401 {
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Bearer realm="), "{challenge}");
        }
    }
    for role in [Role::Context, Role::Generation] {
        for request in fleet.requests(role) {
            let names = request.headers.iter().map(|(name, _)| name.to_lowercase());
            let mut names = names.filter(|name| name == "x-api-key" || name == "authorization");
            assert_eq!(names.next(), None);
        }
    }
    let by_key = ["method=\"api_key\"", "outcome=\"ok\""];
    kindred.assert_metric("kindred_authentications_total", &by_key, 4.0);
}

#[test]
fn the_start_says_that_anybody_may_come_in() {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml("gateway: {anonymous: none}"));
    assert_eq!(ask(&kindred, &[]).status, 200);
    let log = kindred.log();
    assert_eq!(log.matches("do not say who they are").count(), 1, "{log}");
    let kindred = Kindred::serve(&fleet.yaml(&section("")));
    assert_eq!(ask(&kindred, &[]).status, 401);
    assert!(!kindred.log().contains("do not say who they are"));
}
