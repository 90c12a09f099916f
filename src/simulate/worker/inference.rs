//! The way of one inference request through a worker.
//!
//! Read, check, verify, admit to a rank, compute, answer. Everything that can be refused is refused
//! before the engine works, and every wait ends when the client leaves; dropping the job then
//! cancels the work.

use std::io::Write;

use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Method, StatusCode};
use pingora::protocols::http::ServerSession;
use serde_json::{Map, Value, json};

use super::{
    Presented, SimulatedWorker,
    disagg::RequestType,
    fault::{self, Faults},
    handover::check_role,
    reply::{Ended, Refusal, attend, begin, begin_events, send, send_json, write},
    request::InferenceRequest,
    stream::{Events, stream},
};
use crate::simulate::engine::Job;
use crate::wire::disagg::Endpoint;

/// Tells the attention data-parallel rank of a request.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// Announces a MessagePack body.
const MSGPACK_HEADER: &str = "x-trtllm-msgpack";

/// Tells the rank that answered; no real worker does.
const SHOWN_RANK_HEADER: &str = "x-simulated-rank";

impl SimulatedWorker {
    /// Answers a request to the engine and notes it.
    pub(super) async fn infer(
        &self,
        session: &mut ServerSession,
        endpoint: Endpoint,
    ) -> Result<(), Ended> {
        let recorder = &self.config.recorder;
        let arrival = recorder.note(session.req_header());
        let outcome = self.attempt(session, endpoint, arrival).await;
        let status = session.response_written().map(|head| head.status.as_u16());
        recorder.update(arrival, |recorded| {
            recorded.status = status;
            recorded.finished = outcome.is_ok();
            recorded.client_left = outcome == Err(Ended::ClientLeft);
        });
        outcome
    }

    async fn attempt(
        &self,
        session: &mut ServerSession,
        endpoint: Endpoint,
        arrival: u64,
    ) -> Result<(), Ended> {
        let body = match self.read_body(session).await? {
            Ok(body) => body,
            Err(refusal) => return refuse(session, refusal).await,
        };
        self.config.recorder.note_body(arrival, &body);
        let faults = match self.faults(session) {
            Ok(faults) => faults,
            Err(refusal) => return refuse(session, refusal).await,
        };
        if let Some(refusal) = misbehave(session, &faults).await? {
            return refuse(session, refusal).await;
        }
        let (request, job) = match self.admit(session, endpoint, &body, &faults) {
            Ok(admitted) => admitted,
            Err(refusal) => return refuse(session, refusal).await,
        };
        drop(body);
        self.config
            .recorder
            .update(arrival, |recorded| recorded.rank = Some(job.rank()));
        self.run(session, &request, job, &faults).await
    }

    /// Reads the whole body, up to the configured size.
    async fn read_body(
        &self,
        session: &mut ServerSession,
    ) -> Result<Result<Bytes, Refusal>, Ended> {
        if session.req_header().method != Method::POST {
            return Ok(Err(super::inspect::not_allowed()));
        }
        if session.get_header("expect").is_some() {
            let going_on = session.write_continue_response().await;
            going_on.map_err(|_| Ended::ClientLeft)?;
        }
        let mut body = BytesMut::new();
        while let Some(part) = session
            .read_request_body()
            .await
            .map_err(|_| Ended::ClientLeft)?
        {
            if body.len() + part.len() > self.config.max_body {
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                let message = "The request body is too large";
                return Ok(Err(Refusal::with_status(
                    status,
                    "BadRequestError",
                    message,
                )));
            }
            body.extend_from_slice(&part);
        }
        Ok(Ok(body.freeze()))
    }

    /// What is to go wrong with this request.
    fn faults(&self, session: &ServerSession) -> Result<Faults, Refusal> {
        match session.get_header(fault::HEADER) {
            None => Ok(self.config.control.take()),
            Some(value) => String::from_utf8_lossy(value.as_bytes())
                .parse()
                .map_err(|error: fault::UnknownFault| Refusal::bad_request(error.to_string())),
        }
    }

