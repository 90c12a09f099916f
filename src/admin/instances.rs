//! The instances on the operator's port: what they are worth, and emptying them.
//!
//! `GET /instances` lists them; `POST /instances/ALIAS/drain?mode=new_bindings` (or `new_requests`)
//! empties one until `DELETE` of the same path, or `POST /instances/ALIAS/undrain`. It must never obey
//! a web page that an operator happens to look at.

use http::{Method, StatusCode, header};
use pingora::http::RequestHeader;
use serde_json::{Value, json};

use super::TEXT;
use crate::{
    config::DrainMode,
    edge::{Edge, InstanceView},
};

const JSON: &str = "application/json";

type Answer = (StatusCode, &'static str, String);

/// The answer, if the request is about instances.
pub(super) fn answer(edge: Option<&Edge>, head: &RequestHeader) -> Option<Answer> {
    let edge = edge?;
    let path = head.uri.path();
    if path == "/instances" && matches!(head.method, Method::GET | Method::HEAD) {
        let instances: Vec<Value> = edge.instances().iter().map(view).collect();
        let list = json!({"instances": instances});
        return Some((StatusCode::OK, JSON, format!("{list:#}\n")));
    }
    let (alias, verb) = path.strip_prefix("/instances/")?.rsplit_once('/')?;
    let mode = match (&head.method, verb) {
        (&Method::POST, "drain") => match mode(head.uri.query()) {
            Ok(mode) => Some(mode),
            Err(told) => return Some(refused(StatusCode::BAD_REQUEST, told)),
        },
        (&Method::DELETE, "drain") | (&Method::POST, "undrain") => None,
        _ => return None,
    };
    if head.headers.contains_key(header::ORIGIN) {
        let told = "a web page may not change anything here; use another client";
        return Some(refused(StatusCode::FORBIDDEN, told));
    }
    Some(match edge.drain(&decoded(alias), mode) {
        Some(changed) => (StatusCode::OK, JSON, format!("{:#}\n", view(&changed))),
        None => refused(
            StatusCode::NOT_FOUND,
            "there is no such instance; GET /instances lists them",
        ),
    })
}

fn mode(query: Option<&str>) -> Result<DrainMode, &'static str> {
    let Some(query) = query.filter(|query| !query.is_empty()) else {
        return Ok(DrainMode::NewBindings);
    };
    let mode = query.strip_prefix("mode=").and_then(DrainMode::from_name);
    mode.ok_or("use ?mode=new_bindings (the default) or ?mode=new_requests")
}

fn view(instance: &InstanceView) -> Value {
    let standing = &instance.standing;
    json!({
        "alias": &*instance.alias,
        "fleet": instance.fleet.as_str(),
        "address": &*instance.address,
        "standing": standing.name,
        "usable": standing.usable,
        "why": standing.why,
        "draining": standing.draining.map(DrainMode::name),
        "in_flight": instance.in_flight,
    })
}

fn refused(status: StatusCode, told: &str) -> Answer {
    (status, TEXT, format!("{told}\n"))
}

/// A path's segments with their escapes resolved; what is no escape stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escape = after
            .split_at_checked(2)
            .filter(|_| byte == b'%')
            .and_then(|(hex, after)| Some((std::str::from_utf8(hex).ok()?, after)))
            .and_then(|(hex, after)| Some((u8::from_str_radix(hex, 16).ok()?, after)));
        match escape {
            Some((escaped, after)) => {
                bytes.push(escaped);
                rest = after;
            }
            None => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(decoded("a%2Fb/context-0"), "a/b/context-0");
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }
}
