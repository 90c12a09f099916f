//! Reads a whole request body so that Pingora can still forward it.
//!
//! Pingora 0.9.1 sends a body upstream after `request_filter` only if its retry buffer still holds
//! something or the body is not finished; the buffer takes 64 KiB and forgets everything once it is
//! full. So it is switched on late: when the rest of a body of known length surely fits. What it then
//! holds is only the tail and is never used, because the caller swaps in the bytes that were read
//! here. This file is the only one that knows the technique; it can go when Pingora buffers early.

mod budget;
mod client_watch;
mod decode;
mod sink;
mod value_scan;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Version, header};
use pingora::proxy::Session;
use tokio::time::{Instant, timeout, timeout_at};

pub use budget::{Budget, Lease};
pub use client_watch::ClientWatch;

use super::reply::Failure;
use decode::Coding;
use sink::Sink;
use value_scan::goes_on;

/// What Pingora's retry buffer holds.
const RETRY_BUFFER: usize = 64 * 1024;

/// How long a body may come as slowly as it likes.
const GRACE: Duration = Duration::from_secs(5);

/// Bounds of one read.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Bytes of one body.
    pub max_body: usize,
    /// Bytes of all bodies.
    pub budget: usize,
    /// Time for the whole body.
    pub deadline: Duration,
    /// Bytes a second that have to come once `GRACE` is over.
    pub min_rate: usize,
}

impl ReadLimits {
    /// When the next part of a body has to be there that began at `begun`.
    fn due(&self, begun: Instant, received: usize) -> Instant {
        let seconds = received / self.min_rate.max(1);
        let paid = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
        begun + GRACE + paid.min(self.deadline)
    }
}

/// A request body that was read to its end.
#[derive(Debug)]
pub struct Body {
    pub bytes: Bytes,
    pub lease: Lease,
    /// How to notice that the client leaves while the body waits to be forwarded.
    pub watch: ClientWatch,
    /// What may still come of it while the request is forwarded.
    pub rest: Option<Rest>,
}

impl Body {
    /// Reads what may still come, for a request that Pingora does not forward itself.
    ///
    /// # Errors
    /// 400, 408 or 413, as for the body itself, or the client has left.
    pub async fn read_rest(&mut self, session: &mut Session) -> Result<(), Failure> {
        if let Some(rest) = self.rest.take() {
            rest.read(session).await?;
            self.watch = ClientWatch::Read;
        }
        Ok(())
    }
}

/// The end of a body that must stay unread until the request is forwarded: white space, within the
/// bounds of the whole body.
#[derive(Debug)]
pub struct Rest {
    limits: ReadLimits,
    room: usize,
    received: usize,
    /// What the body's own reading has left of the deadline.
    left: Duration,
    /// Set when the first part is read: the context leg before it takes none of the client's time.
    begun: Option<Instant>,
}

impl Rest {
    /// Reads it, for a request that Pingora does not forward itself.
    ///
    /// # Errors
    /// 400, 408 or 413, as for the body itself, or the client has left.
    pub async fn read(mut self, session: &mut Session) -> Result<(), Failure> {
        let begun = *self.begun.get_or_insert(Instant::now());
        loop {
            let due = self.limits.due(begun, self.received).min(begun + self.left);
            let part = timeout_at(due, session.read_request_body()).await;
            let part = part.map_err(|_| self.too_slow(begun))?;
            let Some(part) = part.map_err(|error| self.failure(&error))? else {
                return Ok(());
            };
            self.pass(&part)?;
        }
    }

    /// Looks at a part of the rest.
    ///
    /// # Errors
    /// 400, 408 or 413, as for the body itself.
    pub fn pass(&mut self, part: &[u8]) -> Result<(), Failure> {
        let now = Instant::now();
        let begun = *self.begun.get_or_insert(now);
        if now > self.limits.due(begun, self.received).min(begun + self.left) {
            return Err(self.too_slow(begun));
        }
        self.received += part.len();
        self.room = self
            .room
            .checked_sub(part.len())
            .ok_or_else(|| Failure::too_large(self.limits.max_body, None))?;
        if part.trim_ascii().is_empty() {
            Ok(())
        } else {
            Err(goes_on())
        }
    }