    /// Checks a request and puts it on its rank.
    fn admit(
        &self,
        session: &ServerSession,
        endpoint: Endpoint,
        body: &[u8],
        faults: &Faults,
    ) -> Result<(InferenceRequest, Job), Refusal> {
        let headers = &session.req_header().headers;
        if headers.contains_key(MSGPACK_HEADER) {
            let message = "MessagePack bodies are not simulated: send JSON";
            return Err(Refusal::bad_request(message));
        }
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::invalid(format!("JSON decode error: {error}")))?;
        let mut request = InferenceRequest::read(endpoint, &fields).map_err(Refusal::invalid)?;
        request.finish_at_once |= faults.finish_at_once;
        check_role(self.config.role, &request).map_err(Refusal::bad_request)?;
        if let Some(verify) = &self.config.verify {
            let presented = Presented {
                headers,
                body,
                endpoint,
                role: self.config.role,
            };
            verify(&presented).map_err(Refusal::bad_request)?;
        }
        let (prompt, most) = (request.prompt.len(), self.config.max_sequence);
        if prompt >= most {
            let message = format!("The prompt has {prompt} tokens; with its answer at most {most}");
            return Err(Refusal::bad_request(message));
        }
        let rank = told_rank(headers)?;
        let job = self
            .engine
            .admit(rank, std::mem::take(&mut request.prompt))
            .map_err(|error| Refusal::bad_request(error.to_string()))?;
        Ok((request, job))
    }

    async fn run(
        &self,
        session: &mut ServerSession,
        request: &InferenceRequest,
        mut job: Job,
        faults: &Faults,
    ) -> Result<(), Ended> {
        let mut answer = self.plan(request, &job);
        answer.choices = faults.choices.unwrap_or(answer.choices);
        let mut shown = vec![(SHOWN_RANK_HEADER, job.rank().to_string())];
        if faults.gzip {
            shown.push(("content-encoding", "gzip".to_owned()));
        }
        if request.stream {
            begin_events(session, &shown).await?;
            let mut events = Events::new(session, faults);
            let computed = attend(events.session(), self.compute(request, &mut job)).await?;
            if let Err(message) = computed {
                return break_stream(&mut events, request.endpoint, &message).await;
            }
            stream(&mut events, &answer, &job, request.include_usage).await?;
            job.finish(&answer.tokens(0));
            return Ok(());
        }
        if let Err(message) = attend(session, self.compute(request, &mut job)).await? {
            return refuse(session, Refusal::bad_request(message)).await;
        }
        for _ in 1..answer.length {
            attend(session, job.next_token()).await?;
        }
        self.offer(&answer);
        job.finish(&answer.tokens(0));
        let mut answer = answer.to_json();
        spoil(&mut answer, faults);
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        send_whole(session, &shown, body, faults).await
    }

    /// Computes the prompt, or takes it from the context worker that did.
    async fn compute(&self, request: &InferenceRequest, job: &mut Job) -> Result<(), String> {
        match &request.disaggregated {
            Some(params) if params.request_type == RequestType::GenerationOnly => {
                self.receive(params, job).await?;
                job.receive();
            }
            Some(params) => {
                self.await_generation(params).await?;
                job.prefill().await;
            }
            None => job.prefill().await,
        }
        Ok(())
    }
}

/// Delay, reset and status faults; `Some` is the answer to give.
async fn misbehave(session: &mut ServerSession, faults: &Faults) -> Result<Option<Refusal>, Ended> {
    if let Some(delay) = faults.delay {
        attend(session, tokio::time::sleep(delay)).await?;
    }
    if faults.reset {
        return Err(Ended::BrokenOff);
    }
    Ok(faults.status.map(|status| {
        let message = format!("simulated fault: status {}", status.as_u16());
        Refusal::with_status(status, "InternalServerError", message)
    }))
}

async fn refuse(session: &mut ServerSession, refusal: Refusal) -> Result<(), Ended> {
    send_json(session, refusal.status, &refusal.body).await
}

/// As upstream: a chat stream just breaks, a completions stream says why (specification section
/// 4.10).
async fn break_stream(
    events: &mut Events<'_>,
    endpoint: Endpoint,
    message: &str,
) -> Result<(), Ended> {
    if endpoint == Endpoint::ChatCompletions {
        return Err(Ended::BrokenOff);
    }
    let error = json!({"error": {"message": message, "type": "server_error"}});
    events.send(&error).await?;
    events.done().await
}

/// Leaves fields out, and makes fields null, wherever they stand.
fn spoil(value: &mut Value, faults: &Faults) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !faults.without.contains(name));
            for (name, value) in fields {
                if faults.null.contains(name) {
                    *value = Value::Null;
                }
                spoil(value, faults);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, faults)),
        _ => {}
    }
}

async fn send_whole(
    session: &mut ServerSession,
    shown: &[(&'static str, String)],
    mut body: Vec<u8>,
    faults: &Faults,
) -> Result<(), Ended> {
    if faults.invalid_json {
        body.truncate(body.len() / 2);
    }
    if faults.gzip {
        body = gzip(&body);
    }
    let length = body.len();
    let dies = faults.die_after.is_some() || faults.die_in.is_some() || faults.die_before_done;
    let stalls = faults.stall_after.is_some();
    if !dies && !stalls && faults.pause.is_none() {
        return send(session, StatusCode::OK, shown, body.into()).await;
    }
    let pause = faults.pause.unwrap_or_default();
    let half = Bytes::from(body.split_off(length / 2));
    begin(session, StatusCode::OK, shown, length).await?;
    attend(session, tokio::time::sleep(pause)).await?;
    write(session, body.into(), false).await?;
    if dies {
        return Err(Ended::BrokenOff);
    }
    if stalls {
        attend(session, std::future::pending::<()>()).await?;
    }
    attend(session, tokio::time::sleep(pause)).await?;
    write(session, half, true).await
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = gzip.write_all(body);
    gzip.finish().unwrap_or_default()
}

/// The rank that the request is told to run on.
fn told_rank(headers: &HeaderMap) -> Result<Option<u32>, Refusal> {
    let mut told = headers.get_all(RANK_HEADER).iter();
    let Some(value) = told.next() else {
        return Ok(None);
    };
    let rank = value.to_str().ok().and_then(|text| text.parse().ok());
    match (rank, told.next()) {
        (Some(rank), None) => Ok(Some(rank)),
        _ => Err(Refusal::bad_request(format!(
            "{RANK_HEADER} must be given once, as an integer"
        ))),
    }
}
