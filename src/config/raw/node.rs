//! YAML as a tree in which every value knows its line.
//!
//! Bounds what a file may cost (size, depth, aliases) and keeps nothing of its text in errors: a
//! line that does not parse may hold a secret. It decides no meaning; that is for the sections.

use std::fmt;

use secrecy::zeroize::Zeroizing;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{
    DuplicateKeyPolicy, Error as YamlError, MergeKeyPolicy, NonFiniteFloatPolicy, Spanned,
};

/// A value and the line where it stands. Has no `Debug`, since it may hold a secret.
pub(crate) struct Node {
    pub(crate) line: Option<u64>,
    pub(crate) value: Value,
}

/// What YAML can say.
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// Wiped when it is freed: any text may be a secret.
    Text(Zeroizing<String>),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a map.
pub(crate) struct Entry {
    pub(crate) line: Option<u64>,
    pub(crate) key: String,
    pub(crate) node: Node,
}

impl Value {
    /// Whether two values are equal as upstream's loader sees them: lines and the order of keys do
    /// not count, and `1` equals `1.0`.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.value.same(&b.value))
            }
            (Self::Map(a), Self::Map(b)) => same_map(a, b),
            (Self::Int(a), Self::Int(b)) => a == b,
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a == b || (a.is_nan() && b.is_nan()),
                _ => false,
            },
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Bool(truth) => Some(f64::from(u8::from(*truth))),
            #[expect(clippy::cast_precision_loss, reason = "only compared")]
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }
}

fn same_map(a: &[Entry], b: &[Entry]) -> bool {
    let by_key: std::collections::HashMap<_, _> = b
        .iter()
        .map(|entry| (entry.key.as_str(), &entry.node))
        .collect();
    a.len() == b.len()
        && a.iter().all(|entry| {
            by_key
                .get(entry.key.as_str())
                .is_some_and(|other| entry.node.value.same(&other.value))
        })
}

/// Why a text is no YAML: the line, the key where there is one, and what is wrong.
pub(crate) struct Unreadable {
    pub(crate) line: Option<u64>,
    pub(crate) key: String,
    pub(crate) what: String,
}

/// Reads one YAML document.
pub(crate) fn parse(text: &str) -> Result<Node, Unreadable> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            flow_nesting_limit: 32,
            max_documents: 2,
            max_events: 400_000,
            max_nodes: 200_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 50_000,
            max_recorded_anchor_bytes: 4 * 1024 * 1024,
            max_total_scalar_bytes: 4 * 1024 * 1024,
            max_merge_keys: 100,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 50_000,
            max_replay_stack_depth: 16,
        },
        emit_comments: false,
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Merge,
        leading_zero_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| unreadable(&error))
}

/// Says where and what the parser found.
fn unreadable(error: &YamlError) -> Unreadable {
    let line = error
        .location()
        .map(|location| location.line())
        .filter(|line| *line > 0);
    let error = match error.without_snippet() {
        YamlError::AliasError { error, .. } => error.without_snippet(),
        error => error,
    };
    let key = match error {
        // A name that is no key may be a part of a secret that was taken for keys.
        YamlError::DuplicateMappingKey { key, .. } => {
            key.clone().filter(|name| super::is_key(name))
        }
        _ => None,
    };
    Unreadable {
        line,
        key: key.unwrap_or_default(),
        what: match error {
            YamlError::ExternalMessage { msg, .. } => format!(
                "is not YAML here: {msg}; check indentation (spaces, no tabs), quotes and colons"
            ),
            error => words(error).to_owned(),
        },
    }
}

/// What is wrong, in our words and without a byte of the text: the parser's own may quote it.
fn words(error: &YamlError) -> &'static str {
    match error {
        YamlError::DuplicateMappingKey { .. } => super::TWICE,
        YamlError::MultipleDocuments { .. } => {
            "holds more than one YAML document; keep the first and drop the rest"
        }
        YamlError::Budget { .. }
        | YamlError::AliasReplayLimitExceeded { .. }
        | YamlError::AliasReplayStackDepthExceeded { .. }
        | YamlError::AliasExpansionLimitExceeded { .. }
        | YamlError::AliasReplayCounterOverflow { .. } => {
            "is nested too deep or too large once its aliases are expanded; a configuration needs \
             no more than 32 levels and a few thousand values"
        }
        YamlError::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias refers to itself; write the value out"
        }
        YamlError::UnknownAnchor { .. } => {
            "an alias (`*name`) refers to no anchor; put a value that begins with `*` in quotes"
        }
        YamlError::UnsupportedTag { .. } => {
            "a tag (`!name`) has no meaning here; put a value that begins with `!` in quotes"
        }
        YamlError::NullIntoString { .. } => "a key has no name; give it one",
        YamlError::Eof { .. } => "ends in the middle of a value; complete it",
        _ => "cannot be read here; check the YAML of this line",
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self {
            line: Some(spanned.referenced.line()).filter(|line| *line > 0),
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Int(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned().into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            entries.push(Entry {
                line: Some(key.referenced.line()).filter(|line| *line > 0),
                key: key.value,
                node: map.next_value()?,
            });
        }
        Ok(Value::Map(entries))
    }
}
