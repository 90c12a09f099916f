//! Refuses requests whose framing or size two HTTP programs could read differently.
//!
//! Pingora 0.9.1 accepts a few shapes that it should not (its own list is in RFC 9112 section 6.3
//! terms): a length beside a transfer coding, a coding other than `chunked`, repeated lengths, lines
//! without CR, and HTTP/1.1 without `Host`. Nominations in `Connection` that it refuses it refuses only when it
//! forwards, without an answer and after the context leg. All of them are refused here, before
//! anything else looks at the request.

use http::{HeaderMap, Method, Version, header};
use pingora::protocols::http::ServerSession;

use super::reply::Failure;
use crate::config::Limits;

/// Most options in `Connection`, over all its copies.
const MAX_CONNECTION_OPTIONS: usize = 9;

/// Checks the head of a request, before anything else looks at it. What follows one that is refused
/// is nobody's request: the connection ends.
///
/// # Errors
/// 400 for ambiguous framing, 431 for too many or too long header fields, 405 for `TRACE` and
/// `CONNECT`, 417 for an expectation that is not known.
pub fn check(session: &mut ServerSession, limits: &Limits) -> Result<(), Failure> {
    let checked = check_session(session, limits);
    if checked.is_err() {
        session.set_keepalive(None);
    }
    checked
}

fn check_session(session: &ServerSession, limits: &Limits) -> Result<(), Failure> {
    let head = session.req_header();
    if let Some(http1) = session.as_http1() {
        check_raw(&head.headers, &http1.get_headers_raw_bytes())?;
    }
    check_head(&head.method, head.version, &head.headers, limits)
}

fn check_head(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    limits: &Limits,
) -> Result<(), Failure> {
    check_size(headers, limits)?;
    check_framing(version, headers)?;
    check_connection(headers)?;
    check_expectations(headers)?;
    if method == Method::TRACE || method == Method::CONNECT {
        return Err(Failure::method_not_allowed("GET, POST"));
    }
    Ok(())
}

fn check_size(headers: &HeaderMap, limits: &Limits) -> Result<(), Failure> {
    if headers.len() > limits.max_headers {
        return Err(Failure::headers_too_large(format!(
            "The request has {} header fields; at most {} are taken.",
            headers.len(),
            limits.max_headers
        )));
    }
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if bytes > limits.max_header_bytes {
        return Err(Failure::headers_too_large(format!(
            "The request's header fields have {bytes} bytes; at most {} are taken.",
            limits.max_header_bytes
        )));
    }
    Ok(())
}

fn check_framing(version: Version, headers: &HeaderMap) -> Result<(), Failure> {
    let ambiguous = |message: &str, name: &str| {
        Err(Failure::bad_request("ambiguous_framing", message).param(Some(name.to_owned())))
    };
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter().count();
    let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    if lengths > 1 {
        return ambiguous("Content-Length is repeated.", "content-length");
    }
    if lengths > 0 && !codings.is_empty() {
        return Err(both_framings());
    }
    if codings.len() > 1
        || codings
            .iter()
            .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return ambiguous(
            "The only Transfer-Encoding taken is a single \"chunked\".",
            "transfer-encoding",
        );
    }
    if version == Version::HTTP_11 && headers.get_all(header::HOST).iter().count() != 1 {
        return ambiguous("HTTP/1.1 needs exactly one Host header.", "host");
    }
    Ok(())
}

/// Refuses a `Connection` header that names fields which must reach the worker as they were verified:
/// Pingora would take them out on the way.
///
/// # Errors
/// 400 that names the header.
pub fn refuse_nominations(
    headers: &HeaderMap,
    protected: impl Fn(&[u8]) -> bool,
) -> Result<(), Failure> {
    let values = headers.get_all(header::CONNECTION).iter();
    let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    if options.any(|option| protected(option.trim_ascii())) {
        let message = "The Connection header names an internal header.";
        let failure = Failure::bad_request("invalid_connection", message);
        return Err(failure.param(Some("connection".to_owned())));
    }
    Ok(())
}

/// Options of `Connection` name fields of this one connection; fields that say where a request goes
/// or comes from are never that.
fn check_connection(headers: &HeaderMap) -> Result<(), Failure> {
    let refused = |message: &str| {
        let failure = Failure::bad_request("invalid_connection", message);
        Err(failure.param(Some("connection".to_owned())))
    };
    let values = headers.get_all(header::CONNECTION).iter();
    let options = values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty());
    for (at, option) in options.enumerate() {
        if at == MAX_CONNECTION_OPTIONS {
            return refused("The Connection header has too many options; at most 9 are taken.");
        }
        if !option.iter().all(|byte| is_token(*byte)) {
            return refused("The Connection header holds something that is no option.");
        }
        let kept = [
            "host",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
        ];
        if kept
            .iter()
            .any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
        {
            return refused("The Connection header names a field that is not the connection's.");
        }
    }
    Ok(())
}

/// The only expectation that is met is to be told to go on (RFC 9110 section 10.1.1).
fn check_expectations(headers: &HeaderMap) -> Result<(), Failure> {
    let values = headers.get_all(header::EXPECT).iter();
    let mut all = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    if all.all(|one| one.trim_ascii().eq_ignore_ascii_case(b"100-continue")) {
        Ok(())
    } else {
        Err(Failure::expectation_failed())
    }
}