    fn too_slow(&self, begun: Instant) -> Failure {
        if Instant::now() >= begun + self.left {
            Failure::body_too_slow(self.limits.deadline.as_secs_f64())
        } else {
            Failure::body_below_rate(self.limits.min_rate)
        }
    }

    /// What an error of the client's connection means while the rest is read.
    pub fn failure(&self, error: &pingora::Error) -> Failure {
        match error.etype() {
            pingora::ErrorType::ReadTimedout if self.left > GRACE => {
                Failure::body_below_rate(self.limits.min_rate)
            }
            _ => read_failure(error, self.limits.deadline),
        }
    }
}

/// Reads the whole body of a request, within bounds.
///
/// # Errors
/// 408, 411, 413, 415 or 503 as the case may be, 400 for broken framing, or the client has left.
pub async fn read(
    session: &mut Session,
    limits: ReadLimits,
    budget: &Arc<Budget>,
) -> Result<Body, Failure> {
    let body = read_whole(session, limits, budget).await;
    if body.is_err() {
        // Where the next request would begin is not known.
        session.set_keepalive(None);
    }
    body
}

async fn read_whole(
    session: &mut Session,
    limits: ReadLimits,
    budget: &Arc<Budget>,
) -> Result<Body, Failure> {
    let coding = Coding::of(&session.req_header().headers)?;
    let length = declared_length(session)?;
    if let Some(length) = length.filter(|length| *length > limits.max_body) {
        return Err(Failure::too_large(limits.max_body, Some(length)));
    }
    let lease = Lease::new(budget.clone(), limits.budget);
    let sink = Sink::new(coding, length, limits, lease);
    if expects_continue(session) {
        session
            .write_continue_response()
            .await
            .map_err(|_| Failure::client_left())?;
    }
    let due = Instant::now() + limits.deadline;
    let read = read_all(session, length, sink, limits);
    let (sink, received, watch) = timeout(limits.deadline, read)
        .await
        .map_err(|_| Failure::body_too_slow(limits.deadline.as_secs_f64()))??;
    let rest = (watch == ClientWatch::Socket).then(|| {
        let left = due.saturating_duration_since(Instant::now());
        // Pingora reads it, and asks nobody while nothing comes.
        session.set_read_timeout(Some(left.min(GRACE)));
        Rest {
            limits,
            room: limits.max_body.saturating_sub(received),
            received: 0,
            left,
            begun: None,
        }
    });
    let (bytes, lease) = sink.finish()?;
    Ok(Body {
        bytes,
        lease,
        watch,
        rest,
    })
}

async fn read_all(
    session: &mut Session,
    length: Option<usize>,
    mut sink: Sink,
    limits: ReadLimits,
) -> Result<(Sink, usize, ClientWatch), Failure> {
    let begun = Instant::now();
    let mut received = 0;
    loop {
        if length.is_none_or(|length| length.saturating_sub(received) <= RETRY_BUFFER) {
            session.enable_retry_buffering();
        }
        let part = timeout_at(limits.due(begun, received), session.read_request_body());
        let Some(part) = part
            .await
            .map_err(|_| Failure::body_below_rate(limits.min_rate))?
            .map_err(|error| read_failure(&error, limits.deadline))?
        else {
            break;
        };
        received += part.len();
        if received > limits.max_body {
            return Err(Failure::too_large(limits.max_body, None));
        }
        if length.is_none() && session.is_http2() && received > RETRY_BUFFER {
            return Err(Failure::length_required());
        }
        sink = sink.take(part).await?;
        if length == Some(received) {
            break;
        }
        let early = length.is_none() && sink.is_whole() && received > RETRY_BUFFER;
        if early && !session.is_body_done() {
            // The end of the body stays unread: Pingora reads it when it forwards the request, and
            // that is what makes it ask for the body.
            return Ok((sink, received, ClientWatch::Socket));
        }
    }
    if received > 0 && session.get_retry_buffer().is_none() {
        if length.is_none() && !sink.is_whole() {
            // It says what is missing, where that is the coding's to say.
            sink.finish()?;
            return Err(Failure::bad_request(
                "invalid_json",
                "The request body ends before its JSON object does.",
            ));
        }
        return Err(Failure::length_required());
    }
    Ok((sink, received, ClientWatch::Read))
}

