//! The generation leg as a side call: sent, and its answer as it comes in.
//!
//! Pingora's proxy path cannot hold back a head until the body is whole, send nothing for a while
//! and then a comment, or notice that a client left once that has pipelined; so the answer is read
//! here, and `deliver` writes it. Whether and where it is sent again is the policy's of `retry`.

use std::{collections::VecDeque, time::Duration};

use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;
use tokio::time::{sleep, timeout};

use super::{
    failure::{refused, with_retry_after},
    generation_leg::GenerationLeg,
    live::Live,
    plan::Plan,
    retry::{Cause, Failed},
};
use crate::http::{
    reply::{Failure, upstream_failure},
    upstream::{CallError, Streaming, Upstreams, classify},
};

/// Bytes of a worker's error body that are looked at for its message.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// How long the body of a refusal is waited for.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);

/// A generation worker's answer whose head is in.
pub struct Incoming<'u> {
    pub head: ResponseHeader,
    pub parts: Parts<'u>,
}

/// The body of an answer, part by part.
pub struct Parts<'u> {
    pub call: Streaming<'u>,
    /// What was read before it was wanted.
    pub early: VecDeque<Bytes>,
}

impl Parts<'_> {
    /// The next part; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, or was silent for too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        match self.early.pop_front() {
            Some(part) => Ok(Some(part)),
            None => self.call.next().await.map_err(classify),
        }
    }
}

impl<'u> Incoming<'u> {
    /// Sends the planned generation request, and again as far as that can help, until a worker
    /// answers. Cancel-safe: dropping it closes the connection.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn of(upstreams: &'u Upstreams, plan: &mut Plan) -> Result<Self, Failure> {
        loop {
            let outcome = attempt(upstreams, plan).await?;
            let cause = match &outcome {
                Ok(incoming) => incoming.cause(),
                Err(failed) => failed.cause,
            };
            let leg = plan.generation()?;
            let Some(pause) = cause.and_then(|cause| leg.again(cause)) else {
                return outcome.map_err(|failed| failed.failure);
            };
            // Its connection is closed before the pause.
            drop(outcome);
            sleep(pause).await;
        }
    }

    /// Why the request may be sent again, after an answer that is no good one.
    pub fn cause(&self) -> Option<Cause> {
        Cause::of_answer(self.head.status.as_u16(), &self.head.headers)
    }

    /// The worker's refusal, in its own words as far as they come.
    pub async fn refusal(&mut self, live: &Live) -> Failure {
        let mut body = BytesMut::new();
        let read = async {
            while let Ok(Some(part)) = self.parts.call.next().await
                && body.len() < MAX_ERROR_BODY
            {
                let room = MAX_ERROR_BODY.saturating_sub(body.len());
                body.extend_from_slice(part.get(..room).unwrap_or(&part));
            }
        };
        // What has come by then is what there is.
        let _ = timeout(REFUSAL_PATIENCE, read).await;
        let failure = refused(live, "generation", self.head.status.as_u16(), &body);
        with_retry_after(failure, &self.head.headers)
    }
}

/// One attempt, to the head of the answer.
async fn attempt<'u>(
    upstreams: &'u Upstreams,
    plan: &mut Plan,
) -> Result<Result<Incoming<'u>, Failed>, Failure> {
    let live = plan.live.clone();
    let leg = plan.generation()?;
    let lost = leg.lost();
    let answer = async {
        let mut call = open(upstreams, leg, &live).await?;
        let head = call.head().await?;
        call.limit_silence();
        Ok((call, head))
    };
    let answer = tokio::select! {
        biased;
        answer = timeout(live.config.timeouts.first_byte, answer) => answer,
        () = lost => return Ok(Err(Failed { failure: unanswered(CallError::Reset), cause: Some(Cause::Lost) })),
    };
    Ok(match answer.unwrap_or(Err(CallError::Timeout)) {
        Ok((call, head)) => {
            plan.generation_answers();
            let early = VecDeque::new();
            let parts = Parts { call, early };
            Ok(Incoming { head, parts })
        }
        Err(error) => Err(failed(error)),
    })
}

/// Writes the generation request, once.
///
/// # Errors
/// As [`Upstreams::open`].
pub async fn open<'u>(
    upstreams: &'u Upstreams,
    leg: &mut GenerationLeg,
    live: &Live,
) -> Result<Streaming<'u>, CallError> {
    leg.attempt_starts();
    upstreams.open(&leg.call(), &live.config.timeouts).await
}

/// An attempt without an answer.
pub fn failed(error: CallError) -> Failed {
    Failed {
        failure: unanswered(error),
        cause: Cause::of_error(error),
    }
}

/// What the client is told of a generation worker that gave no answer.
pub fn unanswered(error: CallError) -> Failure {
    upstream_failure("generation worker", error)
}
