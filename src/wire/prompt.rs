//! What a request asks, seen by routing.
//!
//! Decides how much a prompt weighs and of which units its prefix is made, by upstream's rules
//! (specification section 2.3, steps 4 and 5), from the raw JSON of a body. Weighing reads the JSON
//! once and copies nothing that is large; units are made only when they are asked for. It never
//! judges a prompt: one that the worker will refuse still gets a weight.

use std::{borrow::Cow, fmt, sync::OnceLock};

use serde::de::{self, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{body::BodyView, python, text::Text};

mod opening;
mod text;

/// Characters that upstream counts as one token.
pub const CHARACTERS_PER_TOKEN: u64 = 5;

/// The part of a request's body that routing looks at, still in JSON.
#[derive(Debug, Clone, Default)]
pub struct Prompt<'a> {
    form: Form<'a>,
    cache_salt: Option<&'a RawValue>,
    /// Counted once: both legs ask.
    characters: OnceLock<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Form<'a> {
    #[default]
    Nothing,
    Chat {
        messages: &'a RawValue,
        token_ids: Option<&'a RawValue>,
    },
    Completion {
        prompt: &'a RawValue,
    },
}

/// What a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    Chat,
    Completion,
}

impl<'a> From<Form<'a>> for Prompt<'a> {
    fn from(form: Form<'a>) -> Self {
        Self {
            form,
            ..Self::default()
        }
    }
}

/// What the blocks of a prompt's prefix are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Units {
    /// Token ids that the request carries, of its first sequence.
    Tokens(Vec<u32>),
    /// Unicode code points of the prompt's text.
    CodePoints(Vec<u32>),
}

impl<'a> Prompt<'a> {
    /// The prompt of a request's body: of a chat if it has messages, else of a completion.
    pub fn of(view: &BodyView<'a>) -> Self {
        let prompt = match view.get("messages") {
            Some(messages) => Self::chat(Some(messages), view.get("prompt_token_ids")),
            None => Self::completion(view.get("prompt")),
        };
        Self {
            cache_salt: view.get("cache_salt"),
            ..prompt
        }
    }

    /// A chat request's prompt; `token_ids` are its `prompt_token_ids`.
    pub fn chat(messages: Option<&'a RawValue>, token_ids: Option<&'a RawValue>) -> Self {
        let token_ids = token_ids.filter(|ids| ids.get() != "null");
        let form = messages.map(|messages| Form::Chat {
            messages,
            token_ids,
        });
        form.unwrap_or_default().into()
    }

    /// A completion request's `prompt`.
    pub fn completion(prompt: Option<&'a RawValue>) -> Self {
        let form = prompt.map(|prompt| Form::Completion { prompt });
        form.unwrap_or_default().into()
    }

    /// A prompt of which only the weight is known any more.
    pub fn of_weight(weight: u64) -> Self {
        Self {
            characters: OnceLock::from(weight.saturating_mul(CHARACTERS_PER_TOKEN)),
            ..Self::default()
        }
    }

    /// A request without a prompt.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Estimated tokens: a fifth of the text's code points, at least 1.
    pub fn weight(&self) -> u64 {
        (self.characters() / CHARACTERS_PER_TOKEN).max(1)
    }

    /// Code points of the text.
    pub fn characters(&self) -> u64 {
        *self.characters.get_or_init(|| {
            let mut count = text::Count::default();
            self.write(&mut count);
            count.code_points
        })
    }

    /// What upstream's load balancing on tokens counts: code points of a string, members of a list.
    /// Upstream fails on chat requests; here they count as their [`weight`](Self::weight).
    pub fn tokens(&self) -> u64 {
        match self.form {
            Form::Completion { prompt } => prompt_tokens(prompt).unwrap_or_else(|| self.weight()),
            _ => self.weight(),
        }
    }

    /// The units of the prompt's prefix: its token ids if it has any, else its text. Linear in the
    /// prompt, with a word for each unit.
    pub fn units(&self) -> Units {
        if let Some(tokens) = self.token_ids() {
            return Units::Tokens(tokens);
        }
        let mut points = text::CodePoints::default();
        self.write(&mut points);
        Units::CodePoints(points.0)
    }

    /// What kind of request it is the prompt of.
    pub fn kind(&self) -> Kind {
        match self.form {
            Form::Nothing => Kind::Nothing,
            Form::Chat { .. } => Kind::Chat,
            Form::Completion { .. } => Kind::Completion,
        }
    }

