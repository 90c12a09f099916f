//! Which conversation a request belongs to.
//!
//! The body's `conversation_params` win over the headers, and a body that has them must name a
//! conversation: there is no falling back (specification section 5.2). The id is text as the workers
//! make it, stripped, whatever JSON type the client sent. A client's own `subagent_affinity_id` is
//! checked, as upstream does, and never believed.

use std::borrow::Cow;

use super::{
    body::{BodyError, BodyView},
    headers::{self, CONVERSATION_ID_HEADERS, HeaderSource},
    object::Object,
    python,
    text::Text,
};

/// The body field that carries the conversation.
pub const PARAMS: &str = "conversation_params";
const ID: &str = "conversation_id";
/// The parent's id inside [`PARAMS`]: the edge's own, never a client's.
pub const PARENT: &str = "subagent_affinity_id";

/// The conversation id of a request, from its body or else its headers.
pub fn resolve(
    headers: &(impl HeaderSource + ?Sized),
    body: &BodyView,
) -> Result<Option<String>, BodyError> {
    match body.present(PARAMS) {
        Some(raw) => from_params(raw).map(|id| Some(id.to_lossy().into_owned())),
        None => Ok(from_headers(headers)),
    }
}

/// A request's conversation id as whoever claims it for a parent says it, which is in a header. Equal
/// bytes are one session, whether they came in a header or in the body.
pub fn as_claimed<'a>(body: &BodyView, id: &'a str) -> Cow<'a, str> {
    match body.present(PARAMS) {
        Some(_) => headers::as_header(id),
        None => Cow::Borrowed(id),
    }
}

/// The first of the conversation headers whose last copy is not blank.
pub fn from_headers(headers: &(impl HeaderSource + ?Sized)) -> Option<String> {
    let mut names = CONVERSATION_ID_HEADERS.iter();
    names.find_map(|name| headers::last(headers, name))
}

/// The id in the raw JSON of `conversation_params`.
pub(super) fn from_params(raw: &str) -> Result<Text<'_>, BodyError> {
    let params = Object::parse(raw)
        .map_err(|_| BodyError::field(PARAMS, format!("'{PARAMS}' must be an object")))?;
    for (name, value) in params.members() {
        let fits = match name.as_ref() {
            ID => true,
            PARENT => matches!(value.get().as_bytes().first(), Some(b'"' | b'n')),
            _ => {
                let message = format!("'{PARAMS}' has no field '{name}'; it takes '{ID}'");
                return Err(BodyError::field(&format!("{PARAMS}.{name}"), message));
            }
        };
        if !fits {
            let field = format!("{PARAMS}.{PARENT}");
            return Err(BodyError::field(
                &field,
                format!("'{field}' must be a string"),
            ));
        }
    }
    let id = params.present(ID).and_then(python::str_of);
    id.and_then(Text::stripped).ok_or_else(|| {
        let field = format!("{PARAMS}.{ID}");
        let message = format!("'{field}' must be a non-empty id when '{PARAMS}' is sent");
        BodyError::field(&field, message)
    })
}

/// The `conversation_params` that are forwarded for a conversation: the client's own bytes where
/// they say the same, without the parent's id, and nothing where there is no conversation.
pub fn forwarded_params<'a>(body: &BodyView<'a>, id: Option<&str>) -> Option<Cow<'a, str>> {
    let id = id?;
    let quote = || serde_json::to_string(id).unwrap_or_default();
    let own = body.present(PARAMS).and_then(|raw| Object::parse(raw).ok());
    let Some(own) = own else {
        return Some(Cow::Owned(format!("{{\"{ID}\":{}}}", quote())));
    };
    let says_the_same = own
        .get(ID)
        .and_then(|raw| Text::from_json(raw.get()))
        .is_some_and(|text| text.as_str() == Some(id));
    if says_the_same && own.get(PARENT).is_none() {
        return Some(Cow::Borrowed(own.source()));
    }
    let quoted = if says_the_same { None } else { Some(quote()) };
    let mut changes = vec![(PARENT, None)];
    changes.extend(quoted.as_deref().map(|quoted| (ID, Some(quoted))));
    String::from_utf8(own.splice(&changes)).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers = Vec<(String, String)>;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn forwarded(body: &str) -> Option<String> {
        let view = BodyView::parse(body.as_bytes()).expect("a body");
        let id = resolve(&Headers::new(), &view).expect("an id");
        forwarded_params(&view, id.as_deref()).map(Cow::into_owned)
    }

    #[test]
    fn the_body_wins_and_never_falls_back() {
        let sent = headers(&[("x-session-id", "from-header")]);
        let read = |body: &str| {
            let view = BodyView::parse(body.as_bytes()).expect("a body");
            resolve(&sent, &view)
        };
        assert_eq!(read("{}"), Ok(Some("from-header".to_owned())));
        let body = r#"{"conversation_params":{"conversation_id":" own "}}"#;
        assert_eq!(read(body), Ok(Some("own".to_owned())));
        for (params, field) in [
            ("{}", "conversation_params.conversation_id"),
            (
                r#"{"conversation_id":""}"#,
                "conversation_params.conversation_id",
            ),
            (
                r#"{"conversation_id":null}"#,
                "conversation_params.conversation_id",
            ),
            (r#"{"conversation_id":"a","x":1}"#, "conversation_params.x"),
            (
                r#"{"conversation_id":"a","subagent_affinity_id":5}"#,
                "conversation_params.subagent_affinity_id",
            ),
            ("\"a\"", "conversation_params"),
            ("[]", "conversation_params"),
        ] {
            let error = read(&format!("{{\"conversation_params\":{params}}}")).expect_err(params);
            assert_eq!(error.param.as_deref(), Some(field), "{params}");
        }
    }

    #[test]
    fn the_order_of_the_headers_is_fixed() {
        let sent = headers(&[
            ("X-Correlation-ID", "b"),
            ("x-session-id", " a "),
            ("x-session-affinity", "c"),
        ]);
        assert_eq!(from_headers(&sent).as_deref(), Some("a"));
        assert_eq!(from_headers(&headers(&[("x-session-id", " ")])), None);
    }

    #[test]
    fn forwards_the_clients_bytes_where_they_say_the_same() {
        for (body, expected) in [
            (
                r#"{"conversation_params":{ "conversation_id" : "a\u0062" }}"#,
                r#"{ "conversation_id" : "a\u0062" }"#,
            ),
            (
                r#"{"conversation_params":{ "subagent_affinity_id":"p", "conversation_id":"a"}}"#,
                r#"{ "conversation_id":"a"}"#,
            ),
            (
                r#"{"conversation_params":{"conversation_id":"a","subag\u0065nt_affinity_id":null}}"#,
                r#"{"conversation_id":"a"}"#,
            ),
            (
                r#"{"conversation_params":{"conversation_id":" \u00e9 "}}"#,
                "{\"conversation_id\":\"\u{e9}\"}",
            ),
            (
                r#"{"conversation_params":{"conversation_id":42}}"#,
                r#"{"conversation_id":"42"}"#,
            ),
        ] {
            assert_eq!(forwarded(body).as_deref(), Some(expected), "{body}");
        }
        assert_eq!(forwarded("{}"), None);
    }

    #[test]
    fn an_id_from_elsewhere_makes_new_params() {
        let view = BodyView::parse(b"{\"conversation_params\":null}").expect("a body");
        let params = forwarded_params(&view, Some("a\"\u{e9}"));
        assert_eq!(
            params.as_deref(),
            Some("{\"conversation_id\":\"a\\\"\u{e9}\"}")
        );
    }
}
