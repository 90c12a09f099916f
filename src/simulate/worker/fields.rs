//! Which body fields upstream's request models know, and of which type.
//!
//! Upstream forbids extra fields in every model, so an unknown one is a 400 (specification sections
//! 4.3, 4.4 and 6.4). It must not be more lenient than that: a field that the edge lets through by
//! mistake has to fail here.

use serde_json::{Map, Value};

/// The JSON types that a field may have. Null is allowed unless the field is [`Field::required`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Int,
    Number,
    List,
    Object,
    TextOrList,
    TextOrObject,
    BoolOrText,
    Any,
}

impl Kind {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Bool => value.is_boolean(),
            Self::Int => is_integer(value),
            Self::Number => value.is_number(),
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
            Self::TextOrList => value.is_string() || value.is_array(),
            Self::TextOrObject => value.is_string() || value.is_object(),
            Self::BoolOrText => value.is_boolean() || value.is_string(),
            Self::Any => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Number => "float",
            Self::List => "list",
            Self::Object => "dict",
            Self::TextOrList => "string or list",
            Self::TextOrObject => "string or dict",
            Self::BoolOrText => "bool or string",
            Self::Any => "any",
        }
    }
}

/// As upstream's validator: also `5.0` is an integer.
fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// One field of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    name: &'static str,
    kind: Kind,
    /// Has to be there; null is refused.
    required: bool,
}

impl Field {
    /// The field's name.
    pub(super) fn name(self) -> &'static str {
        self.name
    }
}

const fn may(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        required: false,
    }
}

const fn must(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        required: true,
    }
}

/// Fields of both endpoints.
pub(super) const COMMON: &[Field] = &[
    must("model", Kind::Text),
    may("agent_hierarchy", Kind::Any),
    may("add_special_tokens", Kind::Bool),
    may("best_of", Kind::Int),
    may("cache_salt", Kind::Text),
    may("conversation_params", Kind::Object),
    may("disaggregated_params", Kind::Object),
    may("early_stopping", Kind::Any),
    may("echo", Kind::Bool),
    may("frequency_penalty", Kind::Number),
    may("ignore_eos", Kind::Bool),
    may("include_stop_str_in_output", Kind::Bool),
    may("length_penalty", Kind::Number),
    may("logit_bias", Kind::Object),
    may("lora_request", Kind::Object),
    may("max_tokens", Kind::Int),
    may("metadata", Kind::Object),
    may("min_p", Kind::Number),
    may("min_tokens", Kind::Int),
    may("n", Kind::Int),
    may("presence_penalty", Kind::Number),
    may("priority", Kind::Number),
    may("prompt_ignore_length", Kind::Int),
    may("repetition_penalty", Kind::Number),
    may("response_format", Kind::Object),
    may("seed", Kind::Int),
    may("service_tier", Kind::Text),
    may("skip_special_tokens", Kind::Bool),
    may("spaces_between_special_tokens", Kind::Bool),
    may("stop", Kind::TextOrList),
    may("stop_token_ids", Kind::List),
    may("store", Kind::Bool),
    may("stream", Kind::Bool),
    may("stream_options", Kind::Object),
    may("temperature", Kind::Number),
    may("top_k", Kind::Int),
    may("top_p", Kind::Number),
    may("top_p_min", Kind::Number),
    may("truncate_prompt_tokens", Kind::Int),
    may("use_beam_search", Kind::Bool),
    may("user", Kind::Text),
];

