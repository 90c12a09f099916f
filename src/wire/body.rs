//! A client's body: read once, kept byte for byte.
//!
//! A [`BodyView`] borrows the body and knows its top-level members; values stay raw text until
//! someone asks for one. It refuses what two parsers could read differently: repeated members, lone
//! surrogates, invalid UTF-8, nesting beyond what Python can parse. It never repairs a body; changes
//! are spliced in, so that the bytes that were inspected are the bytes that are forwarded.

use std::{borrow::Cow, collections::HashSet};

use serde_json::value::RawValue;

use super::{
    coerce::{self, Unfit},
    conversation,
    object::Object,
    pruning, scan,
};

/// Why a body is answered with 400, in words a person can act on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BodyError {
    /// What is wrong and what to do.
    pub message: String,
    /// The field that is wrong, as the OpenAI error's `param`.
    pub param: Option<String>,
    /// What kind of mistake it is, as the OpenAI error's `code`.
    pub code: &'static str,
}

const INVALID: &str = "invalid_body";

impl BodyError {
    /// An error about the body as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: None,
            code: INVALID,
        }
    }

    /// An error about one field.
    pub fn field(field: &str, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: Some(field.to_owned()),
            code: INVALID,
        }
    }

    pub(super) fn unfit(field: &str, unfit: Unfit) -> Self {
        Self::field(field, format!("'{field}' must be {}", unfit.0))
    }
}

/// A well-formed JSON object body.
#[derive(Debug, Clone)]
pub struct BodyView<'a> {
    object: Object<'a>,
}

impl<'a> BodyView<'a> {
    /// Reads a body; see the module for what is refused.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BodyError> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let at = error.valid_up_to();
            BodyError::whole(format!("The body is not valid UTF-8 at byte {at}"))
        })?;
        let object = Object::parse(text).map_err(|error| {
            BodyError::whole(format!("The body must be one JSON object: {error}"))
        })?;
        if let Some(name) = object.repeated() {
            let message = format!("'{name}' is in the body more than once; send it once");
            return Err(BodyError::field(name, message));
        }
        refuse_nested_repeats(&object)?;
        scan::check_depth(text).map_err(|_| {
            let limit = scan::MAX_DEPTH;
            BodyError::whole(format!("The body is nested deeper than {limit} levels"))
        })?;
        if let Some(at) = scan::lone_surrogate(text) {
            let message = format!("The body has half of a surrogate pair at byte {at}");
            return Err(BodyError::whole(message));
        }
        Ok(Self { object })
    }

    /// The bytes of the body.
    pub fn bytes(&self) -> &'a [u8] {
        self.object.source().as_bytes()
    }

    /// The body's members.
    pub fn object(&self) -> &Object<'a> {
        &self.object
    }

    /// The raw value of a top-level field; `null` is a value.
    pub fn get(&self, field: &str) -> Option<&'a RawValue> {
        self.object.get(field)
    }

    /// The raw text of a top-level field that is neither absent nor `null`.
    pub fn present(&self, field: &str) -> Option<&'a str> {
        self.object.present(field)
    }

    /// A string field; absent and `null` are `None`.
    pub fn string(&self, field: &str) -> Result<Option<Cow<'a, str>>, BodyError> {
        let Some(raw) = self.present(field) else {
            return Ok(None);
        };
        let unfit = || BodyError::field(field, format!("'{field}' must be a string"));
        if !raw.starts_with('"') {
            return Err(unfit());
        }
        match coerce::string(raw) {
            Ok(super::text::Text::Plain(text)) => Ok(Some(text)),
            _ => Err(unfit()),
        }
    }

    /// A boolean field, read as leniently as the workers do; absent and `null` are `None`.
    pub fn boolean(&self, field: &str) -> Result<Option<bool>, BodyError> {
        let value = self.present(field).map(coerce::boolean).transpose();
        value.map_err(|unfit| BodyError::unfit(field, unfit))
    }

    /// The model, which every request must name.
    pub fn model(&self) -> Result<Cow<'a, str>, BodyError> {
        let missing = || BodyError::field("model", "'model' is missing: name the model to use");
        self.string("model")?.ok_or_else(missing)
    }

    /// Whether the client wants the answer as events.
    pub fn stream(&self) -> Result<bool, BodyError> {
        Ok(self.boolean("stream")?.unwrap_or(false))
    }

    /// Whether a streaming client wants a usage chunk; the workers' default where `stream_options`
    /// is given without saying so is yes.
    pub fn include_usage(&self) -> bool {
        let Some(options) = self.present("stream_options") else {
            return false;
        };
        let Ok(options) = Object::parse(options) else {
            return false;
        };
        match options.get("include_usage") {
            Some(raw) => coerce::boolean(raw.get()).unwrap_or(false),
            None => true,
        }
    }

    /// The body with some top-level fields changed; see [`Object::splice`].
    pub fn splice(&self, changes: &[(&str, Option<&str>)]) -> Vec<u8> {
        self.object.splice(changes)
    }
}

