//! What browsers are told about pages of other origins.
//!
//! The browser enforces it, so it protects people who visit a page and not the fleets: a request is
//! served whatever its origin, and only what the page may do with the answer is said. An origin is
//! compared byte for byte, and never is one told that was not sent.

use http::{HeaderMap, HeaderName, header};

use crate::config::{AllowedHeaders, AllowedOrigins, CorsConfig};

/// Header fields of an answer.
type Fields = Vec<(&'static str, String)>;

/// Names that a preflight may ask for, at most.
const MOST_NAMES: usize = 64;

/// What every answer to a request with these header fields carries.
pub fn on_every_answer(cors: &CorsConfig, headers: &HeaderMap) -> Fields {
    let mut fields = Fields::new();
    if matches!(cors.origins, AllowedOrigins::Listed(_)) {
        fields.push(("vary", "Origin".to_owned()));
    }
    let Some(origin) = allowed_origin(cors, headers) else {
        return fields;
    };
    fields.push(("access-control-allow-origin", origin));
    if cors.credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    if !cors.expose_headers.is_empty() {
        let names = cors.expose_headers.join(", ");
        fields.push(("access-control-expose-headers", names));
    }
    fields
}

/// What the answer to a preflight carries beyond that; nothing for what is no preflight, or none of
/// an origin that may.
pub fn preflight(cors: &CorsConfig, headers: &HeaderMap) -> Fields {
    let asks = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || allowed_origin(cors, headers).is_none() {
        return Fields::new();
    }
    let mut fields = vec![
        ("access-control-allow-methods", cors.methods.join(", ")),
        ("access-control-max-age", cors.max_age.as_secs().to_string()),
    ];
    let names = match &cors.headers {
        AllowedHeaders::Listed(names) => names.join(", "),
        AllowedHeaders::Any => asked_names(headers).join(", "),
    };
    if !names.is_empty() {
        fields.push(("access-control-allow-headers", names));
    }
    fields
}

/// The value of `Access-Control-Allow-Origin`, if there is to be one.
fn allowed_origin(cors: &CorsConfig, headers: &HeaderMap) -> Option<String> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        return None;
    };
    match &cors.origins {
        AllowedOrigins::Any => Some("*".to_owned()),
        AllowedOrigins::Listed(listed) => {
            let same = |known: &&String| known.as_bytes() == origin.as_bytes();
            listed.iter().find(same).cloned()
        }
    }
}

/// The names that a preflight asks for, as far as they are names. A star does not stand for
/// `Authorization` in browsers, so they are told back one by one.
fn asked_names(headers: &HeaderMap) -> Vec<String> {
    let asked = headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let names = asked
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    names
        .take(MOST_NAMES)
        .map(|name| name.as_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config(origins: &[&str]) -> CorsConfig {
        let listed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        CorsConfig {
            origins: match origins {
                ["*"] => AllowedOrigins::Any,
                listed_ones => AllowedOrigins::Listed(listed(listed_ones)),
            },
            methods: listed(&["GET", "POST"]),
            headers: AllowedHeaders::Any,
            expose_headers: listed(&["x-a"]),
            credentials: true,
            max_age: Duration::from_secs(5),
        }
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn value<'f>(fields: &'f Fields, name: &str) -> Option<&'f str> {
        let mut found = fields.iter().filter(|(known, _)| *known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert_eq!(found.next(), None, "{name} twice");
        value
    }

    #[test]
    fn only_a_listed_origin_may_read() {
        const ALLOWED: &str = "access-control-allow-origin";
        let cors = config(&["https://a.example", "http://b.example:81"]);
        for (origins, allowed) in [
            (&["https://a.example"][..], true),
            (&["http://b.example:81"], true),
            (&["https://A.example"], false),
            (&["https://a.example."], false),
            (&["https://a.example:443"], false),
            (&["https://a.example.evil"], false),
            (&["http://a.example"], false),
            (&["null"], false),
            (&["https://a.example", "https://a.example"], false),
            (&[], false),
        ] {
            let fields: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
            let headers = headers(&fields);
            let told = on_every_answer(&cors, &headers);
            let expected = allowed.then(|| origins[0]);
            assert_eq!(value(&told, ALLOWED), expected, "{origins:?}");
            assert_eq!(value(&told, "vary"), Some("Origin"), "{origins:?}");
            let credentials = value(&told, "access-control-allow-credentials");
            assert_eq!(credentials.is_some(), allowed);
        }
    }

    #[test]
    fn any_origin_is_told_a_star() {
        let cors = CorsConfig {
            credentials: false,
            ..config(&["*"])
        };
        let told = on_every_answer(&cors, &headers(&[("origin", "https://x.example")]));
        assert_eq!(value(&told, "access-control-allow-origin"), Some("*"));
        assert_eq!(value(&told, "vary"), None);
        assert_eq!(value(&told, "access-control-allow-credentials"), None);
        assert!(on_every_answer(&cors, &HeaderMap::new()).is_empty());
    }

    #[test]
    fn a_preflight_is_told_what_it_may() {
        let cors = config(&["https://a.example"]);
        let asks = |more: &[(&'static str, &str)]| {
            let mut fields = vec![("origin", "https://a.example")];
            fields.extend_from_slice(more);
            preflight(&cors, &headers(&fields))
        };
        assert!(asks(&[]).is_empty(), "no preflight");
        let told = asks(&[
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "Authorization, x-b,a b,,"),
        ]);
        let names = value(&told, "access-control-allow-headers");
        assert_eq!(names, Some("authorization, x-b"));
        assert_eq!(
            value(&told, "access-control-allow-methods"),
            Some("GET, POST")
        );
        assert_eq!(value(&told, "access-control-max-age"), Some("5"));
        let other = headers(&[
            ("origin", "https://evil.example"),
            ("access-control-request-method", "POST"),
        ]);
        assert!(preflight(&cors, &other).is_empty());
    }
}
