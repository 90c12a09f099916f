//! `cors`: which pages of other origins may read answers.
//!
//! Nothing is allowed that is not named, and an origin is a scheme, a host and a port only. Every
//! origin together with a browser's own credentials would let any page act as whoever visits it, so
//! that is an error.

use std::time::Duration;

use http::{HeaderName, Method};

use crate::config::{
    AllowedHeaders, AllowedOrigins, CorsConfig,
    raw::{self, Field, Section},
    report::Report,
    words::shown,
};

const ANY: &str = "*";
const DAY: Duration = Duration::from_secs(24 * 3600);
const METHODS: [&str; 3] = ["GET", "HEAD", "POST"];
const EXPOSED: [&str; 2] = ["retry-after", "x-request-id"];

/// `cors`; `None` without an origin that could use it.
pub(crate) fn cors(field: Field, report: &mut Report) -> Option<CorsConfig> {
    if field.is_null() {
        return None;
    }
    let raw = raw::Cors::closed(field, report);
    let Some(allowed) = raw.allow_origins else {
        let what = "is missing; list the origins of the pages that may read answers, such as \
                    https://chat.example.com, or remove `cors`";
        report.error(&raw.at.missing("allow_origins"), what);
        return None;
    };
    let origins = origins(allowed, report);
    let mut credentials = false;
    if let Some(field) = raw.allow_credentials {
        credentials = field.boolean(report).unwrap_or(false);
        if credentials && origins == AllowedOrigins::Any {
            let what = "is true for every origin, so that any page could act as whoever visits it; \
                        list the origins in cors.allow_origins, or remove this key";
            report.error(&field.at, what);
        }
    }
    let names = |field, report: &mut Report| list(field, report, header_name);
    let default = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let max_age = raw.max_age.and_then(|field| max_age(&field, report));
    Some(CorsConfig {
        origins,
        methods: raw
            .allow_methods
            .map_or_else(|| default(&METHODS), |field| list(field, report, method)),
        headers: raw.allow_headers.map_or(AllowedHeaders::Any, |field| {
            let listed = names(field, report);
            if listed.iter().any(|name| name == ANY) {
                AllowedHeaders::Any
            } else {
                AllowedHeaders::Listed(listed)
            }
        }),
        expose_headers: raw
            .expose_headers
            .map_or_else(|| default(&EXPOSED), |field| names(field, report)),
        credentials,
        max_age: max_age.unwrap_or(Duration::from_secs(600)),
    })
}

fn origins(field: Field, report: &mut Report) -> AllowedOrigins {
    let at = field.at.clone();
    let before = report.errors();
    let listed = list(field, report, origin);
    if listed.is_empty() && report.errors() == before {
        let what = "is empty, so no page may read anything; list origins, or remove `cors`";
        report.error(&at, what);
    }
    if listed.iter().any(|origin| origin == ANY) {
        AllowedOrigins::Any
    } else {
        AllowedOrigins::Listed(listed)
    }
}

/// The items of a list as `read` has them, each once. What it cannot read it says how to write.
fn list(
    field: Field,
    report: &mut Report,
    read: impl Fn(&str) -> Result<String, &'static str>,
) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for item in field.list(report) {
        let Some(text) = item.text(report) else {
            continue;
        };
        match read(text.trim()) {
            Ok(read) if items.contains(&read) => {}
            Ok(read) => items.push(read),
            Err(how) => report.error(&item.at, format!("is {}; {how}", shown(text))),
        }
    }
    items
}

fn origin(text: &str) -> Result<String, &'static str> {
    const HOW: &str = "write an origin as browsers do, scheme, host and port if it is not the usual \
                       one, all lower case and without a slash at the end: https://chat.example.com";
    if text == ANY {
        return Ok(text.to_owned());
    }
    let (scheme, host) = text.split_once("://").ok_or(HOW)?;
    let usual = matches!(
        (scheme, host.rsplit_once(':')),
        ("https", Some((_, "443"))) | ("http", Some((_, "80")))
    );
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = !scheme.is_empty()
        && !host.is_empty()
        && !usual
        && scheme
            .bytes()
            .all(|byte| lower(byte) || b"+-.".contains(&byte))
        && host
            .bytes()
            .all(|byte| lower(byte) || b"-._:[]".contains(&byte));
    if good { Ok(text.to_owned()) } else { Err(HOW) }
}

fn method(text: &str) -> Result<String, &'static str> {
    match Method::from_bytes(text.to_ascii_uppercase().as_bytes()) {
        Ok(method) => Ok(method.to_string()),
        Err(_) => Err("write the name of a method, such as POST"),
    }
}

fn header_name(text: &str) -> Result<String, &'static str> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(_) => Err("write the name of a header, such as x-team"),
    }
}

fn max_age(field: &Field, report: &mut Report) -> Option<Duration> {
    let age = field.duration(report, Duration::ZERO..=DAY)?;
    if age.subsec_nanos() > 0 {
        report.error(&field.at, "must be whole seconds; browsers count in them");
    }
    Some(age)
}
