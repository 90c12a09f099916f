//! The client while its request is worked on: whether it is still there, and signs of life for it.
//!
//! Every wait of a request goes through [`Client::attend`]: a client that leaves ends it, and so does
//! the time until an answer must have begun. Where the configuration wants it, a stream that is silent
//! for long gets SSE comments, from the prefill on. A comment goes in between two events, never into
//! one, and only where the client reads the stream as it is.

use std::{
    future::{Future, pending},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::{BError, Result, http::ResponseHeader, proxy::Session};
use tokio::time::{Instant, sleep_until};

use super::plan::Plan;
use crate::{
    config::HalfClose,
    http::{
        body::{ClientWatch, Rest},
        reply::{self, Failure},
    },
};

/// What keeps a silent stream alive: a comment, which clients pass over.
const HEARTBEAT: &[u8] = b": keep-alive\n\n";

/// Who waits for the answer of one request.
pub struct Client {
    watch: ClientWatch,
    half_close: HalfClose,
    /// `None` where no comments are wanted.
    heartbeat: Option<Duration>,
    /// Whether one may be sent now.
    may_beat: bool,
    /// Header fields that a head of Kindred's own carries.
    fields: Vec<(&'static str, String)>,
    /// Until when an answer must have begun, and how long that is from the beginning; `None` once one
    /// has.
    due: Option<(Instant, Duration)>,
    /// When something was last written, or the waiting began.
    written: Instant,
}

impl Client {
    pub fn new(plan: &Plan, watch: ClientWatch) -> Self {
        let answer = plan.live.config.timeouts.answer;
        Self {
            watch,
            half_close: plan.live.config.http.half_close,
            heartbeat: None,
            may_beat: true,
            fields: Vec::new(),
            due: Some((Instant::now() + answer, answer)),
            written: Instant::now(),
        }
    }

    /// From now on its stream is kept alive, if it asked for one and the configuration wants it.
    pub fn expects(&mut self, plan: &Plan) {
        self.heartbeat = plan.live.config.http.heartbeat.filter(|_| plan.stream);
        if self.heartbeat.is_some() {
            self.fields.clone_from(&plan.on_every_answer);
        }
    }

    /// Whether comments may be sent to it while nothing else is.
    pub fn let_beat(&mut self, may: bool) {
        self.may_beat = may;
    }

    /// An answer has begun: there is no limit on how long it may take.
    pub fn answered(&mut self) {
        self.due = None;
    }

    /// Does `work` unless the client leaves first, or no answer has begun when `timeouts.answer` is
    /// over; it is dropped then.
    ///
    /// # Errors
    /// The client has left, or 504.
    pub async fn attend<T>(
        &mut self,
        session: &mut Session,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut work = pin!(work);
        loop {
            let every = self.heartbeat.filter(|_| self.may_beat);
            let beat = every.map(|every| self.written + every);
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = self.watch.left(session, self.half_close) => return Err(Failure::client_left()),
                () = passed(self.due.map(|(due, _)| due)) => return Err(self.too_late()),
                () = passed(beat) => {}
            }
            self.begin(session, None).await?;
            self.write(session, Some(Bytes::from_static(HEARTBEAT)), false)
                .await?;
        }
    }

    fn too_late(&self) -> Failure {
        let limit = self.due.map(|(_, limit)| limit).unwrap_or_default();
        let limit = humantime::format_duration(limit);
        Failure::gateway_timeout(format!("No answer had begun after {limit}."))
    }

    /// Reads what may still come of its body.
    ///
    /// # Errors
    /// 400, 408 or 413, as for the body itself, or the client has left.
    pub async fn finish_body(
        &mut self,
        session: &mut Session,
        rest: Option<Rest>,
    ) -> Result<(), Failure> {
        let Some(rest) = rest else {
            return Ok(());
        };
        let read = rest.read(session).await;
        if read.is_err() {
            // Where the next request would begin is not known.
            session.set_keepalive(None);
        }
        self.watch = ClientWatch::Read;
        read
    }

    /// Writes the head of the answer, Kindred's own for a stream where there is none; nothing if a
    /// head went out before.
    ///
    /// # Errors
    /// The client has left.
    pub async fn begin(
        &mut self,
        session: &mut Session,
        head: Option<ResponseHeader>,
    ) -> Result<(), Failure> {
        if reply::has_begun(session) {
            return Ok(());
        }
        let mut head = match head {
            Some(head) => head,
            None => {
                stream_head(&self.fields).map_err(|_| Failure::internal("No head can be built."))?
            }
        };
        reply::frame_for_old_clients(session, &mut head);
        let written = session.write_response_header(Box::new(head), false).await;
        self.wrote(written)
    }

    /// Writes part of the answer.
    ///
    /// # Errors
    /// The client has left.
    pub async fn write(
        &mut self,
        session: &mut Session,
        part: Option<Bytes>,
        end: bool,
    ) -> Result<(), Failure> {
        let written = session.write_response_body(part, end).await;
        self.wrote(written)
    }

    fn wrote(&mut self, written: Result<(), BError>) -> Result<(), Failure> {
        self.written = Instant::now();
        written.map_err(|_| Failure::client_left())
    }
}

/// The head of a stream that begins before a worker has answered.
fn stream_head(fields: &[(&'static str, String)]) -> Result<ResponseHeader> {
    let mut head = ResponseHeader::build(StatusCode::OK, Some(2 + fields.len()))?;
    head.insert_header(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")?;
    head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    reply::insert(&mut head, fields)?;
    Ok(head)
}

/// Completes at that time; never without one.
pub async fn passed(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
