//! Where a request may say who its parent is.
//!
//! Agent programs name a sub-agent's parent in headers or fields of their own. The first source of the
//! configured order that says something counts; what is said is normalised here, and nobody behind the
//! gateway sees the source itself. Whether the claim may be followed is not decided here.

use http::HeaderMap;

use super::Refusal;
use crate::{
    config::ParentSource,
    wire::{
        body::BodyView,
        headers::{HeaderSource, as_header, strip},
        object::Object,
        text::Text,
    },
};

/// What a request says about its parent, before it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    Absent,
    /// A parent was named though sub-agent affinity is off.
    Disabled,
    /// Copies of one source differ.
    Ambiguous,
    /// The parent's id, latin-1 text, stripped, not blank.
    Named(String),
}

/// What the headers of a request say; its body may come before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    claim: Claim,
    /// How many sources come before the one that was heard.
    before: usize,
}

#[cfg(test)]
impl Heard {
    /// As if a header named this parent.
    pub fn named(parent: &str) -> Self {
        let claim = Claim::Named(parent.to_owned());
        Self { claim, before: 0 }
    }
}

/// The sources of one configuration, in the order in which they are asked.
#[derive(Debug)]
pub struct Sources {
    sources: Vec<ParentSource>,
    /// Without a gateway section the last copy counts, as upstream has it (specification section 5.7);
    /// with one, copies must agree.
    last_copy: bool,
    /// Whether sub-agents follow their parents at all.
    on: bool,
}

impl Sources {
    pub fn new(sources: Vec<ParentSource>, last_copy: bool, on: bool) -> Self {
        Self {
            sources,
            last_copy,
            on,
        }
    }

    /// The names of the headers among them.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().filter_map(|source| match source {
            ParentSource::Header(name) => Some(name.as_str()),
            ParentSource::Body(_) => None,
        })
    }

    /// Asks the headers.
    pub fn hear(&self, headers: &HeaderMap) -> Heard {
        let heard = self
            .sources
            .iter()
            .enumerate()
            .find_map(|(before, source)| {
                let ParentSource::Header(name) = source else {
                    return None;
                };
                let claim = self.of_header(headers, name);
                (claim != Claim::Absent).then_some(Heard { claim, before })
            });
        heard.unwrap_or(Heard {
            claim: Claim::Absent,
            before: self.sources.len(),
        })
    }

    /// Asks the fields of the body that come before what was heard.
    ///
    /// # Errors
    /// What `check` says of an id; it is told the field.
    pub fn settle(
        &self,
        heard: Heard,
        view: &BodyView<'_>,
        check: impl Fn(&str, &str) -> Result<(), Refusal>,
    ) -> Result<Claim, Refusal> {
        for source in self.sources.iter().take(heard.before) {
            let ParentSource::Body(path) = source else {
                continue;
            };
            if let Some(parent) = of_body(view.object(), path) {
                check(&parent, &path.join("."))?;
                return Ok(self.named(as_header(&parent).into_owned()));
            }
        }
        Ok(heard.claim)
    }

    fn of_header(&self, headers: &HeaderMap, name: &str) -> Claim {
        let copies = HeaderSource::values(headers, name);
        let mut copies = copies.map(|text| strip(&text).to_owned());
        let Some(first) = copies.next() else {
            return Claim::Absent;
        };
        let parent = if self.last_copy {
            copies.last().unwrap_or(first)
        } else if copies.all(|copy| copy == first) {
            first
        } else if self.on {
            return Claim::Ambiguous;
        } else {
            return Claim::Disabled;
        };
        self.named(parent)
    }

    fn named(&self, parent: String) -> Claim {
        match parent.is_empty() {
            true => Claim::Absent,
            false if self.on => Claim::Named(parent),
            false => Claim::Disabled,
        }
    }
}

/// The text at a path of member names, stripped; `None` where there is none, or nothing in it.
fn of_body(object: &Object<'_>, path: &[String]) -> Option<String> {
    let (name, rest) = path.split_first()?;
    let raw = object.present(name)?;
    if !rest.is_empty() {
        return of_body(&Object::parse(raw).ok()?, rest);
    }
    let text = Text::from_json(raw)?.stripped()?;
    text.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
