//! One JSON object as ordered members over its own text, and edits that keep every other byte.
//!
//! An [`Object`] borrows its text: values stay raw, so large ones are neither copied nor read. It
//! decides nothing about what members mean; where a name occurs twice the last one counts, as in the
//! workers' parser. Reading is iterative and bounded, because the text may be hostile.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Members of one object above which it is refused.
pub const MAX_MEMBERS: usize = 16 * 1024;

/// A member's decoded name and its raw value.
pub type Member<'a> = (Cow<'a, str>, &'a RawValue);

/// One JSON object: its text and its members in order.
#[derive(Debug, Clone)]
pub struct Object<'a> {
    source: &'a str,
    members: Vec<Member<'a>>,
}

impl<'a> Object<'a> {
    /// Reads the members of `source`, one JSON object with white space around it at most.
    pub fn parse(source: &'a str) -> Result<Self, serde_json::Error> {
        let members: Members = serde_json::from_str(source)?;
        Ok(Self {
            source,
            members: members.0,
        })
    }

    /// The text it was read from.
    pub fn source(&self) -> &'a str {
        self.source
    }

    /// Every member in order, repeated names included.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The raw text of the member `name`; the last one where there are several.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.members.iter().rfind(|(own, _)| own == name);
        found.map(|(_, value)| *value)
    }

    /// As [`Object::get`], with `null` counting as absent.
    pub fn present(&self, name: &str) -> Option<&'a str> {
        let raw = self.get(name)?.get();
        (raw != "null").then_some(raw)
    }

    /// A name that occurs more than once.
    pub fn repeated(&self) -> Option<&str> {
        if self.members.len() <= 32 {
            let names = self.members.iter().enumerate();
            let repeats = |at: usize, name: &str| {
                let before = self.members.iter().take(at);
                before.into_iter().any(|(earlier, _)| earlier == name)
            };
            return names
                .map(|(at, (name, _))| (at, name.as_ref()))
                .find(|(at, name)| repeats(*at, name))
                .map(|(_, name)| name);
        }
        let mut seen = HashSet::with_capacity(self.members.len());
        let mut names = self.members.iter().map(|(name, _)| name.as_ref());
        names.find(|name| !seen.insert(*name))
    }

    /// The members as a Python dict keeps them: each name where it came first, with its last value.
    pub fn unique(&self) -> impl Iterator<Item = (&str, &'a str)> {
        // One pass each way, since an object may have thousands of members.
        let mut last: HashMap<&str, &'a str> = HashMap::with_capacity(self.members.len());
        for (name, value) in &self.members {
            last.insert(name.as_ref(), value.get());
        }
        self.members
            .iter()
            .filter_map(move |(name, _)| last.remove_entry(name.as_ref()))
    }

    /// The text with some members changed: `Some(json)` replaces a value in its place or appends the
    /// member, `None` removes it. Afterwards a changed name occurs once or not at all. Every byte
    /// that is not part of a change stays, white space and order included.
    pub fn splice(&self, changes: &[(&str, Option<&str>)]) -> Vec<u8> {
        let source = self.source.as_bytes();
        let added: usize = changes
            .iter()
            .map(|(name, value)| name.len() + value.map_or(0, str::len) + 8)
            .sum();
        let mut out = Vec::with_capacity(source.len() + added);
        let mut edit = Edit::new(self, changes);
        edit.write(&mut out);
        out
    }

    /// Where a raw value of this object begins in its text.
    fn offset(&self, value: &str) -> usize {
        (value.as_ptr() as usize).saturating_sub(self.source.as_ptr() as usize)
    }
}

/// One walk over an object's text.
struct Edit<'o, 'a, 'c> {
    object: &'o Object<'a>,
    changes: &'c [(&'c str, Option<&'c str>)],
    /// Up to where the source has been written or left out.
    done: usize,
    any_member: bool,
}

impl<'o, 'a, 'c> Edit<'o, 'a, 'c> {
    fn new(object: &'o Object<'a>, changes: &'c [(&'c str, Option<&'c str>)]) -> Self {
        Self {
            object,
            changes,
            done: 0,
            any_member: false,
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        let source = self.object.source;
        let brace = source.find('{').map_or(0, |at| at + 1);
        out.extend_from_slice(slice(source, 0, brace));
        self.done = brace;
        for at in 0..self.object.members.len() {
            self.member(at, out);
        }
        let mut seen: Vec<&str> = Vec::new();
        for &(name, value) in self.changes {
            let Some(value) = value else { continue };
            if self.object.get(name).is_some() || seen.contains(&name) {
                continue;
            }
            seen.push(name);
            if self.any_member {
                out.push(b',');
            }
            self.any_member = true;
            let mut quoted = String::with_capacity(name.len() + 2);
            super::escape::string(&mut quoted, name);
            out.extend_from_slice(quoted.as_bytes());
            out.push(b':');
            out.extend_from_slice(value.as_bytes());
        }
        out.extend_from_slice(slice(source, self.done, source.len()));
    }

    /// Writes or leaves out member `at`: from the end of the one before it to the end of its value.
    fn member(&mut self, at: usize, out: &mut Vec<u8>) {
        let Some((name, value)) = self.object.members.get(at) else {
            return;
        };
        let source = self.object.source;
        let start = self.object.offset(value.get());
        let end = start + value.get().len();
        let change = self.changes.iter().find(|(changed, _)| name == changed);
        let shadowed = || {
            let later = self.object.members.iter().skip(at + 1);
            later.into_iter().any(|(other, _)| other == name)
        };
        match change {
            Some((_, replacement)) if replacement.is_none() || shadowed() => self.done = end,
            _ => {
                out.extend_from_slice(self.lead(slice(source, self.done, start)));
                let replacement = change.and_then(|(_, replacement)| *replacement);
                out.extend_from_slice(replacement.unwrap_or(value.get()).as_bytes());
                self.done = end;
                self.any_member = true;
            }
        }
    }

    /// The text between two values, without the comma where no member was written before it.
    fn lead<'s>(&self, text: &'s [u8]) -> &'s [u8] {
        if self.any_member {
            return text;
        }
        text.trim_ascii_start().strip_prefix(b",").unwrap_or(text)
    }
}

fn slice(source: &str, from: usize, to: usize) -> &[u8] {
    source.as_bytes().get(from..to).unwrap_or_default()
}

/// Deserializes members in order.
struct Members<'a>(Vec<Member<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Vec<Member<'de>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(16);
                while let Some(Name(name)) = map.next_key()? {
                    if members.len() == MAX_MEMBERS {
                        return Err(A::Error::custom("an object has too many members"));
                    }
                    members.push((name, map.next_value::<&RawValue>()?));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(MembersVisitor).map(Members)
    }
}

/// A member's name, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(name))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(name.to_owned()))
            }
        }
        deserializer.deserialize_str(NameVisitor).map(Name)
    }
}

#[cfg(test)]
mod tests;
