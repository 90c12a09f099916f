//! The generation request that goes out before its context request (specification section 4.5).
//!
//! It cannot carry a context answer, since there is none yet; it carries the id that both legs share
//! and what the chosen context instance says of itself at `/server_info`, so that the generation
//! instance knows where to ask for the KV cache. What the context instance says is carried as opaque
//! bytes; only the two things that a request model refuses are taken out of it.

use super::{
    super::{
        body::{BodyError, BodyView},
        object::Object,
        pruning::PROMPT_TOKEN_IDS_B64,
        signature::{KvTransfer, Unsignable, first_element},
    },
    Endpoint, ScheduleStyle, completion_prompt,
};

const ENDPOINT: &str = "ctx_info_endpoint";
const STATE: &str = "encoded_opaque_state";
/// What newer workers count their endpoints with; no request model knows it.
const ENDPOINT_GENERATION: &str = "ctx_endpoint_generation";

/// Why a context instance's `/server_info` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    #[error("its /server_info is not UTF-8")]
    NotUtf8,
    #[error("its /server_info is not a JSON object: {0}")]
    NotJson(String),
    #[error(
        "its /server_info tells no disaggregated_params.ctx_info_endpoint, which \
         generation_first needs: is it a context server whose cache transceiver supports that?"
    )]
    NoEndpoint,
    #[error("its /server_info cannot be signed: {0}")]
    Unsignable(#[from] Unsignable),
}

/// What a generation request has to say of the context instance that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextEndpoint {
    /// The beginning of one JSON object, up to where further members may follow.
    members: String,
    /// The raw values that are signed.
    endpoint: Option<String>,
    state: Option<String>,
}

impl ContextEndpoint {
    /// Reads the answer to `GET /server_info`.
    ///
    /// # Errors
    /// When it is no such answer, or says nothing by which a KV cache could be found.
    pub fn of_server_info(bytes: &[u8]) -> Result<Self, InfoError> {
        let text = std::str::from_utf8(bytes).map_err(|_| InfoError::NotUtf8)?;
        let info = Object::parse(text).map_err(|error| InfoError::NotJson(error.to_string()))?;
        let params = info.present("disaggregated_params");
        let params = params.and_then(|raw| Object::parse(raw).ok());
        let params = params.ok_or(InfoError::NoEndpoint)?;
        let endpoint = params.present(ENDPOINT).map(first_element);
        let members = params.splice(&[
            (ENDPOINT, endpoint),
            (ENDPOINT_GENERATION, None),
            ("request_type", None),
            ("ctx_request_id", None),
            ("disagg_request_id", None),
            ("schedule_style", None),
        ]);
        let members = String::from_utf8(members).map_err(|_| InfoError::NotUtf8)?;
        let members = members.trim_end().strip_suffix('}');
        let told = |raw: Option<&str>| raw.filter(|raw| *raw != "null").map(str::to_owned);
        let told = Self {
            members: members.ok_or(InfoError::NoEndpoint)?.to_owned(),
            endpoint: told(endpoint),
            state: told(params.present(STATE)),
        };
        told.kv_transfer()?;
        let names = |raw: &Option<String>| raw.as_ref().is_some_and(|raw| raw != r#""""#);
        if names(&told.endpoint) || names(&told.state) {
            Ok(told)
        } else {
            Err(InfoError::NoEndpoint)
        }
    }

    /// The fields that the generation request must be signed over.
    ///
    /// # Errors
    /// None in practice: it was looked at when it was read.
    pub fn kv_transfer(&self) -> Result<KvTransfer<'_>, Unsignable> {
        KvTransfer::new(self.state.as_deref(), self.endpoint.as_deref())
    }
}

/// What a generation request that comes first says beside the client's own fields.
#[derive(Debug, Clone)]
pub struct GenerationFirstParams<'a> {
    pub endpoint: Endpoint,
    /// The id of the context request that follows.
    pub disagg_request_id: u64,
    /// Where that one goes.
    pub context: &'a ContextEndpoint,
    /// Raw JSON, from [`super::super::conversation::forwarded_params`].
    pub conversation_params: Option<&'a str>,
}

/// The body for the generation instance before there is a context answer. The prompt is the one of
/// the context request: the generation instance tokenises it again.
///
/// Fails where [`super::context_request`] does.
pub fn generation_first_request(
    view: &BodyView,
    params: &GenerationFirstParams,
) -> Result<Vec<u8>, BodyError> {
    let told = format!(
        r#"{},"request_type":"generation_only","ctx_request_id":{id},"disagg_request_id":{id},"schedule_style":{style}}}"#,
        params.context.members,
        id = params.disagg_request_id,
        style = ScheduleStyle::GenerationFirst.as_wire(),
    );
    let mut changes = vec![
        (PROMPT_TOKEN_IDS_B64, None),
        ("disaggregated_params", Some(told.as_str())),
    ];
    if params.endpoint == Endpoint::Completions
        && let Some(prompt) = completion_prompt(view)?
    {
        changes.push(("prompt", Some(prompt)));
    }
    if let Some(conversation) = params.conversation_params {
        changes.push((super::super::conversation::PARAMS, Some(conversation)));
    }
    Ok(view.splice(&changes))
}

#[cfg(test)]
mod tests;
