//! `limits.max_body`: one size for every path, or a size for each.

use crate::config::{
    BodyLimits,
    own::{GIB, KIB},
    raw::{self, Field, Section, node::Value},
    report::Report,
};

const DEFAULT: usize = 32 << 20;

/// `limits.max_body`.
pub(crate) fn max_body(field: Field, report: &mut Report) -> BodyLimits {
    if !matches!(field.value, Value::Map(_)) {
        return BodyLimits::all(size(&field, report).unwrap_or(DEFAULT));
    }
    let raw = raw::MaxBody::closed(field, report);
    let mut size_of = |field: Option<Field>| field.and_then(|field| size(&field, report));
    let default = size_of(raw.default).unwrap_or(DEFAULT);
    BodyLimits {
        chat_completions: size_of(raw.chat_completions).unwrap_or(default),
        completions: size_of(raw.completions).unwrap_or(default),
    }
}

/// `limits.max_body` where it is not given.
pub(crate) fn default() -> BodyLimits {
    BodyLimits::all(DEFAULT)
}

fn size(field: &Field, report: &mut Report) -> Option<usize> {
    field.size(report, KIB..=4 * GIB)
}
