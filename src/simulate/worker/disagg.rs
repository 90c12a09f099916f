//! The strict reading of `disaggregated_params`.
//!
//! It takes what specification section 4.4 lists and refuses everything else, in particular fields
//! that only other versions know and ids outside the range that two workers can share.

use serde_json::{Map, Value};

use super::fields::{DISAGGREGATED, USAGE, check, complaint};

/// Smallest `disagg_request_id`: below are the ids that a worker gives itself (specification
/// section 4.7).
pub const SMALLEST_ID: u64 = 1 << 40;

/// One past the largest `disagg_request_id`.
pub const END_OF_IDS: u64 = 1 << 63;

const PLACE: &[&str] = &["disaggregated_params"];

/// Which part of a request a worker is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestType {
    ContextOnly,
    GenerationOnly,
    ContextAndGeneration,
}

impl RequestType {
    /// The value on the wire.
    pub fn as_wire(self) -> &'static str {
        match self {
            Self::ContextOnly => "context_only",
            Self::GenerationOnly => "generation_only",
            Self::ContextAndGeneration => "context_and_generation",
        }
    }
}

/// What the context worker counted, passed on by the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextUsage {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
}

/// A valid `disaggregated_params`.
#[derive(Debug, Clone, PartialEq)]
pub struct DisaggregatedParams {
    pub request_type: RequestType,
    /// First token of each choice, which the generation worker replays.
    pub first_gen_tokens: Option<Vec<u32>>,
    pub ctx_request_id: Option<u64>,
    pub disagg_request_id: Option<u64>,
    pub encoded_opaque_state: Option<String>,
    /// Where the context worker's caches are asked for.
    pub ctx_info_endpoint: Option<String>,
    /// 1: the generation request comes before its context answer is there.
    pub generation_first: bool,
    pub ctx_usage: Option<ContextUsage>,
    pub return_prompt_token_ids_b64: bool,
    /// The object as it came.
    pub raw: Map<String, Value>,
}

impl DisaggregatedParams {
    /// Reads the object.
    ///
    /// # Errors
    /// The validator's complaint, in upstream's form.
    pub fn read(object: &Map<String, Value>) -> Result<Self, String> {
        check(PLACE, object, &[DISAGGREGATED])?;
        Ok(Self {
            request_type: request_type(object)?,
            first_gen_tokens: tokens(object, "first_gen_tokens")?,
            ctx_request_id: number(object, "ctx_request_id"),
            disagg_request_id: shared_id(object)?,
            encoded_opaque_state: text(object, "encoded_opaque_state"),
            ctx_info_endpoint: text(object, "ctx_info_endpoint"),
            generation_first: schedule_style(object)? == 1,
            ctx_usage: usage(object)?,
            return_prompt_token_ids_b64: object
                .get("return_prompt_token_ids_b64")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            raw: object.clone(),
        })
    }
}

fn request_type(object: &Map<String, Value>) -> Result<RequestType, String> {
    use RequestType::{ContextAndGeneration, ContextOnly, GenerationOnly};
    let given = object.get("request_type").and_then(Value::as_str);
    [ContextOnly, GenerationOnly, ContextAndGeneration]
        .into_iter()
        .find(|known| Some(known.as_wire()) == given)
        .ok_or_else(|| {
            complaint(
                "value_error",
                PLACE,
                "request_type",
                "Unknown request type, must be context_only, generation_only or \
                 context_and_generation",
            )
        })
}

/// An integer enum; its value as text is accepted too, its name is not (specification section 4.3).
fn schedule_style(object: &Map<String, Value>) -> Result<u8, String> {
    match object.get("schedule_style") {
        None | Some(Value::Null) => Ok(0),
        Some(Value::String(text)) if text == "0" => Ok(0),
        Some(Value::String(text)) if text == "1" => Ok(1),
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        Some(value) if value.as_u64() == Some(1) => Ok(1),
        Some(_) => Err(complaint(
            "enum",
            PLACE,
            "schedule_style",
            "Input should be 0 or 1",
        )),
    }
}