    /// The request's `cache_salt`, if it is text.
    pub fn cache_salt(&self) -> Option<Cow<'a, str>> {
        match Text::from_json(self.cache_salt?.get())? {
            Text::Plain(salt) => Some(salt),
            Text::Wide(_) => None,
        }
    }

    /// The token ids that the request itself carries, if they are of one sequence.
    pub fn own_token_ids(&self) -> Option<Vec<u32>> {
        if let Form::Completion { prompt } = self.form
            && first_byte(prompt) == Some(b'[')
        {
            let sequences: Vec<&RawValue> = serde_json::from_str(prompt.get()).ok()?;
            return tokens(<[_; 1]>::try_from(sequences).ok()?[0]);
        }
        self.token_ids()
    }

    /// Shows what upstream's content pin is made of (specification section 2.4): of a chat, the
    /// contents of its first two messages and the first 256 of its token ids, as Python's `str`
    /// writes them. `false`, and nothing shown, where there is no message.
    pub fn opening(&self, mut show: impl FnMut(&str)) -> bool {
        let Form::Chat {
            messages,
            token_ids,
        } = self.form
        else {
            return false;
        };
        let begun = opening::show_contents(messages, &mut show);
        if let Some(token_ids) = token_ids.filter(|_| begun) {
            opening::show_ids(token_ids, &mut show);
        }
        begun
    }

    /// Writes the text that upstream would make of the prompt: `role:content` lines of a chat, the
    /// prompt string, lines of a list of strings, or else the value as Python prints it.
    fn write(&self, sink: &mut impl text::Sink) {
        match self.form {
            Form::Nothing => {}
            Form::Chat { messages, .. } => write_chat(messages, sink),
            Form::Completion { prompt } => write_completion(prompt, sink),
        }
    }

    fn token_ids(&self) -> Option<Vec<u32>> {
        match self.form {
            Form::Nothing => None,
            Form::Chat { token_ids, .. } => tokens(token_ids?),
            Form::Completion { prompt } => match first_byte(prompt)? {
                b'[' => tokens(serde_json::from_str::<First<'_>>(prompt.get()).ok()?.0?),
                b'-' | b'0'..=b'9' => tokens(prompt),
                _ => None,
            },
        }
    }
}

/// The whole numbers of a list, cut to 32 bits as upstream's hash does; `None` if it is no such list.
fn tokens(list: &RawValue) -> Option<Vec<u32>> {
    let wide: Vec<i64> = serde_json::from_str(list.get()).ok()?;
    Some(wide.into_iter().map(|token| token as u32).collect())
}

fn prompt_tokens(prompt: &RawValue) -> Option<u64> {
    if let Some(string) = text::string(prompt) {
        return Some(text::code_points(string));
    }
    match first_byte(prompt)? {
        b']' => Some(0),
        b'-' | b'0'..=b'9' => {
            Some(prompt.get().bytes().filter(|byte| *byte == b',').count() as u64 + 1)
        }
        _ => {
            let members: Vec<&RawValue> = serde_json::from_str(prompt.get()).ok()?;
            members.into_iter().map(prompt_tokens).sum()
        }
    }
}

fn write_chat(messages: &RawValue, sink: &mut impl text::Sink) {
    // A body that is no list of objects is refused by the worker; what was read so far counts.
    let mut json = serde_json::Deserializer::from_str(messages.get());
    let _ = json.deserialize_seq(Lines(sink));
}

fn write_completion(prompt: &RawValue, sink: &mut impl text::Sink) {
    if first_byte(prompt) != Some(b'"') {
        return write_value(prompt, sink);
    }
    let members: Vec<&RawValue> = serde_json::from_str(prompt.get()).unwrap_or_default();
    for (at, member) in members.into_iter().enumerate() {
        if at > 0 {
            sink.plain("\n");
        }
        write_value(member, sink);
    }
}

/// The byte that the first member of a list begins with; `None` if the value is no list.
fn first_byte(value: &RawValue) -> Option<u8> {
    value
        .get()
        .strip_prefix('[')?
        .trim_ascii_start()
        .bytes()
        .next()
}

/// Writes a value as Python's `str` shows it; one that is too large for that, as its JSON.
fn write_value(value: &RawValue, sink: &mut impl text::Sink) {
    if let Some(string) = text::string(value) {
        return sink.json(string);
    }
    if text::is_list_of_numbers(value) {
        return text::write_numbers(value, sink);
    }
    match python::str_of(value.get()) {
        Some(Text::Plain(printed)) => sink.plain(&printed),
        _ => sink.plain(value.get()),
    }
}

/// The first member of a JSON list, if the value is a list and has one.
struct First<'a>(Option<&'a RawValue>);

impl<'de: 'a, 'a> de::Deserialize<'de> for First<'a> {
    fn deserialize<D: de::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct FirstVisitor;
        impl<'de> Visitor<'de> for FirstVisitor {
            type Value = First<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut members: S) -> Result<First<'de>, S::Error> {
                let first = members.next_element()?;
                while members.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        json.deserialize_seq(FirstVisitor)
    }
}

/// Writes the lines of a chat while its messages are read.
struct Lines<'s, S>(&'s mut S);

impl<'de, S: text::Sink> Visitor<'de> for Lines<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        let mut first = true;
        while let Some(message) = messages.next_element::<Message<'de>>()? {
            if !std::mem::take(&mut first) {
                self.0.plain("\n");
            }
            if let Some(role) = message.role {
                write_value(role, self.0);
            }
            self.0.plain(":");
            if let Some(content) = message.content {
                write_value(content, self.0);
            }
        }
        Ok(())
    }
}

/// The two members of a message that count; of a repeated one the last, as Python reads it.
#[derive(Default)]
struct Message<'a> {
    role: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> de::Deserialize<'de> for Message<'a> {
    fn deserialize<D: de::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct MessageVisitor;
        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = Message<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Message<'de>, M::Error> {
                let mut message = Message::default();
                while let Some(member) = map.next_key::<Member>()? {
                    match member {
                        Member::Role => message.role = Some(map.next_value()?),
                        Member::Content => message.content = Some(map.next_value()?),
                        Member::Other => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(message)
            }
        }
        json.deserialize_map(MessageVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Member {
    Role,
    Content,
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests;
