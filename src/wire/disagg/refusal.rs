//! What a worker says when it refuses.
//!
//! Workers have several shapes for an error (specification section 3.4); a person wants the sentence in
//! it, and must not learn the address of a worker from it.

use serde_json::Value;

/// Characters of a worker's message that are passed on, upstream's own bound.
const LONGEST: usize = 2048;

/// The sentence in a worker's error body, without addresses; `None` where there is none.
pub fn error_message(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let said = [
        &value["message"],
        &value["error"]["message"],
        &value["error"],
        &value["detail"][0]["msg"],
        &value["detail"],
    ]
    .into_iter()
    .find_map(Value::as_str)?;
    let said: String = said.chars().take(LONGEST).collect();
    Some(without_addresses(&said)).filter(|said| !said.trim().is_empty())
}

/// `text` with everything that looks like a URL or a `host:port` replaced.
fn without_addresses(text: &str) -> String {
    text.split_inclusive(char::is_whitespace)
        .map(|word| {
            if names_an_address(word) {
                word.replace(word.trim_end(), "[worker]")
            } else {
                word.to_owned()
            }
        })
        .collect()
}

fn names_an_address(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '[' && c != ']');
    if word.contains("://") {
        return true;
    }
    word.match_indices(':').any(|(at, _)| {
        let host = word[..at]
            .rsplit(|c: char| !(c.is_ascii_alphanumeric() || ".-[]:".contains(c)))
            .next();
        let port = word[at + 1..].split(|c: char| !c.is_ascii_digit()).next();
        let host = host.unwrap_or_default();
        port.is_some_and(|port| (2..=5).contains(&port.len()))
            && (host == "localhost" || host.ends_with(']') || host.contains('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_is_found_in_every_shape() {
        for body in [
            r#"{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}"#,
            r#"{"error":"no"}"#,
            r#"{"error":{"message":"no"}}"#,
            r#"{"detail":"no"}"#,
            r#"{"detail":[{"msg":"no"}]}"#,
        ] {
            assert_eq!(
                error_message(body.as_bytes()).as_deref(),
                Some("no"),
                "{body}"
            );
        }
        for body in [
            "",
            "no",
            "[]",
            "{}",
            r#"{"message":""}"#,
            r#"{"message":5}"#,
        ] {
            assert_eq!(error_message(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn addresses_are_not_passed_on() {
        for address in [
            "10.0.0.1:8001",
            "http://gen-1.pool:8001/v1",
            "localhost:8001",
            "[::1]:8001",
            "gen-1.pool:8001,",
        ] {
            let said = without_addresses(&format!("cannot reach {address} now"));
            assert_eq!(said, "cannot reach [worker] now", "{address}");
        }
        let plain = "max_tokens: 12 is above 3.5:1, see a.b";
        assert_eq!(without_addresses(plain), plain);
    }
}