fn shared_id(object: &Map<String, Value>) -> Result<Option<u64>, String> {
    let Some(value) = object.get("disagg_request_id").filter(|id| !id.is_null()) else {
        return Ok(None);
    };
    match value.as_u64() {
        Some(id) if (SMALLEST_ID..END_OF_IDS).contains(&id) => Ok(Some(id)),
        _ => Err(complaint(
            "value_error",
            PLACE,
            "disagg_request_id",
            "Input should be at least 2^40 and less than 2^63",
        )),
    }
}

fn usage(object: &Map<String, Value>) -> Result<Option<ContextUsage>, String> {
    let Some(usage) = object.get("ctx_usage").and_then(Value::as_object) else {
        return Ok(None);
    };
    check(&["disaggregated_params", "ctx_usage"], usage, &[USAGE])?;
    let details = usage
        .get("prompt_tokens_details")
        .and_then(Value::as_object);
    Ok(Some(ContextUsage {
        prompt_tokens: number(usage, "prompt_tokens").unwrap_or_default(),
        cached_tokens: details
            .and_then(|details| number(details, "cached_tokens"))
            .unwrap_or_default(),
    }))
}

/// A list of token ids; null or absent is none.
pub(super) fn tokens(
    object: &Map<String, Value>,
    name: &'static str,
) -> Result<Option<Vec<u32>>, String> {
    let Some(list) = object.get(name).and_then(Value::as_array) else {
        return Ok(None);
    };
    token_list(list)
        .map(Some)
        .ok_or_else(|| complaint("int_type", &[], name, "Input should be a list of token ids"))
}

/// The ids of a list, if they all are ids.
pub(super) fn token_list(list: &[Value]) -> Option<Vec<u32>> {
    list.iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}

fn number(object: &Map<String, Value>, name: &str) -> Option<u64> {
    object.get(name).and_then(Value::as_u64)
}

fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut value: Value) -> Result<DisaggregatedParams, String> {
        let object = value.as_object_mut().expect("an object");
        object
            .entry("request_type")
            .or_insert_with(|| json!("context_only"));
        DisaggregatedParams::read(object)
    }

    #[test]
    fn what_an_edge_sends_is_read() {
        let params = read(json!({
            "request_type": "generation_only",
            "disagg_request_id": SMALLEST_ID,
            "first_gen_tokens": [7],
            "schedule_style": 0,
            "ctx_dp_rank": null,
            "ctx_usage": {"prompt_tokens": 9, "total_tokens": 10, "completion_tokens": 1,
                          "prompt_tokens_details": {"cached_tokens": 4}},
        }))
        .expect("valid");
        assert_eq!(params.request_type, RequestType::GenerationOnly);
        assert_eq!(params.first_gen_tokens, Some(vec![7]));
        let usage = params.ctx_usage.expect("given");
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (9, 4));
    }

    #[test]
    fn what_upstream_refuses_is_refused() {
        for wrong in [
            json!({"conversation_id": "c"}),
            json!({"request_type": "prefill"}),
            json!({"request_type": null}),
            json!({"schedule_style": "context_first"}),
            json!({"schedule_style": 2}),
            json!({"disagg_request_id": 42}),
            json!({"disagg_request_id": END_OF_IDS}),
            json!({"disagg_request_id": "1099511627776"}),
            json!({"ctx_info_endpoint": ["tcp://h:1"]}),
            json!({"first_gen_tokens": ["a"]}),
            json!({"ctx_usage": {"prompt_tokens": 1, "cost": 2}}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_spellings_of_a_schedule_style_are_read() {
        for (style, generation_first) in [
            (json!(0), false),
            (json!("0"), false),
            (json!(null), false),
            (json!(1), true),
            (json!("1"), true),
        ] {
            let params = read(json!({"schedule_style": style})).expect("valid");
            assert_eq!(params.generation_first, generation_first);
        }
    }
}