/// Checks the head as it came over HTTP/1: Pingora takes lines that end with a bare LF for lines, and
/// takes a length beside a transfer coding out of the header fields.
fn check_raw(headers: &HeaderMap, raw: &[u8]) -> Result<(), Failure> {
    let mut lines = raw.split_inclusive(|byte| *byte == b'\n');
    if !lines.all(|line| line.ends_with(b"\r\n")) {
        let message = "A line of the request's head does not end with CR LF.";
        return Err(Failure::bad_request("ambiguous_framing", message));
    }
    if !headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(());
    }
    let names_a_length = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next();
        name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"content-length"))
    };
    if raw.split(|byte| *byte == b'\n').any(names_a_length) {
        return Err(both_framings());
    }
    Ok(())
}

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn both_framings() -> Failure {
    let message = "Content-Length and Transfer-Encoding exclude each other.";
    Failure::bad_request("ambiguous_framing", message).param(Some("transfer-encoding".to_owned()))
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::config::BodyLimits;

    fn limits() -> Limits {
        Limits {
            max_in_flight: Default::default(),
            max_waiting: 1,
            max_body: BodyLimits::all(1),
            body_budget: 1,
            max_answer: 1,
            max_headers: 4,
            max_header_bytes: 200,
            max_session_id: 1,
            max_connections: 1,
            max_connections_per_address: None,
            min_body_rate: 1,
        }
    }

    fn status(headers: &[(&str, &str)], version: Version, method: Method) -> Option<u16> {
        let map = headers
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect::<Vec<_>>();
        let mut headers = HeaderMap::new();
        for (name, value) in map {
            headers.append(name, value);
        }
        check_head(&method, version, &headers, &limits())
            .err()
            .map(|failure| failure.status)
    }

    #[test]
    fn ordinary_requests_pass() {
        assert_eq!(
            status(
                &[("host", "a"), ("content-length", "3")],
                Version::HTTP_11,
                Method::POST
            ),
            None
        );
        assert_eq!(
            status(
                &[("host", "a"), ("transfer-encoding", "Chunked")],
                Version::HTTP_11,
                Method::POST
            ),
            None
        );
        assert_eq!(status(&[], Version::HTTP_2, Method::GET), None);
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for headers in [
            &[
                ("host", "a"),
                ("content-length", "3"),
                ("transfer-encoding", "chunked"),
            ][..],
            &[
                ("host", "a"),
                ("content-length", "3"),
                ("content-length", "3"),
            ],
            &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
            &[
                ("host", "a"),
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            &[("host", "a"), ("host", "a")],
            &[],
        ] {
            assert_eq!(
                status(headers, Version::HTTP_11, Method::POST),
                Some(400),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn connections_that_pingora_would_drop_are_refused() {
        let of = |value: &str| {
            let headers = [("host", "a"), ("connection", value)];
            status(&headers, Version::HTTP_11, Method::POST)
        };
        for fine in ["close", "keep-alive, x-a", "", ",", "a,b,c,d,e,f,g,h,i"] {
            assert_eq!(of(fine), None, "{fine}");
        }
        for wrong in [
            "close, Host",
            "X-Forwarded-For",
            ":authority",
            "\"x-a\"",
            "a b",
            "a,b,c,d,e,f,g,h,i,j",
        ] {
            assert_eq!(of(wrong), Some(400), "{wrong}");
        }
    }

    #[test]
    fn a_length_that_was_taken_out_is_found_in_the_head() {
        let mut headers = HeaderMap::new();
        let check = |headers: &HeaderMap, head: &str| {
            let checked = check_raw(headers, head.as_bytes());
            checked.err().map(|failure| failure.status)
        };
        let with = "POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 3\r\n\r\n";
        let without = "POST /content-length HTTP/1.1\r\nx: content-length: 3\r\n\r\n";
        assert_eq!(check(&headers, with), None, "there is no coding");
        for bare in [with.replacen('\r', "", 1), with.replacen("3\r", "3", 1)] {
            assert_eq!(check(&headers, &bare), Some(400), "{bare:?}");
        }
        headers.insert(header::TRANSFER_ENCODING, "chunked".parse().unwrap());
        assert_eq!(check(&headers, with), Some(400));
        assert_eq!(check(&headers, without), None);
    }

    #[test]
    fn only_one_expectation_is_met() {
        let of = |value: &str| {
            let headers = [("host", "a"), ("expect", value)];
            status(&headers, Version::HTTP_11, Method::POST)
        };
        for fine in ["100-continue", "100-Continue", "100-continue, 100-continue"] {
            assert_eq!(of(fine), None, "{fine}");
        }
        for unmet in ["", "200-ok", "100-continue, x", "100-continue=1", "100"] {
            assert_eq!(of(unmet), Some(417), "{unmet}");
        }
    }

    #[test]
    fn oversized_heads_and_odd_methods_are_refused() {
        let long = "x".repeat(200);
        assert_eq!(
            status(
                &[("host", "a"), ("a", &long)],
                Version::HTTP_11,
                Method::GET
            ),
            Some(431)
        );
        let many = [
            ("host", "a"),
            ("a", "1"),
            ("b", "1"),
            ("c", "1"),
            ("d", "1"),
        ];
        assert_eq!(status(&many, Version::HTTP_11, Method::GET), Some(431));
        assert_eq!(
            status(&[("host", "a")], Version::HTTP_11, Method::TRACE),
            Some(405)
        );
    }
}
