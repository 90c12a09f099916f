//! Wrong credentials from one address.

use super::{bearer, start, told};
use crate::support::{
    raw,
    reload::{ask, reload},
};

#[test]
fn an_address_that_guesses_is_refused_without_a_look() {
    let (fleet, kindred) = start("  failed_attempts: {max: 3, per: 1h}\n");
    for _ in 0..5 {
        assert_eq!(
            bearer(&kindred, "ada-key").status,
            200,
            "good ones do not count"
        );
        assert_eq!(ask(&kindred, &[]).status, 401, "and none is no guess");
    }
    for _ in 0..3 {
        assert_eq!(bearer(&kindred, "wrong").status, 401);
    }
    for key in ["wrong", "ada-key"] {
        let answer = bearer(&kindred, key);
        assert_eq!(told(&answer), (429, "too_many_failed_attempts".to_owned()));
        assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3600).contains(&seconds));
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("3"));
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
    }
    let models = "GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ada-key\r\n\
                  connection: close\r\n\r\n";
    assert_eq!(raw::send(kindred.edge(), models.as_bytes()).status, 429);
    assert_eq!(
        raw::get(kindred.edge(), "/health").status,
        200,
        "it needs no key"
    );
    let blocked = ["outcome=\"blocked\""];
    kindred.assert_metric("kindred_authentications_total", &blocked, 3.0);

    // What was counted outlives a reload; turning the bound off lets everybody try.
    let wider = super::section("  failed_attempts: {max: 3, per: 1h}\n  max_sessions: 10\n");
    reload(&kindred, &fleet.yaml(&wider), "applied");
    assert_eq!(bearer(&kindred, "ada-key").status, 429);
    reload(
        &kindred,
        &fleet.yaml(&super::section(super::OFF)),
        "applied",
    );
    assert_eq!(bearer(&kindred, "ada-key").status, 200);
    for _ in 0..30 {
        assert_eq!(bearer(&kindred, "wrong").status, 401);
    }
}
