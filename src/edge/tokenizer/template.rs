//! A model's chat template, which writes the messages of a chat as the text the model reads.
//!
//! Templates are written for Python's Jinja with the settings and helpers of the models' usual
//! library; this file gives them the same ones. A template that raises an exception, or works
//! without end, gives no text.

use std::{collections::BTreeMap, fmt::Write};

use minijinja::{
    Environment, Error, ErrorKind,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, Value},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::Map;

use super::Chat;

const DEFAULT: &str = "default";
/// The template for chats with tools, where a model has several.
const WITH_TOOLS: &str = "tool_use";
/// Instructions that writing one chat may take.
const FUEL: u64 = 20_000_000;

/// A chat template and the special tokens that it can name.
pub struct ChatTemplate {
    templates: Environment<'static>,
    special_tokens: BTreeMap<String, Value>,
}

impl ChatTemplate {
    /// The template of a tokenizer's settings, or `own` in place of theirs; `None` where there is
    /// none.
    ///
    /// # Errors
    /// A template that is none.
    pub fn of(
        settings: &Map<String, serde_json::Value>,
        own: Option<String>,
    ) -> Result<Option<Self>, Error> {
        let mut templates = environment()?;
        let sources = match own {
            Some(own) => vec![(DEFAULT.to_owned(), own)],
            None => sources(settings),
        };
        for (name, source) in sources {
            templates.add_template_owned(name, without_marks(&source))?;
        }
        let there_is_one = templates.templates().next().is_some();
        Ok(there_is_one.then(|| Self {
            templates,
            special_tokens: special_tokens(settings),
        }))
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// The template's own complaint, or JSON that is not what it should be.
    pub fn write(&self, chat: &Chat) -> Result<String, String> {
        self.try_write(chat).map_err(|error| error.to_string())
    }

    fn try_write(&self, chat: &Chat) -> Result<String, Error> {
        let with_tools = chat.tools.is_some();
        let name = Some(WITH_TOOLS).filter(|_| with_tools);
        let template = name.and_then(|name| self.templates.get_template(name).ok());
        let template = match template {
            Some(template) => template,
            None => self.templates.get_template(DEFAULT)?,
        };
        let mut context = self.special_tokens.clone();
        if let Some(arguments) = &chat.arguments {
            let arguments: Map<String, serde_json::Value> =
                serde_json::from_str(arguments).map_err(not_json)?;
            let arguments = arguments.into_iter();
            context.extend(arguments.map(|(name, value)| (name, Value::from(Serde(value)))));
        }
        let optional = |raw: &Option<String>| raw.as_deref().map_or(Ok(Value::from(())), json);
        context.insert("messages".to_owned(), json(&chat.messages)?);
        context.insert("tools".to_owned(), optional(&chat.tools)?);
        context.insert("documents".to_owned(), optional(&chat.documents)?);
        context.insert(
            "add_generation_prompt".to_owned(),
            chat.add_generation_prompt.into(),
        );
        template.render(Value::from(context))
    }
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let mut now = String::new();
        let wrong = |_| Error::new(ErrorKind::InvalidOperation, "no format of a time");
        write!(now, "{}", chrono::Local::now().format(&format)).map_err(wrong)?;
        Ok(now)
    });
    Ok(environment)
}

/// The templates of `tokenizer_config.json` by name: one, or a list of named ones.
fn sources(settings: &Map<String, serde_json::Value>) -> Vec<(String, String)> {
    let text = |value: Option<&serde_json::Value>| Some(value?.as_str()?.to_owned());
    match settings.get("chat_template") {
        Some(serde_json::Value::Array(named)) => named
            .iter()
            .filter_map(|entry| Some((text(entry.get("name"))?, text(entry.get("template"))?)))
            .collect(),
        one => text(one)
            .map(|source| (DEFAULT.to_owned(), source))
            .into_iter()
            .collect(),
    }
}

/// `bos_token`, `eos_token` and their like: texts, or objects with one.
fn special_tokens(settings: &Map<String, serde_json::Value>) -> BTreeMap<String, Value> {
    let tokens = settings.iter().filter(|(name, _)| name.ends_with("_token"));
    tokens
        .filter_map(|(name, token)| {
            let text = token.get("content").unwrap_or(token).as_str()?;
            Some((name.clone(), Value::from(text)))
        })
        .collect()
}

/// The source with the marks around what an assistant says, which are for training, made plain.
fn without_marks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        plain.push_str(before);
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        let lead = tag.get(..tag.len() - word.len()).unwrap_or_default();
        let end = |word: &str| {
            word.trim_start()
                .trim_start_matches(['-', '+'])
                .starts_with("%}")
        };
        let marks = [("generation", "if true"), ("endgeneration", "endif")];
        let mark = marks.into_iter().find_map(|(mark, instead)| {
            let after = word.strip_prefix(mark).filter(|after| end(after))?;
            Some((instead, after))
        });
        rest = match mark {
            Some((instead, after)) => {
                plain.push_str(lead);
                plain.push_str(instead);
                after
            }
            None => tag,
        };
    }
    plain.push_str(rest);
    plain
}

/// JSON as Python's `json.dumps` writes it, not escaped for HTML.
fn to_json(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let value = serde_json::to_value(value).map_err(not_json)?;
    let mut text = Vec::new();
    let written = match indent {
        Some(indent) => {
            let blanks = " ".repeat(indent.min(16));
            let form = serde_json::ser::PrettyFormatter::with_indent(blanks.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, form))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut text, Spaced,
        )),
    };
    written.map_err(not_json)?;
    String::from_utf8(text).map_err(|_| Error::new(ErrorKind::BadSerialization, "not UTF-8"))
}

/// One line, with a blank after each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        to.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        to: &mut W,
    ) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

fn json(raw: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(raw).map_err(not_json)?;
    Ok(Value::from(Serde(value)))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(template: &str, chat: &Chat) -> Result<String, String> {
        let settings = serde_json::Map::new();
        let template = ChatTemplate::of(&settings, Some(template.to_owned())).expect("a template");
        template.expect("a template").write(chat)
    }

    fn chat(messages: &str) -> Chat {
        Chat {
            messages: messages.to_owned(),
            ..Chat::default()
        }
    }

    #[test]
    fn writes_as_python_does() {
        let messages = chat(r#"[{"b": "<é'>", "a": [1, 1.5, true, null, {}]}]"#);
        for (template, expected) in [
            (
                "{{ messages[0] | tojson }}",
                r#"{"b": "<é'>", "a": [1, 1.5, true, null, {}]}"#,
            ),
            ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
            ("{{ messages[0].a[2] }} {{ none }}", "True None"),
            (
                "{{ 'a,b'.split(',')[1] }}{{ 'x'.startswith('x') }}",
                "bTrue",
            ),
            ("  {% if true %}\na\n  {% endif %}\nb\n", "a\nb"),
            (
                "{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}",
                "1",
            ),
            ("a {%- generation -%} b{% endgeneration %}c", "abc"),
            ("{{ strftime_now('%Y') | length }}", "4"),
            ("{{ tools is none }}{{ tools is defined }}", "TrueTrue"),
        ] {
            assert_eq!(
                write(template, &messages).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn an_exception_or_endless_work_gives_no_text() {
        let refused = write("{{ raise_exception('no system prompt') }}", &chat("[]"));
        assert!(refused.is_err_and(|error| error.contains("no system prompt")));
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(write(endless, &chat("[]")).is_err());
        assert!(write("a", &chat("not JSON")).is_err());
    }
}
