//! What somebody is told who is not let in.
//!
//! Says what to send, never why a key or a token is not the right one: whoever guesses learns nothing
//! but that it was wrong. 401 is for credentials that are missing or not good, 403 for good ones of
//! nobody who is known here, 429 for an address that has failed too often.

use std::time::Duration;

use http::StatusCode;

use crate::{
    config::FailedAttempts,
    gateway::Refusal,
    telemetry::labels::{AuthenticationOutcome, Outcome},
};

const CHALLENGE: &str = r#"Bearer realm="kindred""#;
const BAD_REQUEST: &str = r#"Bearer realm="kindred", error="invalid_request""#;
const BAD_TOKEN: &str = r#"Bearer realm="kindred", error="invalid_token""#;

/// The answer for an outcome that is no client.
pub(super) fn refusal(outcome: AuthenticationOutcome) -> Refusal {
    match outcome {
        AuthenticationOutcome::Missing => unauthorized(
            "missing_api_key",
            CHALLENGE,
            "No API key was given. Send one as `Authorization: Bearer YOUR_KEY` or `x-api-key`.",
        ),
        AuthenticationOutcome::Ambiguous => unauthorized(
            "ambiguous_authorization",
            BAD_REQUEST,
            "The credentials name nobody in particular: a header is given more than once, or they \
             are of different clients. Send one key, as `Authorization: Bearer YOUR_KEY`.",
        ),
        AuthenticationOutcome::Expired => unauthorized(
            "token_expired",
            BAD_TOKEN,
            "The token is not valid at this time. Send a current one as `Authorization: Bearer \
             TOKEN`.",
        ),
        AuthenticationOutcome::NotAClient => Refusal {
            status: StatusCode::FORBIDDEN,
            kind: "permission_error",
            www_authenticate: None,
            outcome: Outcome::ClientError,
            ..unauthorized(
                "not_a_client",
                CHALLENGE,
                "Permission denied: who you are is known, but you are no client of this gateway. Ask \
                 its operator to be let in.",
            )
        },
        AuthenticationOutcome::NoKeys => Refusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "server_error",
            www_authenticate: None,
            outcome: Outcome::Overloaded,
            headers: Box::new([("retry-after", "1".to_owned())]),
            ..unauthorized(
                "token_keys_unavailable",
                CHALLENGE,
                "Tokens cannot be checked at this time, since the keys of their issuer are not known \
                 yet. Try again.",
            )
        },
        _ => unauthorized(
            "invalid_api_key",
            BAD_TOKEN,
            "The API key is not known here. Send a valid one as `Authorization: Bearer YOUR_KEY`, \
             or ask the operator of this gateway for one.",
        ),
    }
}

fn unauthorized(code: &'static str, challenge: &'static str, message: &str) -> Refusal {
    Refusal {
        status: StatusCode::UNAUTHORIZED,
        code,
        kind: "invalid_request_error",
        message: message.to_owned(),
        param: None,
        www_authenticate: Some(challenge),
        headers: Box::default(),
        outcome: Outcome::Unauthenticated,
    }
}

/// The answer for an address that may not try again before `wait` is over.
pub(super) fn blocked(limit: FailedAttempts, wait: Duration) -> Refusal {
    // Rounded up: whoever comes after as many seconds may try.
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Refusal {
        status: StatusCode::TOO_MANY_REQUESTS,
        code: "too_many_failed_attempts",
        kind: "rate_limit_error",
        www_authenticate: None,
        outcome: Outcome::Overloaded,
        headers: Box::new([
            ("retry-after", seconds.to_string()),
            ("x-ratelimit-limit-requests", limit.max.to_string()),
            ("x-ratelimit-remaining-requests", "0".to_owned()),
            ("x-ratelimit-reset-requests", format!("{seconds}s")),
        ]),
        ..unauthorized(
            "",
            CHALLENGE,
            "Too many requests with wrong credentials came from this address. Check the key, and try \
             again later.",
        )
    }
}
