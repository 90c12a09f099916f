//! Everything that is not a request to the engine: upstream's operational routes, and the
//! simulation's own under `/simulate/`.
//!
//! Reading `/metrics` or `/kv_cache_events` empties them, as upstream's. The simulation's routes
//! exist only here; nothing in front of a worker may need them.

use std::time::Duration;

use http::{Method, StatusCode};
use pingora::protocols::http::ServerSession;
use serde_json::{Map, Value, json};

use super::{
    SimulatedWorker,
    fault::{Faults, Health, Manners, UnknownFault},
    fields::complaint,
    handover::info_endpoint,
    reply::{Ended, Refusal, attend, send, send_json},
};
use crate::{simulate::engine::tokens::tokenize, wire::Role};

/// What `GET /version` says; not a version of any real worker.
const VERSION: &str = "1.4.0-simulated";

/// Where upstream's workers tell the tokens of a text.
const TOKENIZE: &str = "/_internal/tokenize";

/// Largest body of the other routes.
const LARGEST_ORDER: usize = 64 * 1024;

/// Time that upstream's clock probe takes.
const CLOCK_PROBE: Duration = Duration::from_millis(200);

/// The methods of a route, if there is one at `path`.
fn methods(path: &str) -> Option<&'static [Method]> {
    Some(match path {
        "/health" | "/health_generate" | "/version" | "/v1/models" | "/server_info"
        | "/metrics" | "/simulate/state" => &[Method::GET],
        "/kv_cache_events" | TOKENIZE | "/simulate/fault" | "/simulate/manners" => &[Method::POST],
        "/steady_clock_offset" => &[Method::GET, Method::POST],
        "/simulate/requests" => &[Method::GET, Method::DELETE],
        _ => return None,
    })
}

/// Upstream's answer to a method that a route does not have.
pub(super) fn not_allowed() -> Refusal {
    Refusal {
        status: StatusCode::METHOD_NOT_ALLOWED,
        body: json!({"detail": "Method Not Allowed"}),
    }
}

impl SimulatedWorker {
    /// Answers a request that is none to the engine.
    pub(super) async fn inspect(
        &self,
        session: &mut ServerSession,
        path: &str,
    ) -> Result<(), Ended> {
        let Some(methods) = methods(path) else {
            let body = json!({"detail": "Not Found"});
            return send_json(session, StatusCode::NOT_FOUND, &body).await;
        };
        let method = session.req_header().method.clone();
        if !methods.contains(&method) {
            return refuse_method(session, methods).await;
        }
        if !path.starts_with("/simulate/") && !path.starts_with("/health") {
            self.config.recorder.note(session.req_header());
        }
        let largest = match path {
            TOKENIZE => self.config.max_body,
            _ => LARGEST_ORDER,
        };
        let order = read_order(session, largest).await?;
        match (path, method) {
            ("/health" | "/health_generate", _) => self.health(session).await,
            ("/steady_clock_offset", method) => self.clock(session, &method, &order).await,
            (TOKENIZE, _) => answer(session, tokens_of(&order)).await,
            ("/simulate/fault", _) => answer(session, self.plan_faults(&order)).await,
            ("/simulate/manners", _) => answer(session, self.behave(&order)).await,
            (path, method) => {
                let answer = self.report(session, path, &method);
                send_json(session, StatusCode::OK, &answer).await
            }
        }
    }

    async fn health(&self, session: &mut ServerSession) -> Result<(), Ended> {
        let status = match self.config.control.manners().health {
            Health::Well => StatusCode::OK,
            Health::Unwell => StatusCode::SERVICE_UNAVAILABLE,
            Health::Silent => attend(session, std::future::pending()).await?,
        };
        send(session, status, &[], Vec::new().into()).await
    }

    fn report(&self, session: &ServerSession, path: &str, method: &Method) -> Value {
        match path {
            "/version" => json!({"version": VERSION}),
            "/v1/models" => json!({"object": "list", "data": [{
                "id": self.config.model,
                "object": "model",
                "created": 0,
                "owned_by": "simulated",
            }]}),
            "/server_info" => json!({
                "disaggregated_params": self.transceiver(),
                "max_batch_size": null,
                "kv_cache_hash_algo": "v1_block_key",
                "tokens_per_block": self.engine.config().block_size,
            }),
            "/metrics" => Value::Array(self.engine.take_statistics()),
            "/kv_cache_events" => Value::Array(self.engine.take_events()),
            "/simulate/state" => self.state(),
            _ if method == Method::DELETE => {
                self.config.recorder.clear();
                json!({"requests": [], "last": self.config.recorder.arrivals()})
            }
            _ => json!({
                "requests": self.config.recorder.since(since(session)),
                "last": self.config.recorder.arrivals(),
            }),
        }
    }

    /// What a context worker tells for generation requests that come first (specification sections
    /// 4.5 and 6.3), with the member that no request model knows.
    fn transceiver(&self) -> Value {
        if self.config.role != Role::Context {
            return Value::Null;
        }
        json!({
            "ctx_info_endpoint": [info_endpoint(&self.config.name)],
            "ctx_endpoint_generation": "1",
        })
    }

