//! Errors that a worker tells within its stream, as a client may read them.
//!
//! Decides by the beginning of a line alone; every other line passes as it is and at once. A line that
//! begins as an error is held until it ends, so that its words can be masked; one that begins in one
//! part and says that it is an error in the next is not recognised, because nothing else is ever held.

use bytes::Bytes;
use memchr::{memchr2, memmem};
use serde_json::Value;

use super::{ERROR, data};

/// Bytes of an error that are held; of a longer one nothing is passed on.
const LONGEST: usize = 64 * 1024;
/// What stands for an error that is too long, or is none after all.
const UNREADABLE: &[u8] =
    b"data: {\"error\":{\"message\":\"The worker told an error that cannot be \
passed on.\",\"type\":\"upstream_error\",\"param\":null,\"code\":\"worker_error\"}}";

/// The errors of one stream.
#[derive(Debug, Default)]
pub struct ErrorLines {
    /// An error whose line has not ended.
    held: Vec<u8>,
    /// Whether what passed last ended within a line.
    in_line: bool,
}

impl ErrorLines {
    /// A part of the stream as it goes on: unchanged where it tells no error.
    pub fn pass(&mut self, part: Bytes, mask: impl Fn(&str) -> String) -> Bytes {
        if self.held.is_empty() && memmem::find(&part, ERROR).is_none() {
            self.note(&part);
            return part;
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(&part);
        let mut told = Vec::with_capacity(all.len());
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            let is_error = !self.in_line && data(rest).is_some_and(|data| data.starts_with(ERROR));
            let end = memchr2(b'\n', b'\r', rest);
            if is_error && end.is_none() && rest.len() <= LONGEST {
                self.held = rest.to_vec();
                break;
            }
            let (line, next) = rest.split_at(end.unwrap_or(rest.len()));
            match is_error {
                true => told.extend(masked(line, &mask)),
                false => told.extend_from_slice(line),
            }
            let (ends, next) = next.split_at(next.len().min(1));
            told.extend_from_slice(ends);
            self.in_line = ends.is_empty();
            rest = next;
        }
        told.into()
    }

    fn note(&mut self, part: &[u8]) {
        if let Some(last) = part.last() {
            self.in_line = !matches!(last, b'\n' | b'\r');
        }
    }
}

/// An error's line with masked words; as it is where nothing has to be masked.
fn masked(line: &[u8], mask: &impl Fn(&str) -> String) -> Vec<u8> {
    let value = data(line).and_then(|data| serde_json::from_slice::<Value>(data).ok());
    let Some(value) = value.filter(|_| line.len() <= LONGEST) else {
        return UNREADABLE.to_vec();
    };
    let mut told = value.clone();
    mask_all(&mut told, mask);
    if told == value {
        return line.to_vec();
    }
    format!("data: {told}").into_bytes()
}

fn mask_all(value: &mut Value, mask: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = mask(text),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_all(item, mask)),
        Value::Object(fields) => fields.values_mut().for_each(|field| mask_all(field, mask)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(parts: &[&str]) -> String {
        let mut errors = ErrorLines::default();
        let mask = |said: &str| said.replace("10.0.0.1:80", "context-0");
        let told = parts.iter().map(|part| {
            let part = Bytes::copy_from_slice(part.as_bytes());
            String::from_utf8(errors.pass(part, mask).to_vec()).unwrap()
        });
        told.collect()
    }

    #[test]
    fn an_error_is_masked_and_everything_else_stays() {
        let said = "data: {\"error\":{\"message\":\"at 10.0.0.1:80\"}}\r\n\r\n";
        let told = "data: {\"error\":{\"message\":\"at context-0\"}}\r\n\r\n";
        assert_eq!(pass(&[said]), told);
        let (one, two) = said.split_at(30);
        assert_eq!(
            pass(&["data: 1\n\n", one, two, "data: [DONE]\n\n"]),
            format!("data: 1\n\n{told}data: [DONE]\n\n")
        );
        for same in [
            "data: {\"error\": {\"message\" : \"no\"}}\n\ndata: [DONE]\n\n",
            "data: {\"text\":\"{\\\"error\\\" 10.0.0.1:80\"}\n\n",
            ": {\"error\" 10.0.0.1:80}\n\n",
        ] {
            assert_eq!(pass(&[same]), same);
            let each: Vec<String> = same.chars().map(String::from).collect();
            let each: Vec<&str> = each.iter().map(String::as_str).collect();
            assert_eq!(pass(&each), same, "byte by byte");
        }
    }

    #[test]
    fn an_error_that_cannot_be_read_is_not_passed_on() {
        let unreadable = String::from_utf8(UNREADABLE.to_vec()).unwrap();
        assert!(serde_json::from_slice::<Value>(data(UNREADABLE).unwrap()).is_ok());
        let cut = "data: {\"error\":{\"message\":\"at 10.0.0.1:80\n\n";
        assert_eq!(pass(&[cut]), format!("{unreadable}\n\n"));
        let long = format!("data: {{\"error\":\"{}", "x".repeat(LONGEST));
        assert_eq!(pass(&[&long]), unreadable);
        // One that never ends is never told.
        assert_eq!(pass(&["data: 1\n\n", &cut[..40]]), "data: 1\n\n");
    }
}
