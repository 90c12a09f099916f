//! What a context instance answered.
//!
//! A [`ContextAnswer`] borrows the answer's bytes and keeps every value raw: 40,000 prompt ids are
//! carried, not read. It decides whether the answer can be handed over and whether a generation leg is
//! needed (specification section 4.2); it never judges values that only workers understand.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::super::{
    coerce::{self, Integer},
    object::Object,
    pruning::PROMPT_TOKEN_IDS_B64,
    signature::{KvTransfer, Unsignable},
    text::Text,
};

/// Why a context answer cannot be used: a fault of the context instance, not of the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("the context instance's answer is not UTF-8")]
    NotUtf8,
    #[error("the context instance's answer is not a JSON object: {0}")]
    NotJson(String),
    #[error("the context instance's answer has no list of choices")]
    NoChoices,
    #[error(
        "choice {0} of the context instance's answer has no disaggregated_params: \
         is the instance started as a context server?"
    )]
    NoParams(usize),
    #[error("choice {0} of the context instance's answer has no {1} to continue from")]
    NoId(usize, &'static str),
    #[error("the context instance's answer cannot be signed: {0}")]
    Unsignable(#[from] Unsignable),
}

/// A context instance's answer of status 200.
#[derive(Debug, Clone)]
pub struct ContextAnswer<'a> {
    object: Object<'a>,
    choices: Vec<Object<'a>>,
}

impl<'a> ContextAnswer<'a> {
    /// Reads an answer; it must have at least one choice.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, AnswerError> {
        let text = std::str::from_utf8(bytes).map_err(|_| AnswerError::NotUtf8)?;
        let object =
            Object::parse(text).map_err(|error| AnswerError::NotJson(error.to_string()))?;
        let choices = object.present("choices").and_then(super::objects);
        match choices {
            Some(choices) if !choices.is_empty() => Ok(Self { object, choices }),
            _ => Err(AnswerError::NoChoices),
        }
    }

    /// Whether every choice can be handed over: each has its parameters, and the ids where it is
    /// not finished.
    pub fn check(&self) -> Result<(), AnswerError> {
        for (position, choice) in self.choices.iter().enumerate() {
            let params = params_of(choice).ok_or(AnswerError::NoParams(position))?;
            if !is_unfinished(choice) {
                continue;
            }
            for id in ["ctx_request_id", DISAGG_REQUEST_ID] {
                let fits = params.present(id).map(coerce::integer);
                if !matches!(fits, Some(Ok(_))) {
                    return Err(AnswerError::NoId(position, id));
                }
            }
        }
        Ok(())
    }

    /// Whether the answer must be continued on a generation instance.
    pub fn needs_generation(&self) -> bool {
        self.choices.first().is_some_and(is_unfinished)
    }

    /// The hand-over of the first choice.
    pub fn disaggregated_params(&self) -> Result<Object<'a>, AnswerError> {
        let first = self.choices.first().and_then(params_of);
        first.ok_or(AnswerError::NoParams(0))
    }

    /// The hand-over's id: the answer's own, else the one that was sent.
    pub fn disagg_request_id(&self, sent: u64) -> Result<Integer, AnswerError> {
        match self.disaggregated_params()?.present(DISAGG_REQUEST_ID) {
            Some(raw) => coerce::integer(raw).map_err(|_| AnswerError::NoId(0, DISAGG_REQUEST_ID)),
            None => Ok(sent.into()),
        }
    }

    /// The hand-over's fields that the generation request must be signed over.
    pub fn kv_transfer(&self) -> Result<KvTransfer<'a>, AnswerError> {
        Ok(KvTransfer::of(&self.disaggregated_params()?)?)
    }

    /// The raw `usage`.
    pub fn usage(&self) -> Option<&'a str> {
        self.object.present("usage")
    }

    /// The raw list of the prompt's ids.
    pub fn prompt_token_ids(&self) -> Option<&'a str> {
        self.object.present("prompt_token_ids")
    }

    /// The raw string of the prompt's ids as base64.
    pub fn prompt_token_ids_b64(&self) -> Option<&'a str> {
        self.object.present(PROMPT_TOKEN_IDS_B64)
    }

    /// The prompt's ids, read, in whichever form they are told.
    pub fn token_ids(&self) -> Option<Vec<u32>> {
        if let Some(list) = self.prompt_token_ids() {
            return serde_json::from_str(list).ok();
        }
        let packed: Cow<'a, str> = match Text::from_json(self.prompt_token_ids_b64()?)? {
            Text::Plain(packed) => packed,
            Text::Wide(_) => return None,
        };
        let bytes = STANDARD.decode(packed.as_bytes()).ok()?;
        let (ids, rest) = bytes.as_chunks::<4>();
        rest.is_empty()
            .then(|| ids.iter().copied().map(u32::from_le_bytes).collect())
    }

    pub(super) fn object(&self) -> &Object<'a> {
        &self.object
    }

    pub(super) fn choices(&self) -> &[Object<'a>] {
        &self.choices
    }
}

const DISAGG_REQUEST_ID: &str = "disagg_request_id";

fn params_of<'a>(choice: &Object<'a>) -> Option<Object<'a>> {
    Object::parse(choice.present("disaggregated_params")?).ok()
}

fn finish_reason<'a>(choice: &Object<'a>) -> Option<Cow<'a, str>> {
    match Text::from_json(choice.present("finish_reason")?)? {
        Text::Plain(reason) => Some(reason),
        Text::Wide(_) => None,
    }
}

/// Only these two reasons leave something to generate.
fn is_unfinished(choice: &Object) -> bool {
    matches!(
        finish_reason(choice).as_deref(),
        Some("length" | "not_finished")
    )
}