/// Further fields of `/v1/chat/completions`.
pub(super) const CHAT: &[Field] = &[
    must("messages", Kind::List),
    may("add_generation_prompt", Kind::Bool),
    may("audio", Kind::Object),
    may("chat_template", Kind::Text),
    may("chat_template_kwargs", Kind::Object),
    may("documents", Kind::List),
    may("function_call", Kind::TextOrObject),
    may("functions", Kind::List),
    may("logprobs", Kind::Bool),
    may("max_completion_tokens", Kind::Int),
    may("media_io_kwargs", Kind::Object),
    may("mm_processor_kwargs", Kind::Object),
    may("modalities", Kind::List),
    may("parallel_tool_calls", Kind::Bool),
    may("prediction", Kind::Object),
    may("prompt_token_ids", Kind::List),
    may("prompt_token_ids_b64", Kind::Text),
    may("reasoning_effort", Kind::Text),
    may("thinking", Kind::Any),
    may("thinking_token_budget", Kind::Int),
    may("tool_choice", Kind::TextOrObject),
    may("tools", Kind::List),
    may("top_logprobs", Kind::Int),
];

/// Further fields of `/v1/completions`.
pub(super) const COMPLETIONS: &[Field] = &[
    must("prompt", Kind::TextOrList),
    may("detokenize", Kind::Bool),
    may("logprobs", Kind::Int),
    may("return_context_logits", Kind::Bool),
    may("suffix", Kind::Text),
];

/// Fields of `disaggregated_params` (specification section 4.4).
pub(super) const DISAGGREGATED: &[Field] = &[
    must("request_type", Kind::Text),
    may("first_gen_tokens", Kind::List),
    may("first_gen_log_probs", Kind::List),
    may("first_gen_logits", Kind::List),
    may("ctx_request_id", Kind::Int),
    may("encoded_opaque_state", Kind::Text),
    may("draft_tokens", Kind::List),
    may("disagg_request_id", Kind::Int),
    may("ctx_dp_rank", Kind::Int),
    may("ctx_info_endpoint", Kind::Text),
    may("schedule_style", Kind::Any),
    may("ctx_usage", Kind::Object),
    may("return_prompt_token_ids_b64", Kind::Bool),
    may("resolved_thinking", Kind::BoolOrText),
];

/// Fields of `ctx_usage`.
pub(super) const USAGE: &[Field] = &[
    must("prompt_tokens", Kind::Int),
    may("total_tokens", Kind::Int),
    may("completion_tokens", Kind::Int),
    may("prompt_tokens_details", Kind::Object),
];

/// Fields of `conversation_params`.
pub(super) const CONVERSATION: &[Field] = &[must("conversation_id", Kind::Text)];

/// Fields of `stream_options`.
pub(super) const STREAM_OPTIONS: &[Field] = &[
    may("include_usage", Kind::Bool),
    may("continuous_usage_stats", Kind::Bool),
];

/// Checks an object against the fields of a model, given in parts. `place` is where the object is in
/// the body.
///
/// # Errors
/// The validator's complaint about the first field that is wrong, in upstream's form.
pub(super) fn check(
    place: &[&str],
    object: &Map<String, Value>,
    model: &[&[Field]],
) -> Result<(), String> {
    let fields = || model.iter().copied().flatten();
    for (name, value) in object {
        let Some(field) = fields().find(|field| field.name == name) else {
            let message = "Extra inputs are not permitted";
            return Err(complaint("extra_forbidden", place, name, message));
        };
        let null = value.is_null() && !field.required;
        if !null && !field.kind.accepts(value) {
            let wanted = field.kind.name();
            let message = format!("Input should be a valid {wanted}");
            return Err(complaint(&format!("{wanted}_type"), place, name, &message));
        }
    }
    match fields().find(|field| field.required && !object.contains_key(field.name)) {
        Some(missing) => Err(complaint("missing", place, missing.name, "Field required")),
        None => Ok(()),
    }
}

/// One complaint of upstream's validator.
pub(super) fn complaint(kind: &str, place: &[&str], name: &str, message: &str) -> String {
    let location: Vec<String> = ["body"]
        .iter()
        .chain(place)
        .chain([&name])
        .map(|part| format!("'{part}'"))
        .collect();
    let location = location.join(", ");
    format!("[{{'type': '{kind}', 'loc': ({location}), 'msg': '{message}'}}]")
}
