//! How a chat begins, as upstream's content pin sees it.
//!
//! Decides what Python's `str` makes of the first contents and token ids. It reads no further than
//! it needs: the rest of a long chat is not looked at.

use std::fmt;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{Message, python};

const MESSAGES: usize = 2;
const TOKEN_IDS: usize = 256;

/// Shows the contents of the first messages; `false` if there is none.
pub(super) fn show_contents(messages: &RawValue, show: &mut impl FnMut(&str)) -> bool {
    let mut begun = false;
    each(messages, MESSAGES, |message: Message<'_>| {
        begun = true;
        show_content(message.content, show);
    });
    begun
}

fn show_content(content: Option<&RawValue>, show: &mut impl FnMut(&str)) {
    let Some(content) = content else {
        return show("None");
    };
    match python::str_of(content.get()) {
        Some(text) => show(&text.to_lossy()),
        // Too large to be worth turning into Python's form.
        None => show(content.get()),
    }
}

/// Shows the first token ids as a list, if there is one.
pub(super) fn show_ids(token_ids: &RawValue, show: &mut impl FnMut(&str)) {
    let mut list = String::new();
    each(token_ids, TOKEN_IDS, |id: &RawValue| {
        list.push_str(if list.is_empty() { "[" } else { ", " });
        list.push_str(id.get());
    });
    if !list.is_empty() {
        list.push(']');
        show(&list);
    }
}

/// Hands out the first members of a JSON list, those of the wrong type and what follows them left
/// out.
fn each<'de, T: serde::Deserialize<'de>>(list: &'de RawValue, most: usize, act: impl FnMut(T)) {
    struct First<A, T> {
        act: A,
        most: usize,
        member: std::marker::PhantomData<T>,
    }
    impl<'de, T: serde::Deserialize<'de>, A: FnMut(T)> Visitor<'de> for First<A, T> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<S: SeqAccess<'de>>(mut self, mut members: S) -> Result<(), S::Error> {
            for _ in 0..self.most {
                let Some(member) = members.next_element()? else {
                    break;
                };
                (self.act)(member);
            }
            Ok(())
        }
    }
    // It ends in an error where members are left, or where the list is none: both are no matter.
    let _ = serde_json::Deserializer::from_str(list.get()).deserialize_seq(First {
        act,
        most,
        member: std::marker::PhantomData,
    });
}
