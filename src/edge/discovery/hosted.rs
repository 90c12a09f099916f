//! The five routes by which workers reach the store that is hosted here (specification section 7.2).
//!
//! Decides what a request for the store must hold and who may make one. Answers are upstream's, which
//! its workers read: `{"result": x}`, with status 400 whenever `x` is false, null or empty.

use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, Method, header};
use pingora::proxy::Session;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq;
use tokio::time::timeout;

use super::Discovery;
use crate::{
    config::{DiscoveryConfig, StoreConfig},
    fleet::discovery::workers_prefix,
    http::reply::Failure,
    telemetry::labels::Outcome,
};

/// Bytes of a body at most.
const MAX_BODY: usize = 64 * 1024;
/// How long a body is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// One of the routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRoute {
    Set,
    Get,
    Delete,
    Expire,
    GetPrefix,
}

impl StoreRoute {
    const ALL: [(&'static str, Self, &'static str); 5] = [
        ("/set", Self::Set, "POST"),
        ("/get", Self::Get, "GET"),
        ("/delete", Self::Delete, "DELETE"),
        ("/expire", Self::Expire, "GET"),
        ("/get_prefix", Self::GetPrefix, "GET"),
    ];

    /// The route at a path.
    pub fn of_path(path: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, ..)| *known == path);
        found.map(|(_, route, _)| *route)
    }

    /// The only method that is taken there.
    pub fn method(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, route, _)| *route == self);
        found.map_or("GET", |(.., method)| *method)
    }
}

/// What `POST /set` takes. `expire_time` is by a clock that workers do not share, so it is passed over.
#[derive(Deserialize)]
struct Set {
    key: String,
    value: String,
    #[serde(default = "never")]
    ttl: f64,
    #[serde(default)]
    overwrite_if_exists: bool,
}

fn never() -> f64 {
    -1.0
}

impl Discovery {
    /// Answers a request for the store: a status and `{"result": x}`.
    ///
    /// # Errors
    /// 404 where none is hosted here, 403 without the token, 405 for another method, 400 for a request
    /// that is none.
    pub async fn answer(
        &self,
        config: Option<&DiscoveryConfig>,
        session: &mut Session,
        route: StoreRoute,
    ) -> Result<(u16, Value), Failure> {
        let config = config.filter(|config| config.store == StoreConfig::Hosted);
        let config = config.ok_or_else(Failure::not_found)?;
        let head = session.req_header();
        if head.method.as_str() != route.method() {
            return Err(Failure::method_not_allowed(route.method()));
        }
        let_in(config, &head.headers)?;
        let query = head.uri.query().unwrap_or_default().to_owned();
        let body = match head.method {
            Method::POST => read(session).await?,
            _ => BytesMut::new(),
        };
        let prefix = workers_prefix(&config.cluster_name);
        let result = operate(self, &prefix, route, &query, &body)?;
        let status = if is_falsy(&result) { 400 } else { 200 };
        Ok((status, json!({ "result": result })))
    }
}

fn let_in(config: &DiscoveryConfig, headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(header::ORIGIN) {
        return Err(forbidden("A web page may not announce workers."));
    }
    let Some(token) = &config.auth_token else {
        return Ok(());
    };
    let given = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.as_bytes());
    let given = given.and_then(|given| given.strip_prefix(b"Bearer "));
    let good = given.is_some_and(|given| given.ct_eq(token.expose_secret().as_bytes()).into());
    if good {
        return Ok(());
    }
    Err(forbidden(
        "Workers announce themselves here with the token of disagg_cluster.auth_token.",
    ))
}

fn forbidden(message: &str) -> Failure {
    let outcome = Outcome::Unauthenticated;
    Failure::new(403, "permission_error", "forbidden", outcome, message)
}

async fn read(session: &mut Session) -> Result<BytesMut, Failure> {
    let mut body = BytesMut::new();
    let reading = async {
        while let Some(part) = session
            .read_request_body()
            .await
            .map_err(|_| Failure::client_left())?
        {
            if body.len() + part.len() > MAX_BODY {
                return Err(Failure::too_large(MAX_BODY, None));
            }
            body.extend_from_slice(&part);
        }
        Ok(())
    };
    let read = timeout(PATIENCE, reading).await;
    read.map_err(|_| Failure::body_too_slow(PATIENCE.as_secs_f64()))??;
    Ok(body)
}

fn operate(
    discovery: &Discovery,
    prefix: &str,
    route: StoreRoute,
    query: &str,
    body: &[u8],
) -> Result<Value, Failure> {
    let field = |name: &str| -> Result<String, Failure> {
        let mut fields = form_urlencoded::parse(query.as_bytes());
        let found = fields.find(|(known, _)| known == name);
        let missing =
            || Failure::bad_request("invalid_request", format!("The query has no {name}."));
        found
            .map(|(_, value)| value.into_owned())
            .ok_or_else(missing)
    };
    Ok(match route {
        StoreRoute::Set => {
            let set: Set = serde_json::from_slice(body).map_err(|error| {
                Failure::bad_request(
                    "invalid_body",
                    format!("The body is no announcement: {error}."),
                )
            })?;
            let overwrite = set.overwrite_if_exists;
            let change = discovery.with_store(prefix, |store, now| {
                let change = store.set(&set.key, &set.value, ttl(set.ttl), overwrite, now);
                (change.is_some(), change.into_iter().collect())
            });
            change.into()
        }
        StoreRoute::Get => {
            let key = field("key")?;
            let value = discovery.with_store(prefix, |store, now| {
                (store.get(&key, now).map(str::to_owned), Vec::new())
            });
            value.into()
        }
        StoreRoute::Delete => {
            let key = field("key")?;
            let gone = discovery.with_store(prefix, |store, _| {
                let change = store.delete(&key);
                (change.is_some(), change.into_iter().collect())
            });
            gone.into()
        }
        StoreRoute::Expire => {
            let (key, text) = (field("key")?, field("ttl")?);
            let seconds: f64 = text.parse().map_err(|_| {
                Failure::bad_request("invalid_request", "ttl is not a number of seconds.")
            })?;
            let kept = discovery.with_store(prefix, |store, now| {
                (store.expire(&key, ttl(seconds), now), Vec::new())
            });
            kept.into()
        }
        StoreRoute::GetPrefix => {
            let wanted = field("key_prefix")?;
            let keys_only = field("keys_only").is_ok_and(|flag| is_true(&flag));
            let found: Map<String, Value> = discovery.with_store(prefix, |store, now| {
                let found = store.with_prefix(&wanted, now).into_iter();
                let value = |value: &str| if keys_only { "".into() } else { value.into() };
                (
                    found
                        .map(|(key, text)| (key.to_owned(), value(text)))
                        .collect(),
                    Vec::new(),
                )
            });
            found.into()
        }
    })
}

/// Nothing for what is not positive: such a key never expires.
fn ttl(seconds: f64) -> Option<Duration> {
    let positive = Some(seconds).filter(|seconds| *seconds > 0.0);
    positive.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn is_true(flag: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&flag.to_ascii_lowercase().as_str())
}

fn is_falsy(result: &Value) -> bool {
    match result {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