    fn state(&self) -> Value {
        let snapshot = self.engine.snapshot();
        json!({
            "name": self.config.name,
            "role": format!("{:?}", self.config.role).to_uppercase(),
            "active": snapshot.active,
            "cache_blocks": snapshot.cache_blocks,
            "completed": snapshot.completed,
            "cancelled": snapshot.cancelled,
            "arrivals": self.config.recorder.arrivals(),
            "planned_faults": self.config.control.pending(),
            "transfers_waiting": self.config.exchange.as_ref().map(|exchange| exchange.waiting()),
        })
    }

    /// `{"next": N, "fault": "…"}`: the next N requests go wrong like this; 0 withdraws all orders.
    fn plan_faults(&self, order: &[u8]) -> Result<Value, Refusal> {
        let wrong = || Refusal::invalid("give {\"next\": COUNT, \"fault\": \"…\"}");
        let order: Map<String, Value> = serde_json::from_slice(order).map_err(|_| wrong())?;
        let next = order
            .get("next")
            .map_or(Some(1), Value::as_u64)
            .ok_or_else(wrong)?;
        let fault = order.get("fault").map_or(Some(""), Value::as_str);
        let faults: Faults = fault
            .ok_or_else(wrong)?
            .parse()
            .map_err(|error: UnknownFault| Refusal::invalid(error.to_string()))?;
        let planned = self.config.control.plan(next, faults);
        Ok(json!({"planned_faults": planned}))
    }

    /// `{"health": "well" | "unwell" | "silent", "idle": "500ms" | null}`: how it behaves from now on.
    fn behave(&self, order: &[u8]) -> Result<Value, Refusal> {
        let wrong = || {
            let form = "give {\"health\": \"well\", \"unwell\" or \"silent\", \"idle\": \"500ms\" or null}";
            Refusal::invalid(form)
        };
        let order: Map<String, Value> = serde_json::from_slice(order).map_err(|_| wrong())?;
        let health = match order.get("health").and_then(Value::as_str) {
            None | Some("well") => Health::Well,
            Some("unwell") => Health::Unwell,
            Some("silent") => Health::Silent,
            Some(_) => return Err(wrong()),
        };
        let idle = order.get("idle").and_then(Value::as_str);
        let idle = idle.map(humantime::parse_duration).transpose();
        let idle = idle.map_err(|_| wrong())?;
        self.config.control.behave(Manners { health, idle });
        Ok(json!({}))
    }

    /// Upstream's clock synchronisation (specification section 7.5). The offset that is posted
    /// changes nothing here.
    async fn clock(
        &self,
        session: &mut ServerSession,
        method: &Method,
        order: &[u8],
    ) -> Result<(), Ended> {
        let now = || self.started.elapsed().as_secs_f64();
        if method == Method::GET {
            let received = now();
            attend(session, tokio::time::sleep(CLOCK_PROBE)).await?;
            let answer = json!({"receive_ts": received, "transmit_ts": now()});
            return send_json(session, StatusCode::OK, &answer).await;
        }
        let order: Option<Value> = serde_json::from_slice(order).ok();
        if order.is_some_and(|order| order["offset"].is_number()) {
            return send_json(session, StatusCode::OK, &Value::Null).await;
        }
        let complaint = complaint("missing", &[], "offset", "Field required");
        let refusal = Refusal::invalid(complaint);
        send_json(session, refusal.status, &refusal.body).await
    }
}

async fn answer(session: &mut ServerSession, answer: Result<Value, Refusal>) -> Result<(), Ended> {
    match answer {
        Ok(answer) => send_json(session, StatusCode::OK, &answer).await,
        Err(refusal) => send_json(session, refusal.status, &refusal.body).await,
    }
}

/// `{"prompt": "…"}` as the tokens that a completion with this prompt has.
fn tokens_of(order: &[u8]) -> Result<Value, Refusal> {
    let order: Map<String, Value> = serde_json::from_slice(order)
        .map_err(|error| Refusal::invalid(format!("JSON decode error: {error}")))?;
    let Some(prompt) = order.get("prompt").and_then(Value::as_str) else {
        let complaint = complaint(
            "string_type",
            &[],
            "prompt",
            "Input should be a valid string",
        );
        return Err(Refusal::invalid(complaint));
    };
    let mut tokens = Vec::new();
    tokenize(prompt, &mut tokens);
    Ok(json!({"count": tokens.len(), "tokens": tokens}))
}

/// The body of an order, cut at its largest size.
async fn read_order(session: &mut ServerSession, largest: usize) -> Result<Vec<u8>, Ended> {
    let mut order = Vec::new();
    while let Some(part) = session
        .read_request_body()
        .await
        .map_err(|_| Ended::ClientLeft)?
    {
        let room = largest.saturating_sub(order.len());
        order.extend_from_slice(part.get(..room).unwrap_or(&part));
    }
    Ok(order)
}

async fn refuse_method(session: &mut ServerSession, methods: &[Method]) -> Result<(), Ended> {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let Refusal { status, body } = not_allowed();
    send(
        session,
        status,
        &[("allow", names.join(", "))],
        body.to_string().into(),
    )
    .await
}

/// The number of `?since=N`.
fn since(session: &ServerSession) -> u64 {
    let query = session.req_header().uri.query().unwrap_or_default();
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("since="))
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}
