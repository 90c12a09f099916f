//! What a worker says when it refuses.
//!
//! Workers have several shapes for an error (specification section 3.4); a person wants the sentence in
//! it.

use serde_json::Value;

/// The sentence in a worker's error body, word for word; `None` where there is none. It is not for
/// clients as it is: it may hold addresses and other people's data.
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
    Some(said.to_owned()).filter(|said| !said.trim().is_empty())
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
}
