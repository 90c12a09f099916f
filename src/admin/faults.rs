//! `/demo/faults`: an operator makes a simulated worker of the demo fail, to see what that looks like.
//!
//! `GET` tells which workers and faults there are and what is pending; `POST` gives an order in its
//! query. It exists in a demo only.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::simulate::worker::fault::{Control, Faults, Health, KNOWN, Manners, UnknownFault};

const JSON: &str = "application/json";

/// Answers a request for the faults of these workers.
pub(super) fn answer(
    workers: &[(String, Arc<Control>)],
    method: &Method,
    query: &str,
) -> (StatusCode, &'static str, String) {
    if method == Method::GET || method == Method::HEAD {
        return (StatusCode::OK, JSON, text(&told(workers)));
    }
    if method != Method::POST {
        let what = json!({"error": "only GET and POST are served here"});
        return (StatusCode::METHOD_NOT_ALLOWED, JSON, text(&what));
    }
    match order(workers, query) {
        Ok(told) => (StatusCode::OK, JSON, text(&told)),
        Err(what) => (StatusCode::BAD_REQUEST, JSON, text(&json!({"error": what}))),
    }
}

fn text(value: &Value) -> String {
    format!("{value:#}\n")
}

fn told(workers: &[(String, Arc<Control>)]) -> Value {
    let pending = workers
        .iter()
        .map(|(name, control)| (name.clone(), control.pending().into()));
    let known = KNOWN.map(|(form, about)| (form.to_owned(), Value::from(about)));
    json!({
        "pending": pending.collect::<serde_json::Map<_, _>>(),
        "faults": serde_json::Map::from_iter(known),
        "order": "POST /demo/faults?worker=context-0&count=1&faults=status=503,delay=1s, or with \
                  health=well, unwell or silent, and idle=500ms",
    })
}

/// Carries out an order; what is wrong with it otherwise.
fn order(workers: &[(String, Arc<Control>)], query: &str) -> Result<Value, String> {
    let (mut name, mut count, mut faults) = (None, 1, None);
    let (mut health, mut idle) = (None, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "worker" => name = Some(value.into_owned()),
            "count" => count = value.parse().map_err(|_| "count is not a number")?,
            "faults" => {
                let parsed = value.parse::<Faults>();
                faults = Some(parsed.map_err(|error: UnknownFault| error.to_string())?);
            }
            "health" => {
                health = Some(match &*value {
                    "well" => Health::Well,
                    "unwell" => Health::Unwell,
                    "silent" => Health::Silent,
                    _ => return Err("health is well, unwell or silent".to_owned()),
                });
            }
            "idle" => {
                let parsed = humantime::parse_duration(&value);
                idle = Some(parsed.map_err(|_| "idle is a duration such as 500ms")?);
            }
            other => return Err(format!("{other} is not known; see GET /demo/faults")),
        }
    }
    let found = workers
        .iter()
        .find(|(known, _)| Some(known) == name.as_ref());
    let (_, control) = found.ok_or_else(|| {
        let names: Vec<_> = workers.iter().map(|(name, _)| name.as_str()).collect();
        format!("worker is one of {}", names.join(", "))
    })?;
    if health.is_some() || idle.is_some() {
        let now = control.manners();
        control.behave(Manners {
            health: health.unwrap_or(now.health),
            idle: idle.or(now.idle),
        });
    }
    // A count of 0 withdraws what is pending, and needs no faults.
    if let Some(faults) = faults.or((count == 0).then(Faults::default)) {
        control.plan(count, faults);
    }
    Ok(json!({"pending": control.pending()}))
}