/// Refuses members that stand more than once in the groups that both Kindred and a worker read: which
/// one counts would depend on the parser. All copies of the parent's id are a client's to lose.
fn refuse_nested_repeats(object: &Object<'_>) -> Result<(), BodyError> {
    for group in [
        conversation::PARAMS,
        "stream_options",
        pruning::ENGINE_ARGUMENTS,
    ] {
        let members = object
            .present(group)
            .and_then(|raw| Object::parse(raw).ok());
        let Some(members) = members else { continue };
        let mut seen = HashSet::new();
        let mut names = members.members().iter().map(|(name, _)| name.as_ref());
        let repeated = names.find(|name| *name != conversation::PARENT && !seen.insert(*name));
        if let Some(name) = repeated {
            let message = format!("'{group}.{name}' is in the body more than once; send it once");
            return Err(BodyError::field(&format!("{group}.{name}"), message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_twice_within_a_group_is_refused_however_many_there_are() {
        for group in ["stream_options", "vllm_xargs"] {
            let many: String = (0..16_000).map(|at| format!("\"m{at}\":0,")).collect();
            let once = format!("{{\"{group}\":{{{many}\"last\":0}}}}");
            assert!(BodyView::parse(once.as_bytes()).is_ok(), "{group}");
            let twice = format!("{{\"{group}\":{{{many}\"m\\u0030\":0}}}}");
            let param = refusal(twice.as_bytes()).param;
            assert_eq!(param.as_deref(), Some(&*format!("{group}.m0")));
        }
    }

    fn refusal(body: &[u8]) -> BodyError {
        BodyView::parse(body).expect_err("a refusal")
    }

    #[test]
    fn keeps_the_bytes_it_was_given() {
        let body = b" { \"model\": \"m\", \"x\": 1e5, \"y\":\"\\u00e9\" }\n";
        let view = BodyView::parse(body).expect("a body");
        assert_eq!(view.bytes(), body);
        assert_eq!(view.splice(&[]), body);
        assert_eq!(view.get("x").map(RawValue::get), Some("1e5"));
    }

    #[test]
    fn refuses_what_parsers_read_differently() {
        for (body, words) in [
            (
                &b"{\"model\":\"a\",\"mod\\u0065l\":\"b\"}"[..],
                "'model' is in the body more than once",
            ),
            (b"{\"a\":\"\\ud800\"}", "half of a surrogate pair at byte 6"),
            (b"{\"\\ud800\":1}", "must be one JSON object"),
            (b"{\"a\":\"\xff\"}", "not valid UTF-8 at byte 6"),
            (b"\xef\xbb\xbf{}", "must be one JSON object"),
            (b"{}{}", "must be one JSON object"),
            (b"{\"a\":NaN}", "must be one JSON object"),
            (b"{\"a\":\"\n\"}", "must be one JSON object"),
            (b"[]", "must be one JSON object"),
            (b"", "must be one JSON object"),
        ] {
            let message = refusal(body).message;
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(refusal(b"{\"a\":1,\"a\":1}").param.as_deref(), Some("a"));
    }

    #[test]
    fn survives_any_nesting() {
        for depth in [199, 200, 100_000] {
            let body = format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(
                BodyView::parse(body.as_bytes()).is_ok(),
                depth < 200,
                "{depth}"
            );
        }
        let unclosed = format!("{{\"a\":{}", "[{\"a\":".repeat(100_000));
        assert!(BodyView::parse(unclosed.as_bytes()).is_err());
    }

    #[test]
    fn reads_fields_as_leniently_as_the_workers() {
        let body = br#"{"model":"m","stream":"yes","user":5,"nil":null}"#;
        let view = BodyView::parse(body).expect("a body");
        assert_eq!(view.model().as_deref(), Ok("m"));
        assert_eq!(view.stream(), Ok(true));
        assert_eq!(view.boolean("nil"), Ok(None));
        assert_eq!(view.string("nil"), Ok(None));
        let error = view.string("user").expect_err("a number");
        assert_eq!(error.message, "'user' must be a string");
        assert!(view.boolean("model").is_err());
    }

    #[test]
    fn a_request_names_a_model() {
        let view = BodyView::parse(b"{}").expect("a body");
        assert_eq!(
            view.model().map_err(|e| e.param),
            Err(Some("model".to_owned()))
        );
    }

    #[test]
    fn usage_is_asked_for_as_workers_understand_it() {
        for (options, wanted) in [
            ("null", false),
            ("{}", true),
            ("{\"include_usage\":true}", true),
            ("{\"include_usage\":false}", false),
            ("{\"include_usage\":null}", false),
            ("7", false),
        ] {
            let body = format!("{{\"stream_options\":{options}}}");
            let view = BodyView::parse(body.as_bytes()).expect("a body");
            assert_eq!(view.include_usage(), wanted, "{options}");
        }
        assert!(!BodyView::parse(b"{}").expect("a body").include_usage());
    }
}
