//! What routing is sticky on.
//!
//! Decides which text is the affinity key of each leg, how such a text becomes a fixed-size
//! [`AffinityKey`], and how bindings are remembered ([`BindingTable`]). It must never decide where
//! a request goes, and it must never keep a client's text: tables hold keyed hashes only.

pub mod key;
pub mod shares;
pub mod table;

use crate::config::AffinityScope;

pub use key::AffinityKey;
pub use shares::SharedTable;
pub use table::BindingTable;

/// The affinity keys of one request's two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keys<'a> {
    /// What the context leg is sticky on.
    pub context: Option<&'a str>,
    /// What the generation leg is sticky on.
    pub generation: Option<&'a str>,
}

/// The affinity keys of a request (specification section 2.3, step 1, and the feature's scope).
///
/// The key is the parent's id where one is authorised, else the conversation id. In scope
/// `context` the generation leg follows the request's own conversation id. Blank texts count as
/// absent. `parent` must be an authorised one: nothing is checked here.
pub fn keys<'a>(
    conversation: Option<&'a str>,
    parent: Option<&'a str>,
    scope: AffinityScope,
) -> Keys<'a> {
    let conversation = conversation.filter(|id| !id.is_empty());
    let family = parent.filter(|id| !id.is_empty()).or(conversation);
    Keys {
        context: family,
        generation: match scope {
            AffinityScope::Context => conversation,
            AffinityScope::Both => family,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_the_key_where_there_is_one() {
        let both = keys(Some("child"), Some("parent"), AffinityScope::Both);
        assert_eq!(both.context, Some("parent"));
        assert_eq!(both.generation, Some("parent"));
        let context = keys(Some("child"), Some("parent"), AffinityScope::Context);
        assert_eq!(context.context, Some("parent"));
        assert_eq!(context.generation, Some("child"));
    }

    #[test]
    fn without_a_parent_the_conversation_is_the_key() {
        for scope in [AffinityScope::Context, AffinityScope::Both] {
            let keys = keys(Some("own"), Some(""), scope);
            assert_eq!(keys.context, Some("own"));
            assert_eq!(keys.generation, Some("own"));
        }
        assert_eq!(keys(None, None, AffinityScope::Both), Keys::default());
        let orphan = keys(None, Some("parent"), AffinityScope::Context);
        assert_eq!(orphan.context, Some("parent"));
        assert_eq!(orphan.generation, None);
    }
}
