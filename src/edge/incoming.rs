//! The generation leg as a side call: sent, and its answer as it comes in.
//!
//! Pingora's proxy path cannot hold back a head until the body is whole, send nothing for a while
//! and then a comment, or notice that a client left once that has pipelined; so the answer is read
//! here, and `deliver` writes it. A request is sent again only where no worker can have begun on it.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;

use super::{
    failure::{refused, with_retry_after},
    generation_leg::GenerationLeg,
    live::Live,
    plan::Plan,
};
use crate::http::{
    reply::{Failure, upstream_failure},
    upstream::{CallError, Streaming, Upstreams},
};

/// Bytes of a worker's error body that are looked at for its message.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// How long the body of a refusal is waited for.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);

/// A generation worker's answer whose head is in.
pub struct Incoming<'u> {
    pub call: Streaming<'u>,
    pub head: ResponseHeader,
    /// What of the body was read before it was wanted.
    pub early: VecDeque<Bytes>,
}

impl<'u> Incoming<'u> {
    /// Sends the planned generation request until a worker answers. Cancel-safe: dropping it closes
    /// the connection.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn of(upstreams: &'u Upstreams, plan: &mut Plan) -> Result<Self, Failure> {
        loop {
            let error = match attempt(upstreams, plan).await? {
                Ok(incoming) => return Ok(incoming),
                Err(error) => error,
            };
            if error != CallError::Unheard || !may_replace_connection(plan) {
                return Err(unanswered(error));
            }
        }
    }

    /// The worker's refusal, in its own words as far as they come.
    pub async fn refusal(&mut self, live: &Live) -> Failure {
        let mut body = BytesMut::new();
        let read = async {
            while let Ok(Some(part)) = self.call.next().await
                && body.len() < MAX_ERROR_BODY
            {
                let room = MAX_ERROR_BODY.saturating_sub(body.len());
                body.extend_from_slice(part.get(..room).unwrap_or(&part));
            }
        };
        // What has come by then is what there is.
        let _ = tokio::time::timeout(REFUSAL_PATIENCE, read).await;
        let failure = refused(live, "generation", self.head.status.as_u16(), &body);
        with_retry_after(failure, &self.head.headers)
    }
}

async fn attempt<'u>(
    upstreams: &'u Upstreams,
    plan: &mut Plan,
) -> Result<Result<Incoming<'u>, CallError>, Failure> {
    let mut call = match open(upstreams, plan).await? {
        Ok(call) => call,
        Err(error) => return Ok(Err(error)),
    };
    let head = match call.head().await {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    plan.generation_answers();
    let early = VecDeque::new();
    Ok(Ok(Incoming { call, head, early }))
}

/// Writes the generation request. Where no connection can be made nothing was sent, and another
/// instance is taken. The inner error is of the last attempt.
///
/// # Errors
/// Without a planned generation leg.
pub async fn open<'u>(
    upstreams: &'u Upstreams,
    plan: &mut Plan,
) -> Result<Result<Streaming<'u>, CallError>, Failure> {
    let live = plan.live.clone();
    let leg = plan.generation()?;
    loop {
        leg.attempt_starts();
        let error = match upstreams.open(&leg.call(), &live.config.timeouts).await {
            Ok(call) => return Ok(Ok(call)),
            Err(error) => error,
        };
        let unsent = matches!(error, CallError::Connect | CallError::Unresolved);
        if !unsent || !leg.move_on() {
            return Ok(Err(error));
        }
    }
}

/// Whether the generation leg may have another connection for one that died unheard.
pub fn may_replace_connection(plan: &mut Plan) -> bool {
    let leg = plan.generation.as_mut();
    leg.is_some_and(GenerationLeg::may_replace_connection)
}

/// What the client is told of a generation worker that gave no answer.
pub fn unanswered(error: CallError) -> Failure {
    upstream_failure("generation worker", error)
}
