//! Writes a generation worker's answer to the client.
//!
//! A stream goes out part by part as it comes, its head as soon as the worker's is in; nothing is
//! held back of it. A JSON answer goes out once it is whole, so that one that breaks off is a
//! refusal and no short answer. A stream must never end quietly before it is complete.

use pingora::{http::ResponseHeader, proxy::Session};

use super::{
    client::Client,
    failure::{broken_stream, unusable_coding},
    incoming::{Incoming, unanswered},
    live::Live,
    plan::Plan,
    relay::{self, Relay},
};
use crate::{
    http::{
        reply::{self, Failure},
        upstream::CallError,
    },
    wire::usage::{self, UsageScan},
};

/// Writes the whole answer.
///
/// # Errors
/// What the client is to be told: with a status where [`reply::has_begun`] says that none went out,
/// else at the end of its stream.
pub async fn deliver(
    session: &mut Session,
    plan: &mut Plan,
    mut incoming: Incoming<'_>,
    client: &mut Client,
) -> Result<(), Failure> {
    let live = plan.live.clone();
    plan.fleet = plan.generation()?.label();
    if incoming.head.status != 200 {
        let refusal = client.attend(session, incoming.refusal(&live)).await?;
        return Err(refusal);
    }
    let headers = &session.req_header().headers;
    let relay = Relay::of(&incoming.head, plan.stream, headers)?;
    plan.generation()?.answered();
    match relay {
        Relay::Answer => {
            plan.relay = Some(relay);
            whole(session, plan, incoming, client, &live).await
        }
        Relay::Coded if reply::has_begun(session) => Err(unusable_coding()),
        Relay::Events(..) | Relay::Coded => {
            client.answered();
            plan.relay = Some(relay);
            stream(session, plan, incoming, client).await
        }
    }
}

async fn stream(
    session: &mut Session,
    plan: &mut Plan,
    incoming: Incoming<'_>,
    client: &mut Client,
) -> Result<(), Failure> {
    let Incoming {
        mut head,
        mut parts,
    } = incoming;
    let live = plan.live.clone();
    relay::stream_head(&mut head).map_err(|_| no_head())?;
    begin(session, plan, head, client).await?;
    let (Some(relay), Some(leg)) = (&mut plan.relay, &mut plan.generation) else {
        return Err(no_head());
    };
    let mut usage = plan.charge.as_ref().map(|_| UsageScan::default());
    loop {
        client.let_beat(relay.may_beat());
        let whole = match client.attend(session, parts.next()).await? {
            Ok(Some(part)) => {
                leg.part_came();
                if let Some(usage) = &mut usage {
                    usage.pass(&part);
                    plan.prompt_tokens = usage.prompt_tokens().or(plan.prompt_tokens);
                }
                let part = relay.pass(part, &live);
                if !part.is_empty() {
                    client.write(session, Some(part), false).await?;
                }
                continue;
            }
            Ok(None) if relay.may_end() => true,
            Ok(None) => return Err(broken_stream()),
            // It has said what it had to say; how it hangs up is its own affair.
            Err(_) if relay.is_complete() => false,
            Err(error) => return Err(unanswered(error)),
        };
        plan.outcome = Some(relay.outcome());
        if whole {
            parts.call.release().await;
        }
        return client.write(session, None, true).await;
    }
}

async fn whole(
    session: &mut Session,
    plan: &mut Plan,
    incoming: Incoming<'_>,
    client: &mut Client,
    live: &Live,
) -> Result<(), Failure> {
    let Incoming {
        mut head,
        mut parts,
    } = incoming;
    let mut held = Vec::new();
    loop {
        let part = client.attend(session, parts.next()).await?;
        let Some(part) = part.map_err(unanswered)? else {
            break;
        };
        if held.len() + part.len() > live.config.limits.max_answer {
            return Err(unanswered(CallError::TooLarge));
        }
        held.extend_from_slice(&part);
    }
    parts.call.release().await;
    if plan.charge.is_some() {
        plan.prompt_tokens = usage::prompt_tokens(&held).or(plan.prompt_tokens);
    }
    let body = relay::for_client(held, live.config.telemetry.internal_fields)?;
    relay::answer_head(&mut head, body.len()).map_err(|_| no_head())?;
    begin(session, plan, head, client).await?;
    client.write(session, Some(body), true).await
}

/// Writes a worker's head, with what every answer to this request carries.
async fn begin(
    session: &mut Session,
    plan: &Plan,
    mut head: ResponseHeader,
    client: &mut Client,
) -> Result<(), Failure> {
    reply::insert(&mut head, &plan.answer_fields()).map_err(|_| no_head())?;
    client.begin(session, Some(head)).await
}

fn no_head() -> Failure {
    Failure::internal("The head of the answer could not be built.")
}
