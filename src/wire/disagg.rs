//! How the two legs of a request are built from the client's body and from each other.
//!
//! The context leg gets the client's body with the hand-over asked for; the generation leg gets it
//! with the context answer's hand-over (specification sections 4.2 to 4.5). What the context instance
//! answered is carried as opaque bytes: this room overlays the four members that belong to the edge
//! and adds none of its own, because a worker refuses members it does not know.

mod answer;
mod final_answer;
mod generation_first;
mod prompt_rule;
mod refusal;

pub use answer::{AnswerError, ContextAnswer};
pub use final_answer::{client_answer, final_answer, final_events};
pub use generation_first::{
    ContextEndpoint, GenerationFirstParams, InfoError, generation_first_request,
};
pub use prompt_rule::completion_prompt;
pub use refusal::error_message;

use serde_json::value::RawValue;

use super::{
    body::{BodyError, BodyView},
    object::Object,
    pruning::PROMPT_TOKEN_IDS_B64,
};

/// The two routes that go through both legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    ChatCompletions,
    Completions,
}

impl Endpoint {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::ChatCompletions, Self::Completions];

    /// The path, the same for clients and workers.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    /// The endpoint of a path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|endpoint| endpoint.path() == path)
    }
}

/// Which leg begins; on the wire a number, because workers refuse the names (specification section
/// 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScheduleStyle {
    #[default]
    ContextFirst,
    GenerationFirst,
}

impl ScheduleStyle {
    /// The JSON number on the wire.
    pub fn as_wire(self) -> &'static str {
        match self {
            Self::ContextFirst => "0",
            Self::GenerationFirst => "1",
        }
    }
}

/// What a context request says beside the client's own fields.
#[derive(Debug, Clone)]
pub struct ContextParams<'a> {
    pub endpoint: Endpoint,
    /// The id of this attempt: a new one for every attempt.
    pub disagg_request_id: u64,
    pub schedule_style: ScheduleStyle,
    /// Ask for the prompt's ids as base64; only where `gen_tokids_ctxbytes` is on.
    pub return_prompt_token_ids_b64: bool,
    /// Raw JSON, from [`super::conversation::forwarded_params`].
    pub conversation_params: Option<&'a str>,
}

/// The body for the context instance (specification section 4.3).
///
/// Fails where a completion's prompt is of a kind that cannot be split over two legs.
pub fn context_request(view: &BodyView, params: &ContextParams) -> Result<Vec<u8>, BodyError> {
    let mut disaggregated = format!(
        r#"{{"request_type":"context_only","disagg_request_id":{},"schedule_style":{}"#,
        params.disagg_request_id,
        params.schedule_style.as_wire()
    );
    if params.return_prompt_token_ids_b64 {
        disaggregated.push_str(r#","return_prompt_token_ids_b64":true"#);
    }
    disaggregated.push('}');
    let mut changes = vec![
        ("stream", Some("false")),
        ("stream_options", None),
        (PROMPT_TOKEN_IDS_B64, None),
        ("disaggregated_params", Some(disaggregated.as_str())),
    ];
    if params.endpoint == Endpoint::Completions
        && let Some(prompt) = completion_prompt(view)?
    {
        changes.push(("prompt", Some(prompt)));
    }
    if let Some(conversation) = params.conversation_params {
        changes.push((super::conversation::PARAMS, Some(conversation)));
    }
    Ok(view.splice(&changes))
}

/// The body for an instance that serves the whole request by itself (specification section 4.6).
///
/// Fails where [`context_request`] would, so that a client sees one rule.
pub fn whole_request(
    view: &BodyView,
    endpoint: Endpoint,
    conversation_params: Option<&str>,
) -> Result<Vec<u8>, BodyError> {
    let mut changes = vec![(PROMPT_TOKEN_IDS_B64, None), ("disaggregated_params", None)];
    if endpoint == Endpoint::Completions
        && let Some(prompt) = completion_prompt(view)?
    {
        changes.push(("prompt", Some(prompt)));
    }
    if let Some(conversation) = conversation_params {
        changes.push((super::conversation::PARAMS, Some(conversation)));
    }
    Ok(view.splice(&changes))
}

/// The body for an instance of an aggregated fleet: the client's own, with the session.
pub fn aggregated_request(view: &BodyView, conversation_params: Option<&str>) -> Vec<u8> {
    let changes = conversation_params.map(|params| (super::conversation::PARAMS, Some(params)));
    let changes: Vec<_> = changes.into_iter().collect();
    view.splice(&changes)
}

/// What a generation request says beside the client's own fields and the context answer's.
#[derive(Debug, Clone)]
pub struct GenerationParams<'a> {
    pub endpoint: Endpoint,
    /// The id of the context attempt that answered; used where the answer names none.
    pub disagg_request_id: u64,
    pub schedule_style: ScheduleStyle,
    /// Upstream's `gen_strip_message_history`: a chat keeps only its last message.
    pub strip_message_history: bool,
    /// Raw JSON, from [`super::conversation::forwarded_params`].
    pub conversation_params: Option<&'a str>,
}

