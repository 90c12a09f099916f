//! What a worker's request parser makes of a body.
//!
//! A worker signs and trusts what its parser reads, not the bytes: the last of repeated members,
//! coerced numbers, stripped ids. A [`WorkerBody`] is that reading, for the worker filter and for the
//! expected values of `wire_body`. It refuses what makes a signature's inputs unreadable; fields that
//! are unknown here it refuses only when asked, since workers of other versions may know them.

pub mod decided;
mod declared;

use super::{
    body::{BodyError, BodyView},
    coerce, conversation,
    object::Object,
    scan,
    signature::KvTransfer,
    text::Text,
    verify::SignedFacts,
};

/// A body as a worker reads it.
#[derive(Debug, Clone)]
pub struct WorkerBody<'a> {
    /// What an affinity signature covers.
    pub facts: SignedFacts<'a>,
    /// What the KV transfer signature covers.
    pub transfer: KvTransfer<'a>,
    body: Object<'a>,
    params: Option<Object<'a>>,
}

impl<'a> WorkerBody<'a> {
    /// Reads a body as leniently as a worker: repeated members and lone surrogates are allowed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| BodyError::whole("The body is not valid UTF-8"))?;
        scan::check_depth(text).map_err(|_| BodyError::whole("The body is nested too deeply"))?;
        let object = Object::parse(text).map_err(|error| {
            BodyError::whole(format!("The body must be a JSON object: {error}"))
        })?;
        Self::of(&object)
    }

    /// The worker's reading of a body that Kindred has parsed already.
    pub fn of_view(body: &BodyView<'a>) -> Result<Self, BodyError> {
        Self::of(body.object())
    }

    fn of(body: &Object<'a>) -> Result<Self, BodyError> {
        let mut facts = SignedFacts {
            model: required_string(body, "model", "model")?,
            conversation_id: None,
            request_type: None,
            disagg_request_id: None,
        };
        if let Some(raw) = body.present(conversation::PARAMS) {
            facts.conversation_id = Some(conversation::from_params(raw)?);
        }
        let mut transfer = KvTransfer::default();
        let params =
            match body.present(PARAMS) {
                Some(raw) => Some(Object::parse(raw).map_err(|_| {
                    BodyError::field(PARAMS, format!("'{PARAMS}' must be an object"))
                })?),
                None => None,
            };
        if let Some(params) = &params {
            facts.request_type = Some(required_string(params, "request_type", REQUEST_TYPE)?);
            declared::check_params(params)?;
            let id = params.present("disagg_request_id");
            facts.disagg_request_id = id.and_then(|raw| coerce::integer(raw).ok());
            transfer = KvTransfer::of(params)
                .map_err(|error| BodyError::field(PARAMS, error.to_string()))?;
        }
        Ok(Self {
            facts,
            transfer,
            body: body.clone(),
            params,
        })
    }

    /// Whether there are `disaggregated_params`.
    pub fn has_disagg_params(&self) -> bool {
        self.params.is_some()
    }

    /// Refuses what a worker of the 1.4 line refuses beside: no prompt, or fields that it does not
    /// declare. Workers of other lines may take them, so a filter leaves this to the worker.
    pub fn check_declared(&self) -> Result<(), BodyError> {
        declared::check_input(&self.body)?;
        declared::check_names(&self.body, self.params.as_ref())
    }
}

/// Whether no reader of any kind finds `disaggregated_params` in a body, so that nothing in it can
/// be what a signature protects. A body that cannot be read here must not even hold the name, or a
/// way to write it: Python reads UTF-16 and `NaN`, for example.
pub fn is_surely_ordinary(bytes: &[u8]) -> bool {
    let object = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| Object::parse(text).ok());
    match object {
        Some(object) => {
            let mut members = object.members().iter();
            members.all(|(name, value)| name != PARAMS || value.get() == "null")
        }
        None => {
            let holds = |text: &[u8]| memchr::memmem::find(bytes, text).is_some();
            ![PARAMS.as_bytes(), b"\\u", b"\0"].into_iter().any(holds)
        }
    }
}

const PARAMS: &str = "disaggregated_params";
const REQUEST_TYPE: &str = "disaggregated_params.request_type";

fn required_string<'a>(
    object: &Object<'a>,
    name: &str,
    field: &str,
) -> Result<Text<'a>, BodyError> {
    let Some(raw) = object.get(name) else {
        return Err(BodyError::field(field, format!("'{field}' is missing")));
    };
    coerce::string(raw.get()).map_err(|unfit| BodyError::unfit(field, unfit))
}

#[cfg(test)]
mod tests;
