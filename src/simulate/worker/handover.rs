//! The two legs of one request: what each may ask, and what one tells the other.
//!
//! A context worker answers with everything that the generation worker needs; a generation worker
//! believes only what some context worker told for the same id and the same prompt. It must not
//! serve a leg that a real engine could not serve.

use serde_json::{Map, Value, json};

use super::{
    SimulatedWorker,
    answer::{Answer, Extent, PromptIds, Usage, stamp},
    disagg::{DisaggregatedParams, RequestType, SMALLEST_ID},
    fields::DISAGGREGATED,
    request::InferenceRequest,
};
use crate::{
    simulate::{
        engine::{Job, tokens::digest},
        transfer::TransferState,
    },
    wire::Role,
};

/// What the worker's role and the kinds of request exclude.
///
/// # Errors
/// The message of the 400.
pub(super) fn check_role(role: Role, request: &InferenceRequest) -> Result<(), String> {
    let Some(params) = &request.disaggregated else {
        return Ok(());
    };
    let wanted = params.request_type;
    match (role, wanted) {
        (Role::Aggregated, _) => Err(format!(
            "{} requests need a worker with cache_transceiver_config",
            wanted.as_wire()
        )),
        (Role::Context, RequestType::GenerationOnly)
        | (Role::Generation, RequestType::ContextOnly) => Err(format!(
            "this worker has another role: it does not serve {} requests",
            wanted.as_wire()
        )),
        (_, RequestType::ContextOnly) if request.stream => {
            Err("context_only requests cannot be streamed".to_owned())
        }
        (_, RequestType::GenerationOnly) => check_generation(request, params),
        _ => Ok(()),
    }
}

/// What a generation request has to bring. One that comes before its context answer
/// (`schedule_style` 1) brings only the id and where the context worker is.
fn check_generation(
    request: &InferenceRequest,
    params: &DisaggregatedParams,
) -> Result<(), String> {
    let missing = |name: &str| Err(format!("generation_only requests need {name}"));
    let Some(text) = &params.encoded_opaque_state else {
        if !params.generation_first {
            return missing("disaggregated_params.encoded_opaque_state");
        }
        return match (params.disagg_request_id, &params.ctx_info_endpoint) {
            (None, _) => missing("disaggregated_params.disagg_request_id"),
            (_, None) => missing("disaggregated_params.ctx_info_endpoint"),
            (Some(id), _) if params.ctx_request_id != Some(id) => {
                missing("a ctx_request_id that is its disagg_request_id")
            }
            _ => Ok(()),
        };
    };
    let state = TransferState::decode(text).map_err(|error| error.to_string())?;
    if params.disagg_request_id.is_some_and(|id| id != state.id) {
        return Err("disagg_request_id is not the one of encoded_opaque_state".to_owned());
    }
    if !request.prompt_was_ids {
        return missing("the prompt_token_ids of the context answer");
    }
    match &params.first_gen_tokens {
        Some(first) if u32::try_from(first.len()) == Ok(request.choices) => Ok(()),
        _ => missing("first_gen_tokens with one token for each choice"),
    }
}

impl SimulatedWorker {
    /// What the answer to an admitted request will be.
    pub(super) fn plan(&self, request: &InferenceRequest, job: &Job) -> Answer {
        let room = self.config.max_sequence.saturating_sub(job.tokens().len());
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let mut extent = Extent::of(request, self.config.answer_tokens, room);
        let params = request.disaggregated.as_ref();
        let kind = params.map(|params| params.request_type);
        if kind == Some(RequestType::ContextOnly) && extent.length > 1 {
            extent = Extent {
                length: 1,
                finish_reason: "length",
            };
        }
        let counted = params.and_then(|params| params.ctx_usage);
        let (id, created) = stamp(request.endpoint);
        let mut answer = Answer {
            endpoint: request.endpoint,
            id,
            created,
            model: request.model.clone(),
            digest: digest(job.tokens()),
            choices: request.choices,
            length: extent.length,
            finish_reason: extent.finish_reason,
            replayed: None,
            tool: request.tool.clone(),
            usage: Usage {
                prompt_tokens: counted
                    .map_or(job.tokens().len() as u64, |counted| counted.prompt_tokens),
                cached_tokens: counted
                    .map_or(job.cached_tokens() as u64, |counted| counted.cached_tokens),
                completion_tokens: u64::from(extent.length) * u64::from(request.choices),
            },
            disaggregated: None,
            prompt_ids: None,
        };
        match (params, kind) {
            (Some(params), Some(RequestType::ContextOnly)) => {
                self.tell_context(&mut answer, params, job);
            }
            (Some(params), _) => {
                answer.replayed.clone_from(&params.first_gen_tokens);
                answer.disaggregated = Some(complete(params.raw.clone()));
            }
            (None, _) => {}
        }
        answer
    }