/// The body for the generation instance after a context answer (specification section 4.5).
///
/// Fails where the answer lacks the hand-over, as [`ContextAnswer::check`] does.
pub fn generation_request(
    view: &BodyView,
    answer: &ContextAnswer,
    params: &GenerationParams,
) -> Result<Vec<u8>, AnswerError> {
    let id = answer
        .disagg_request_id(params.disagg_request_id)?
        .to_string();
    let handed_over = answer.disaggregated_params()?.splice(&[
        ("request_type", Some(r#""generation_only""#)),
        ("schedule_style", Some(params.schedule_style.as_wire())),
        ("ctx_usage", Some(answer.usage().unwrap_or("null"))),
        ("disagg_request_id", Some(&id)),
    ]);
    let handed_over = String::from_utf8(handed_over).map_err(|_| AnswerError::NotUtf8)?;
    let mut changes = vec![("disaggregated_params", Some(handed_over.as_str()))];
    if let Some(conversation) = params.conversation_params {
        changes.push((super::conversation::PARAMS, Some(conversation)));
    }
    let last_message = last_message(view).filter(|_| params.strip_message_history);
    match params.endpoint {
        Endpoint::ChatCompletions => {
            changes.extend(chat_prompt(answer));
            changes.extend(last_message.as_deref().map(|last| ("messages", Some(last))));
        }
        Endpoint::Completions => {
            changes.push((PROMPT_TOKEN_IDS_B64, None));
            let ids = answer.prompt_token_ids();
            changes.extend(ids.map(|ids| ("prompt", Some(ids))));
        }
    }
    Ok(view.splice(&changes))
}

/// The prompt's ids in the form in which the context instance gave them, as bytes.
fn chat_prompt<'a>(answer: &ContextAnswer<'a>) -> [(&'static str, Option<&'a str>); 2] {
    const IDS: &str = "prompt_token_ids";
    match (answer.prompt_token_ids_b64(), answer.prompt_token_ids()) {
        (Some(encoded), _) => [(PROMPT_TOKEN_IDS_B64, Some(encoded)), (IDS, None)],
        (None, Some(ids)) => [(IDS, Some(ids)), (PROMPT_TOKEN_IDS_B64, None)],
        // Without ids the generation instance reads the messages; a client's own ids may not
        // stand in for the ones that the KV cache was made of.
        (None, None) => [(IDS, None), (PROMPT_TOKEN_IDS_B64, None)],
    }
}

fn last_message(view: &BodyView) -> Option<String> {
    let messages: Vec<&RawValue> = serde_json::from_str(view.present("messages")?).ok()?;
    Some(format!("[{}]", messages.last()?.get()))
}

/// Reads a list of objects.
fn objects(raw: &str) -> Option<Vec<Object<'_>>> {
    let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
    items
        .into_iter()
        .map(|item| Object::parse(item.get()).ok())
        .collect()
}

#[cfg(test)]
mod tests;
