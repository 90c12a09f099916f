//! Holds a request against its client's limits, and tells the client where it stands.
//!
//! Decides what a refusal says: which limit, its value, and when to come again. What a request has
//! taken is kept in its plan, and given back or made good when it has ended.

use std::time::Duration;

use super::{plan::Plan, request::Request};
use crate::{
    gateway::{
        Client,
        limits::{Exceeded, Left, Limited},
    },
    http::reply::Failure,
    telemetry::{self, labels::ClientLimit},
};

/// Takes one request of the client's.
///
/// # Errors
/// 429 where it has sent as many of late as it may.
pub fn request(plan: &mut Plan, client: &Client) -> Result<(), Failure> {
    let (left, passed) = client.limits.request();
    let Some(left) = left else { return Ok(()) };
    tell(plan, &left);
    let Err(Exceeded::For(wait)) = passed else {
        return Ok(());
    };
    let limit = left.limit;
    let message = format!("This client sends more requests than its limit of {limit} lets pass.");
    Err(refused(ClientLimit::Requests, message, wait))
}

/// Takes what the prompt is estimated to have.
///
/// # Errors
/// 429 where the client's prompts had as many tokens of late as they may, 400 for one that has more
/// than a minute's.
pub fn prompt(plan: &mut Plan, client: &Client, request: &Request<'_>) -> Result<(), Failure> {
    let known = request.tokens.as_ref().map(|tokens| tokens.len() as u64);
    let estimated = known.unwrap_or_else(|| request.prompt.weight());
    let (left, charged) = client.limits.prompt(estimated);
    let Some(left) = left else { return Ok(()) };
    tell(plan, &left);
    let limit = left.limit;
    match charged {
        Ok(charge) => {
            plan.charge = charge;
            Ok(())
        }
        Err(Exceeded::For(wait)) => {
            let message = format!(
                "This client's prompts have more tokens than its limit of {limit} a minute; this one \
                 has about {estimated}."
            );
            Err(refused(ClientLimit::Tokens, message, wait))
        }
        Err(Exceeded::Ever) => {
            telemetry::metrics().limit_refusals.inc(ClientLimit::Tokens);
            let message = format!(
                "The prompt has about {estimated} tokens, more than this client's limit of {limit} a \
                 minute: it can never pass. Send a shorter one."
            );
            Err(Failure::bad_request("prompt_above_limit", message))
        }
    }
}

/// Takes one of the places for sub-agents of the request's parent, where it has one.
///
/// # Errors
/// 429 where the parent has as many sub-agents at work as it may.
pub fn sub_agent(plan: &mut Plan, client: &Client, request: &Request<'_>) -> Result<(), Failure> {
    let Some(parent) = &request.parent else {
        return Ok(());
    };
    plan.sub_agent = client.limits.sub_agent(parent).map_err(|most| {
        let message = format!(
            "The parent session has {most} requests of sub-agents at work, as many as it may; retry \
             when one has ended."
        );
        let wait = Duration::from_secs(1);
        refused(ClientLimit::SubAgents, message, wait)
            .header("x-ratelimit-limit-subagents", most.to_string())
            .header("x-ratelimit-remaining-subagents", "0")
    })?;
    Ok(())
}

fn refused(limit: ClientLimit, message: String, wait: Duration) -> Failure {
    telemetry::metrics().limit_refusals.inc(limit);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Failure::too_many_requests("rate_limit_exceeded", message).retry_after(seconds.max(1))
}

/// In OpenAI's form, on whatever the answer will be.
fn tell(plan: &mut Plan, left: &Left) {
    let names = match left.limited {
        Limited::Requests => [
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
        ],
        Limited::Tokens => [
            "x-ratelimit-limit-tokens",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
        ],
    };
    let values = [
        left.limit.to_string(),
        left.remaining.to_string(),
        written(left.reset),
    ];
    plan.on_every_answer.extend(names.into_iter().zip(values));
}

/// As OpenAI writes durations: `120ms`, `6s`, `1m30s`.
fn written(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, 0) => format!("{}ms", duration.as_millis()),
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_openai_does() {
        let of = |milliseconds| written(Duration::from_millis(milliseconds));
        assert_eq!(of(0), "0ms");
        assert_eq!(of(120), "120ms");
        assert_eq!(of(6_900), "6s");
        assert_eq!(of(90_000), "1m30s");
    }
}