    /// Adds to a context answer what the generation worker needs. When the answer is final there
    /// will be none, unless it is waiting already, and no cache is kept for it.
    fn tell_context(&self, answer: &mut Answer, params: &DisaggregatedParams, job: &Job) {
        let packed = params.return_prompt_token_ids_b64
            && answer.endpoint == crate::wire::disagg::Endpoint::ChatCompletions;
        answer.prompt_ids = Some(PromptIds::new(job.tokens(), packed));
        let first: Vec<u32> = (0..answer.choices)
            .map(|choice| answer.token(choice, 0))
            .collect();
        let goes_on = answer.finish_reason == "length" || params.generation_first;
        let id = params.disagg_request_id.unwrap_or_else(|| self.own_id());
        let state = TransferState {
            id,
            prompt: answer.digest,
            worker: self.config.name.clone(),
            rank: job.rank(),
        };
        let told = json!({
            "request_type": RequestType::ContextOnly.as_wire(),
            "first_gen_tokens": first,
            "ctx_request_id": goes_on.then_some(id),
            "encoded_opaque_state": goes_on.then(|| state.encode()),
            "disagg_request_id": params.disagg_request_id,
            "ctx_dp_rank": job.rank(),
            "schedule_style": u8::from(params.generation_first),
        });
        let told = told.as_object().cloned().unwrap_or_default();
        answer.disaggregated = Some(complete(told));
    }

    /// Offers a computed prompt to the generation worker that will ask for it.
    pub(super) fn offer(&self, answer: &Answer) {
        let told = answer.disaggregated.as_ref();
        let state = told
            .filter(|told| told["request_type"] == RequestType::ContextOnly.as_wire())
            .and_then(|told| told["encoded_opaque_state"].as_str())
            .and_then(|text| TransferState::decode(text).ok());
        if let (Some(exchange), Some(state)) = (&self.config.exchange, state) {
            exchange.offer(state);
        }
    }

    /// Where generation comes first, a context worker computes nothing before a generation worker
    /// has asked for it.
    ///
    /// # Errors
    /// When none asks in time.
    pub(super) async fn await_generation(
        &self,
        params: &DisaggregatedParams,
    ) -> Result<(), String> {
        let (Some(exchange), Some(id)) = (&self.config.exchange, params.disagg_request_id) else {
            return Ok(());
        };
        if !params.generation_first {
            return Ok(());
        }
        let asked = exchange.taker(id, self.config.transfer_timeout).await;
        asked.ok_or_else(|| format!("no generation worker asked for request {id} in time"))
    }

    /// Takes the cache of a prompt that a context worker computed.
    ///
    /// # Errors
    /// When nobody offers it in time, or it is another prompt's.
    pub(super) async fn receive(
        &self,
        params: &DisaggregatedParams,
        job: &Job,
    ) -> Result<(), String> {
        let told = params
            .encoded_opaque_state
            .as_deref()
            .and_then(|text| TransferState::decode(text).ok());
        let id = told
            .as_ref()
            .map(|state| state.id)
            .or(params.disagg_request_id)
            .unwrap_or_default();
        let offered = match &self.config.exchange {
            Some(exchange) => exchange.take(id, self.config.transfer_timeout).await,
            None => told,
        };
        match offered {
            None => Err(format!("KV cache transfer of request {id} timed out")),
            Some(state) if told_elsewhere(params, &state.worker) => {
                Err(format!("the KV cache of request {id} is on another worker"))
            }
            Some(state) if state.prompt == digest(job.tokens()) => Ok(()),
            Some(_) => Err(format!(
                "the KV cache of request {id} was computed for another prompt"
            )),
        }
    }

    /// An id that only this worker knows.
    fn own_id(&self) -> u64 {
        self.config.recorder.arrivals() % SMALLEST_ID
    }
}

/// Where a context worker's caches are asked for, as its `/server_info` tells.
pub(super) fn info_endpoint(worker: &str) -> String {
    format!("tcp://{worker}.simulated:5000")
}

/// Whether a generation request names another context worker than the one that computed.
fn told_elsewhere(params: &DisaggregatedParams, worker: &str) -> bool {
    let told = params.ctx_info_endpoint.as_ref();
    told.is_some_and(|told| *told != info_endpoint(worker))
}

/// All fields of `disaggregated_params`, as upstream prints them: those without a value as null.
fn complete(mut params: Map<String, Value>) -> Value {
    for name in DISAGGREGATED.iter().map(|field| field.name()) {
        let absent = match name {
            "return_prompt_token_ids_b64" => json!(false),
            _ => Value::Null,
        };
        params.entry(name).or_insert(absent);
    }
    Value::Object(params)
}
