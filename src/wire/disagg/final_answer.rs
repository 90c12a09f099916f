//! Answers as clients get them.
//!
//! Workers print the hand-over and the prompt's ids into their answers; clients never see them
//! (specification section 3.2). Where the context instance finished the answer by itself there is no
//! generation leg, and a streaming client gets the finished answer as the events it would have had.

use std::borrow::Cow;

use super::super::{object::Object, pruning::PROMPT_TOKEN_IDS_B64};
use super::{ContextAnswer, Endpoint, objects};

const CHOICES: &str = "choices";
/// The fleet's own fields of an answer.
const OWN_FIELDS: [&str; 2] = ["prompt_token_ids", PROMPT_TOKEN_IDS_B64];
/// The fleet's own fields of a choice.
const OWN_IN_CHOICES: [&str; 3] = [
    "disaggregated_params",
    "prompt_token_ids",
    PROMPT_TOKEN_IDS_B64,
];

type Change<'a> = (&'a str, Option<&'a str>);

/// A worker's JSON answer as a client gets it: without the fields that are the fleet's own, unless
/// `keep` says that it gets those too. Every other byte stays. `None` for a body of which nobody can
/// say what it holds: no JSON object, or one without one list of choices that are objects.
pub fn client_answer(body: &[u8], keep: bool) -> Option<Cow<'_, [u8]>> {
    let answer = Object::parse(std::str::from_utf8(body).ok()?).ok()?;
    if keep {
        return Some(Cow::Borrowed(body));
    }
    let mut changes: Vec<Change> = OWN_FIELDS.map(|name| (name, None)).to_vec();
    let choices = one_list_of_choices(&answer)?.map(|(raw, choices)| {
        let own = choices
            .iter()
            .any(|choice| has_any(choice, &OWN_IN_CHOICES));
        own.then(|| stripped_choices(raw, &choices))
    });
    let choices = choices.flatten();
    if choices.is_none() && !has_any(&answer, &OWN_FIELDS) {
        return Some(Cow::Borrowed(body));
    }
    changes.extend(choices.as_deref().map(|choices| (CHOICES, Some(choices))));
    Some(Cow::Owned(answer.splice(&changes)))
}

/// The choices and their raw list, if there are any; `None` where they are not one list of objects.
fn one_list_of_choices<'a>(answer: &Object<'a>) -> Option<Option<(&'a str, Vec<Object<'a>>)>> {
    let members = answer.members().iter();
    if members.filter(|(name, _)| name == CHOICES).count() > 1 {
        return None;
    }
    match answer.present(CHOICES) {
        Some(raw) => Some(Some((raw, objects(raw)?))),
        None => Some(None),
    }
}

fn has_any(object: &Object, names: &[&str]) -> bool {
    names.iter().any(|name| object.get(name).is_some())
}

/// The list of choices without the fleet's own fields; what is between them stays.
fn stripped_choices(raw: &str, choices: &[Object]) -> String {
    let own = OWN_IN_CHOICES.map(|name| (name, None));
    let mut rest = raw;
    let mut out = String::with_capacity(raw.len());
    for choice in choices {
        let (between, from) = rest.split_once(choice.source()).unwrap_or((rest, ""));
        out.push_str(between);
        out.push_str(&String::from_utf8_lossy(&choice.splice(&own)));
        rest = from;
    }
    out.push_str(rest);
    out
}

/// The answer for a client that waits for one JSON body, where generation is skipped; `keep` as for
/// [`client_answer`], and `None` where that gives none.
pub fn final_answer(answer: &ContextAnswer, keep: bool) -> Option<Vec<u8>> {
    let told = client_answer(answer.object().source().as_bytes(), keep);
    told.map(Cow::into_owned)
}

/// The answer as server-sent events for a streaming client, where generation is skipped.
///
/// For each choice: the role (chat), the content and tool calls, the finish reason; then the usage
/// where it is asked for, and `[DONE]`.
pub fn final_events(answer: &ContextAnswer, endpoint: Endpoint, include_usage: bool) -> Vec<u8> {
    let mut events = Events::new(answer, endpoint, include_usage);
    for (position, choice) in answer.choices().iter().enumerate() {
        let position = position.to_string();
        let index = choice.present("index").unwrap_or(&position);
        match endpoint {
            Endpoint::ChatCompletions => events.chat_choice(index, choice),
            Endpoint::Completions => events.completion_choice(index, choice),
        }
    }
    events.finish(answer.usage().filter(|_| include_usage))
}