fn read_failure(error: &pingora::Error, deadline: Duration) -> Failure {
    use pingora::ErrorType::{
        ConnectionClosed, H2Error, ReadError, ReadTimedout, WriteError, WriteTimedout,
    };
    match error.etype() {
        ConnectionClosed | ReadError | WriteError | WriteTimedout | H2Error => {
            Failure::client_left()
        }
        ReadTimedout => Failure::body_too_slow(deadline.as_secs_f64()),
        _ => Failure::bad_request("invalid_framing", "The request body's framing is broken."),
    }
}

fn declared_length(session: &Session) -> Result<Option<usize>, Failure> {
    session
        .get_header(header::CONTENT_LENGTH)
        .map(|value| {
            value
                .to_str()
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .ok_or_else(|| {
                    Failure::bad_request("ambiguous_framing", "Content-Length is not a number.")
                        .param(Some("content-length".to_owned()))
                })
        })
        .transpose()
}

/// Whether the client waits to be told to go on; one of HTTP/1.0 does not know how (RFC 9110 section
/// 10.1.1).
fn expects_continue(session: &Session) -> bool {
    let head = session.req_header();
    head.version >= Version::HTTP_11 && head.headers.contains_key(header::EXPECT)
}

/// Lets a connection that is kept be idle for so many whole seconds only, or closes it after the
/// answer where there are none; Pingora's own default is for ever.
pub fn bound_idleness(session: &mut Session, idle: Duration) {
    const FOR_EVER: u64 = 0;
    if session.get_keepalive() == Some(FOR_EVER) {
        let seconds = idle.as_secs();
        session.set_keepalive((seconds != FOR_EVER).then_some(seconds));
    }
}

/// Whether Pingora can send a request's body once more over another connection. It cannot after the
/// end of a chunked body that its buffer was too small for; it would wait for ever.
pub fn is_replayable(session: &mut Session) -> bool {
    session.get_retry_buffer().is_some() || !session.is_body_done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(left: Duration) -> Rest {
        Rest {
            limits: ReadLimits {
                max_body: 10,
                budget: 10,
                deadline: Duration::ZERO,
                min_rate: 2,
            },
            room: 4,
            received: 0,
            left,
            begun: None,
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn the_rest_of_a_body_is_bounded_white_space() {
        assert!(rest(LONG).pass(b" \r\n\t").is_ok());
        for (part, status) in [(&b"     "[..], 413), (b" x", 400)] {
            assert_eq!(rest(LONG).pass(part).unwrap_err().status, status);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_body_has_a_time_and_a_rate() {
        let second = Duration::from_secs(1);
        let mut late = rest(second);
        assert!(late.pass(b" ").is_ok());
        tokio::time::advance(second * 2).await;
        let told = late.pass(b" ").unwrap_err();
        assert_eq!(told.status, 408);
        assert!(!told.message.contains("a second"), "{}", told.message);
        let mut dripping = rest(LONG);
        dripping.limits.deadline = LONG;
        dripping.room = 100;
        assert!(dripping.pass(b"  ").is_ok());
        for _ in 0..2 {
            tokio::time::advance(GRACE / 2).await;
            assert!(dripping.pass(b" ").is_ok());
        }
        tokio::time::advance(second * 3).await;
        let told = dripping.pass(b" ").unwrap_err();
        assert_eq!(told.status, 408);
        assert!(told.message.contains("a second"), "{}", told.message);
    }
}
