//! What follows a request through all programs: its id, and the trace it belongs to.
//!
//! Decides which of it is taken from a client. An id that is too long or holds anything but harmless
//! characters is replaced, since it stands in log lines and in the header fields of answers; what W3C
//! Trace Context does not allow is left out. What is taken is passed on byte for byte, and never
//! signed or trusted: it routes nothing.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

/// Names a request, towards workers and in its answer.
pub const REQUEST_ID: &str = "x-request-id";
/// Names the span that the request was sent in (W3C Trace Context section 3.2).
pub const TRACEPARENT: &str = "traceparent";
/// What further tracing systems know of it (W3C Trace Context section 3.3).
pub const TRACESTATE: &str = "tracestate";

/// Longest id that is taken.
const MAX_ID: usize = 128;
/// Bytes of a `traceparent` of version 00.
const PARENT: usize = 55;
/// Longest `traceparent` of a version to come.
const MAX_PARENT: usize = 128;
/// Longest `tracestate` that is taken, and most members of it: what every system has to pass on.
const MAX_STATE: usize = 512;
const MAX_MEMBERS: usize = 32;
/// Longest key and longest value of a member of it.
const MAX_PART: usize = 256;

/// One request's id and trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    request_id: String,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl Trace {
    /// Takes what is well formed of a client's header fields, but for those named in `refused`, and
    /// makes a new id where it gave none.
    pub fn of(headers: &HeaderMap, refused: &[String]) -> Self {
        let taken = |name: &str| refused.iter().all(|other| other != name);
        let only = |name| only(headers, name).filter(|_| taken(name));
        let request_id = only(REQUEST_ID).filter(|id| is_id(id));
        let traceparent = only(TRACEPARENT).filter(|parent| is_parent(parent));
        let wanted = traceparent.is_some() && taken(TRACESTATE);
        let tracestate = wanted.then(|| state(headers)).flatten();
        Self {
            request_id: request_id.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned),
            traceparent: traceparent.map(str::to_owned),
            tracestate,
        }
    }

    /// At most 128 letters, digits and `-._~:/+=@`.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The header fields for a worker.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
        [
            (REQUEST_ID, Some(&self.request_id)),
            (TRACEPARENT, self.traceparent.as_ref()),
            (TRACESTATE, self.tracestate.as_ref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?.clone().into_bytes())))
    }
}

/// The value of a field that came once.
fn only<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    let mut all = headers.get_all(HeaderName::from_static(name)).iter();
    let value = all.next().filter(|_| all.next().is_none())?;
    value.to_str().ok()
}

fn is_id(id: &str) -> bool {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@".contains(&byte);
    (1..=MAX_ID).contains(&id.len()) && id.bytes().all(safe)
}

/// Whether a value is `version-trace-parent-flags`, each in lower-case hexadecimal digits. A version
/// to come may have more after it.
fn is_parent(value: &str) -> bool {
    let Some((known, more)) = value.split_at_checked(PARENT) else {
        return false;
    };
    let mut parts = known.split('-');
    let mut part = |length: usize| {
        let part = parts.next().unwrap_or_default();
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (part.len() == length && part.bytes().all(digit)).then_some(part)
    };
    let (Some(version), Some(trace), Some(parent), Some(_)) =
        (part(2), part(32), part(16), part(2))
    else {
        return false;
    };
    let is_set = |id: &str| id.bytes().any(|byte| byte != b'0');
    let ended = match version {
        "00" => more.is_empty(),
        "ff" => false,
        _ => more.is_empty() || (more.starts_with('-') && value.len() <= MAX_PARENT),
    };
    ended && is_set(trace) && is_set(parent) && parts.next().is_none()
}