/// Writes chunks that share the answer's id, time and model.
struct Events {
    out: Vec<u8>,
    /// Everything of a chunk before its choices.
    head: String,
    /// What every chunk but the usage chunk says about usage.
    tail: &'static str,
}

impl Events {
    fn new(answer: &ContextAnswer, endpoint: Endpoint, include_usage: bool) -> Self {
        let object = answer.object();
        let (kind, id) = match endpoint {
            Endpoint::ChatCompletions => ("chat.completion.chunk", "\"chatcmpl-context\""),
            Endpoint::Completions => ("text_completion", "\"cmpl-context\""),
        };
        let mut head = format!(
            r#"{{"id":{},"object":"{kind}","created":{},"model":{}"#,
            object.present("id").unwrap_or(id),
            object.present("created").unwrap_or("0"),
            object.present("model").unwrap_or("\"\""),
        );
        if let Some(fingerprint) = object.present("system_fingerprint") {
            head.push_str(&format!(r#","system_fingerprint":{fingerprint}"#));
        }
        Self {
            out: Vec::with_capacity(object.source().len().min(64 * 1024) + 1024),
            head,
            tail: if include_usage {
                r#","usage":null"#
            } else {
                ""
            },
        }
    }

    fn chat_choice(&mut self, index: &str, choice: &Object) {
        let message = choice
            .present("message")
            .and_then(|raw| Object::parse(raw).ok());
        let member = |name: &str| message.as_ref().and_then(|message| message.present(name));
        let role = member("role").unwrap_or("\"assistant\"");
        self.delta(index, &format!(r#""role":{role},"content":"""#), "null", "");
        let spoken: Vec<String> = ["content", "refusal", "reasoning_content", "reasoning"]
            .into_iter()
            .filter_map(|name| Some((name, member(name).filter(|raw| *raw != "\"\"")?)))
            .map(|(name, raw)| format!("\"{name}\":{raw}"))
            .collect();
        let logprobs = match choice.present("logprobs") {
            Some(raw) => format!(r#","logprobs":{raw}"#),
            None => String::new(),
        };
        if !spoken.is_empty() || !logprobs.is_empty() {
            self.delta(index, &spoken.join(","), "null", &logprobs);
        }
        let calls = member("tool_calls").and_then(objects).unwrap_or_default();
        for (position, call) in calls.iter().enumerate() {
            let position = position.to_string();
            let number = call.present("index").unwrap_or(&position);
            let call = call.splice(&[("index", Some(number))]);
            let call = String::from_utf8_lossy(&call);
            self.delta(index, &format!(r#""tool_calls":[{call}]"#), "null", "");
        }
        self.delta(index, "", finish_reason(choice), &stop_reason(choice));
    }

    fn delta(&mut self, index: &str, delta: &str, finish_reason: &str, more: &str) {
        self.chunk(&format!(
            r#"{{"index":{index},"delta":{{{delta}}},"finish_reason":{finish_reason}{more}}}"#
        ));
    }

    fn completion_choice(&mut self, index: &str, choice: &Object) {
        let text = choice.present("text").unwrap_or("\"\"");
        let logprobs = choice.present("logprobs").unwrap_or("null");
        let (reason, stop) = (finish_reason(choice), stop_reason(choice));
        self.chunk(&format!(
            r#"{{"index":{index},"text":{text},"logprobs":{logprobs},"finish_reason":{reason}{stop}}}"#
        ));
    }

    fn chunk(&mut self, choice: &str) {
        let text = format!(r#"{},"choices":[{choice}]{}}}"#, self.head, self.tail);
        self.event(&text);
    }

    /// One event. Line breaks can only be white space between JSON tokens, and would end the event.
    fn event(&mut self, data: &str) {
        self.out.extend_from_slice(b"data: ");
        let line = data.bytes().map(|byte| match byte {
            b'\n' | b'\r' => b' ',
            other => other,
        });
        self.out.extend(line);
        self.out.extend_from_slice(b"\n\n");
    }

    fn finish(mut self, usage: Option<&str>) -> Vec<u8> {
        if let Some(usage) = usage {
            let text = format!(r#"{},"choices":[],"usage":{usage}}}"#, self.head);
            self.event(&text);
        }
        self.event("[DONE]");
        self.out
    }
}

fn finish_reason<'a>(choice: &Object<'a>) -> &'a str {
    choice.present("finish_reason").unwrap_or("\"stop\"")
}

fn stop_reason(choice: &Object) -> String {
    match choice.present("stop_reason") {
        Some(raw) => format!(r#","stop_reason":{raw}"#),
        None => String::new(),
    }
}
