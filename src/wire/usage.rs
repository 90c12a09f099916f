//! How many tokens a prompt had, as answers say it.
//!
//! Looks for the number where it stands instead of reading the answer, which may carry tens of thousands
//! of token ids. Inside a JSON text a quote is escaped, so no content reads like the member.

use memchr::memmem;

const MEMBER: &[u8] = b"\"prompt_tokens\":";
/// Bytes of the member with a number.
const LONGEST: usize = MEMBER.len() + 32;

/// The last `prompt_tokens` of an answer.
pub fn prompt_tokens(answer: &[u8]) -> Option<u64> {
    let at = memmem::rfind(answer, MEMBER)?;
    let value = answer.get(at + MEMBER.len()..)?.trim_ascii_start();
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    // Where it breaks off, more digits may follow.
    value.get(digits)?;
    std::str::from_utf8(value.get(..digits)?).ok()?.parse().ok()
}

/// Looks through an answer that comes in parts.
#[derive(Debug, Default)]
pub struct UsageScan {
    tail: Vec<u8>,
    found: Option<u64>,
}

impl UsageScan {
    /// Looks at a further part.
    pub fn pass(&mut self, part: &[u8]) {
        let head = part.get(..LONGEST).unwrap_or(part);
        self.tail.extend_from_slice(head);
        self.found = prompt_tokens(part)
            .or_else(|| prompt_tokens(&self.tail))
            .or(self.found);
        if part.len() > head.len() {
            self.tail.clear();
            let end = part.len().saturating_sub(LONGEST);
            self.tail.extend_from_slice(part.get(end..).unwrap_or(part));
        }
        let over = self.tail.len().saturating_sub(LONGEST);
        self.tail.drain(..over);
    }

    /// What was found so far.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        let of = |text: &str| prompt_tokens(text.as_bytes());
        assert_eq!(
            of(r#"{"usage":{"prompt_tokens":12,"total_tokens":13}}"#),
            Some(12)
        );
        assert_eq!(of(r#"{"usage":{"prompt_tokens" : 1}}"#), None);
        assert_eq!(of(r#"{"usage":{"prompt_tokens": 7 }}"#), Some(7));
        assert_eq!(of(r#"{"prompt_tokens":1}{"prompt_tokens":2}"#), Some(2));
        assert_eq!(of(r#"{"content":"say \"prompt_tokens\":5, please"}"#), None);
        for none in [
            "",
            r#"{"prompt_tokens":null}"#,
            r#"{"prompt_tokens":-1}"#,
            r#""prompt_tokens":12"#,
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn it_is_found_wherever_the_parts_end() {
        let text = format!(
            "data: {{\"x\":\"{}\"}}\n\ndata: {{\"usage\":{{\"prompt_tokens\":4321,\"x\":1}}}}\n\n{}",
            "y".repeat(200),
            "data: [DONE]\n\n".repeat(9)
        );
        for size in 1..text.len() {
            let mut scan = UsageScan::default();
            for part in text.as_bytes().chunks(size) {
                scan.pass(part);
                assert!(scan.tail.len() <= LONGEST);
            }
            assert_eq!(scan.prompt_tokens(), Some(4321), "{size}");
        }
    }
}
