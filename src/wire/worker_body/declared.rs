//! What the request models of the 1.4 line declare, and of which types.
//!
//! The tables are specification sections 4.4 and 6.4. They say what a worker refuses as a whole; of
//! the many top-level fields only the names are checked, since none but the model is signed.

use serde_json::value::RawValue;

use super::{
    super::{body::BodyError, coerce, object::Object},
    PARAMS,
};

/// Checks the types of every declared member of `disaggregated_params`.
pub(super) fn check_params(params: &Object) -> Result<(), BodyError> {
    for (name, kind) in DISAGG_FIELDS {
        let Some(raw) = params.get(name) else {
            continue;
        };
        kind.check(raw.get()).map_err(|expected| {
            let field = format!("{PARAMS}.{name}");
            let message = format!("'{field}' must be {expected}");
            BodyError::field(&field, message)
        })?;
    }
    Ok(())
}

/// Checks that there are messages or a prompt.
pub(super) fn check_input(body: &Object) -> Result<(), BodyError> {
    if let Some(messages) = body.get("messages") {
        let fits = messages.get().starts_with('[');
        let unfit = || BodyError::field("messages", "'messages' must be a list");
        return fits.then_some(()).ok_or_else(unfit);
    }
    let missing = || BodyError::whole("The body needs 'messages' or 'prompt'");
    let prompt = body.get("prompt").ok_or_else(missing)?.get();
    let fits = prompt.starts_with('"')
        || elements(prompt).is_some_and(|items| {
            let all = |fits: fn(&str) -> bool| items.iter().all(|item| fits(item.get()));
            all(is_integer) || all(|item| item.starts_with('"')) || all(are_integers)
        });
    let unfit = || BodyError::field("prompt", "'prompt' must be texts or token ids");
    fits.then_some(()).ok_or_else(unfit)
}

/// Checks that every name is declared.
pub(super) fn check_names(body: &Object, params: Option<&Object>) -> Result<(), BodyError> {
    let known = match body.get("messages") {
        Some(_) => CHAT_FIELDS,
        None => COMPLETION_FIELDS,
    };
    check_table("", body, |name| {
        known.contains(&name) || SHARED_FIELDS.contains(&name)
    })?;
    let Some(params) = params else {
        return Ok(());
    };
    let declared = |name: &str| DISAGG_FIELDS.iter().any(|(own, _)| *own == name);
    check_table("disaggregated_params.", params, declared)?;
    match params.present("ctx_usage").map(Object::parse) {
        Some(Ok(usage)) => check_usage(&usage),
        _ => Ok(()),
    }
}

fn check_usage(usage: &Object) -> Result<(), BodyError> {
    const PREFIX: &str = "disaggregated_params.ctx_usage.";
    check_table(PREFIX, usage, |name| USAGE_FIELDS.contains(&name))?;
    for (name, value) in usage.members() {
        let raw = value.get();
        let fits = match name.as_ref() {
            "prompt_tokens_details" => raw == "null" || raw.starts_with('{'),
            "completion_tokens" => raw == "null" || is_integer(raw),
            _ => is_integer(raw),
        };
        if !fits {
            let field = format!("{PREFIX}{name}");
            return Err(BodyError::field(
                &field,
                format!("'{field}' has a wrong type"),
            ));
        }
    }
    Ok(())
}

fn check_table(
    prefix: &str,
    object: &Object,
    declared: impl Fn(&str) -> bool,
) -> Result<(), BodyError> {
    let mut names = object.members().iter().map(|(name, _)| name.as_ref());
    match names.find(|name| !declared(name)) {
        Some(name) => {
            let field = format!("{prefix}{name}");
            let message = format!("'{field}' is not a field of this request");
            Err(BodyError::field(&field, message))
        }
        None => Ok(()),
    }
}

fn is_integer(raw: &str) -> bool {
    coerce::integer(raw).is_ok()
}

fn are_integers(raw: &str) -> bool {
    elements(raw).is_some_and(|items| items.iter().all(|item| is_integer(item.get())))
}

/// The type of a declared field; all but `Boolean` may be `null`.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Integers,
    List,
    Boolean,
    MaybeBoolean,
    Style,
    Usage,
}

impl Kind {
    fn check(self, raw: &str) -> Result<(), &'static str> {
        let optional = !matches!(self, Self::Boolean);
        if optional && raw == "null" {
            return Ok(());
        }
        let fits = match self {
            Self::Text => return coerce::string(raw).map(drop).map_err(|unfit| unfit.0),
            Self::Integer => return coerce::integer(raw).map(drop).map_err(|unfit| unfit.0),
            Self::Boolean | Self::MaybeBoolean => {
                return coerce::boolean(raw).map(drop).map_err(|unfit| unfit.0);
            }
            Self::Integers => are_integers(raw),
            Self::List => elements(raw).is_some(),
            Self::Style => {
                coerce::integer(raw).is_ok_and(|style| matches!(style.as_u64(), Some(0 | 1)))
            }
            Self::Usage => raw.starts_with('{'),
        };
        match (fits, self) {
            (true, _) => Ok(()),
            (false, Self::Integers) => Err("a list of whole numbers"),
            (false, Self::Style) => Err("0 or 1"),
            (false, Self::Usage) => Err("an object"),
            (false, _) => Err("a list"),
        }
    }
}

fn elements(raw: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw).ok()
}

/// The `disaggregated_params` of the 1.4 line (specification section 4.4).
const DISAGG_FIELDS: [(&str, Kind); 14] = [
    ("request_type", Kind::Text),
    ("first_gen_tokens", Kind::Integers),
    ("first_gen_log_probs", Kind::List),
    ("first_gen_logits", Kind::List),
    ("ctx_request_id", Kind::Integer),
    ("encoded_opaque_state", Kind::Text),
    ("draft_tokens", Kind::Integers),
    ("disagg_request_id", Kind::Integer),
    ("ctx_dp_rank", Kind::Integer),
    ("ctx_info_endpoint", Kind::Text),
    ("schedule_style", Kind::Style),
    ("ctx_usage", Kind::Usage),
    ("return_prompt_token_ids_b64", Kind::Boolean),
    ("resolved_thinking", Kind::MaybeBoolean),
];

/// Fields of both request kinds (specification section 6.4).
const SHARED_FIELDS: &[&str] = &[
    "model",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
    "thinking_token_budget",
    "prompt_ignore_length",
    "best_of",
    "use_beam_search",
    "top_k",
    "top_p_min",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "early_stopping",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "lora_request",
    "echo",
    "add_special_tokens",
    "disaggregated_params",
    "conversation_params",
    "priority",
];

const CHAT_FIELDS: &[&str] = &[
    "messages",
    "prompt_token_ids",
    "prompt_token_ids_b64",
    "top_logprobs",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "thinking",
    "add_generation_prompt",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "injected_chat_template_kwargs",
    "media_io_kwargs",
    "cache_salt",
    "agent_hierarchy",
    "mm_processor_kwargs",
];

const COMPLETION_FIELDS: &[&str] = &["prompt", "return_context_logits", "detokenize"];

const USAGE_FIELDS: [&str; 4] = [
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
];
