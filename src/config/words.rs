//! Words of the file, as a message may repeat them.
//!
//! Suggests what a misspelt name was meant to be, and never lets a message carry a terminal's
//! escape, a whole page, or what looks like a password.

/// Words for a key that is none of `known`.
pub(crate) fn unknown_key(name: &str, known: &[&'static str]) -> String {
    let keys = known.join(", ");
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("is no key of this section; did you mean `{near}`? It has {keys}"),
        None => format!("is no key of this section; it has {keys}"),
    }
}

/// The name that `wrong` was probably meant to be.
pub(crate) fn nearest<'a>(
    wrong: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if wrong.len() > 64 {
        return None;
    }
    names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(wrong, name), name))
        .filter(|(likeness, _)| *likeness >= 0.85)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// Text of the file as a message may show it: short, on one line, and nothing that could carry a
/// password (`user:password@host`).
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    if text.contains('@') {
        return "(not shown)".to_owned();
    }
    let mut short: String = text
        .chars()
        .take(MOST)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}