/// The `tracestate` as one list; nothing where a part of it is malformed, or it is too long.
fn state(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(TRACESTATE).iter();
    let values: Option<Vec<_>> = values.map(|value| value.to_str().ok()).collect();
    let list = values?.join(",");
    let members = list
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<_> = members.filter(|member| !member.is_empty()).collect();
    let good = (1..=MAX_MEMBERS).contains(&members.len())
        && list.len() <= MAX_STATE
        && members.into_iter().all(is_member)
        && HeaderValue::from_str(&list).is_ok();
    good.then_some(list)
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let in_key = |byte: u8| first(byte) || b"_-*/@".contains(&byte);
    let in_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    key.bytes().next().is_some_and(first)
        && key.len() <= MAX_PART
        && key.bytes().all(in_key)
        && (1..=MAX_PART).contains(&value.len())
        && value.bytes().all(in_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn fields(pairs: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        let trace = Trace::of(&headers(pairs), &[]);
        let fields = trace.fields().skip(1);
        fields
            .map(|(name, value)| (name, String::from_utf8(value).unwrap()))
            .collect()
    }

    #[test]
    fn an_id_is_taken_as_it_is_or_made_anew() {
        let of = |ids: &[&str]| {
            let pairs: Vec<_> = ids.iter().map(|id| (REQUEST_ID, *id)).collect();
            Trace::of(&headers(&pairs), &[]).request_id().to_owned()
        };
        let longest = "x".repeat(128);
        for good in ["a", "req-1", "A.b_c~d:e/f+g=h@i", &longest] {
            assert_eq!(of(&[good]), good);
        }
        let too_long = "x".repeat(129);
        let bad: [&[&str]; 9] = [
            &[],
            &[""],
            &[&too_long],
            &["a b"],
            &["a,b"],
            &["a\"b"],
            &["<a>"],
            &["\u{e9}"],
            &["a", "a"],
        ];
        for bad in bad {
            let (one, other) = (of(bad), of(bad));
            assert!(Uuid::parse_str(&one).is_ok(), "{bad:?}: {one}");
            assert_ne!(one, other, "each is new");
        }
    }

    #[test]
    fn what_the_operator_refuses_is_not_taken() {
        let sent = headers(&[
            (REQUEST_ID, "mine"),
            (TRACEPARENT, PARENT),
            (TRACESTATE, "a=1"),
        ]);
        let trace = |refused: &str| Trace::of(&sent, &[refused.to_owned()]);
        assert_ne!(trace(REQUEST_ID).request_id(), "mine");
        assert_eq!(trace(REQUEST_ID).fields().count(), 3);
        assert_eq!(trace(TRACEPARENT).fields().count(), 1);
        assert_eq!(trace(TRACESTATE).fields().count(), 2);
        assert_eq!(trace("x-other").request_id(), "mine");
    }

    #[test]
    fn a_trace_parent_is_well_formed_or_left_out() {
        let later = PARENT.replacen("00", "01", 1);
        let longer = format!("{later}-more");
        for good in [PARENT, &later, &longer] {
            assert_eq!(
                fields(&[(TRACEPARENT, good)]),
                [(TRACEPARENT, good.to_owned())]
            );
        }
        let longest = format!("{later}-{}", "x".repeat(80));
        for bad in [
            "",
            "00",
            &PARENT.to_uppercase(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace("00f067aa0ba902b7", "0000000000000000"),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &PARENT.replace('-', "_"),
            &PARENT.replace("4bf9", "4bg9"),
            &PARENT.replace("-01", "-0 "),
            &PARENT.replace("4736-00", "473-600"),
            &format!("{PARENT}-more"),
            &format!("{PARENT}x"),
            &format!("{later}x"),
            &longest,
            &format!("{}\u{e9}", &PARENT[..54]),
        ] {
            let sent = [(TRACEPARENT, bad), (TRACESTATE, "a=1")];
            assert_eq!(fields(&sent), [], "{bad}");
        }
        assert_eq!(fields(&[(TRACEPARENT, PARENT), (TRACEPARENT, PARENT)]), []);
    }

    #[test]
    fn a_trace_state_comes_with_a_parent_whole_or_not_at_all() {
        let state = |states: &[&str]| {
            let mut pairs = vec![(TRACEPARENT, PARENT)];
            pairs.extend(states.iter().map(|state| (TRACESTATE, *state)));
            let found = fields(&pairs);
            found.get(1).map(|(_, state)| state.clone())
        };
        assert_eq!(fields(&[(TRACESTATE, "a=1")]), [], "without a parent");
        let full = vec!["a=1"; 32].join(",");
        let long = format!("a={}", "x".repeat(256));
        for good in ["a=1", "1a@b/c*d-e_f=a b~!\"", "a=1 , ,b=2,", &full, &long] {
            assert_eq!(state(&[good]).as_deref(), Some(good), "{good}");
        }
        assert_eq!(state(&["a=1", "b=2"]).as_deref(), Some("a=1,b=2"));
        let crowded = vec!["a=1"; 33].join(",");
        let large = format!("a={0},b={0},c=1", "x".repeat(253));
        for bad in [
            "",
            ",",
            "a",
            "a=",
            "=1",
            "A=1",
            "-a=1",
            "a b=1",
            "a=1=2",
            "a=\u{e9}",
            "a=1,b",
            &crowded,
            &large,
            &format!("{long}x"),
        ] {
            assert_eq!(state(&[bad]), None, "{bad}");
        }
        assert_eq!(state(&["a=1", "b"]), None, "one part spoils the list");
    }
}
