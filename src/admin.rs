//! The operator's port: `/metrics`, `/healthz`, `/readyz`, `/instances`, `/config`, and in the demo
//! `/demo/faults`.
//!
//! It runs on a thread of its own, so that it answers while the edge is busy. It tells what is; all
//! that can be changed here is which instances are being emptied (`instances`), and how a demo's
//! simulated workers fail (`faults`).

mod faults;
mod instances;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora::{apps::http_app::ServeHttp, http::RequestHeader, protocols::http::ServerSession};

use crate::{
    config::Config, edge::Edge, simulate::worker::fault::Control, telemetry, worker::Filter,
};

const TEXT: &str = "text/plain; charset=utf-8";
/// RFC 9512 section 2.1.
const YAML: &str = "application/yaml";

/// Whether this process wants new requests.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    draining: Arc<AtomicBool>,
}

impl Readiness {
    /// From now on `/readyz` answers 503.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// What the operator's port looks at.
pub struct Admin {
    pub edge: Option<Arc<Edge>>,
    pub filters: Vec<Arc<Filter>>,
    pub readiness: Readiness,
    /// What `/config` shows; a reload swaps it.
    pub running: Arc<ArcSwap<Config>>,
    /// The simulated workers of a demo, by name.
    pub simulated: Vec<(String, Arc<Control>)>,
}

impl Admin {
    fn answer(&self, head: &RequestHeader) -> (StatusCode, &'static str, String) {
        const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
        let (method, path) = (&head.method, head.uri.path());
        if let Some(told) = instances::answer(self.edge.as_deref(), head) {
            return told;
        }
        if path == "/demo/faults" && !self.simulated.is_empty() {
            let query = head.uri.query().unwrap_or_default();
            return faults::answer(&self.simulated, method, query);
        }
        if method != Method::GET && method != Method::HEAD {
            return (
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "only GET is served here\n".to_owned(),
            );
        }
        match path {
            "/metrics" => (StatusCode::OK, EXPOSITION, self.metrics()),
            "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" => match self.unready() {
                None => (StatusCode::OK, TEXT, "ready\n".to_owned()),
                Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
            },
            "/config" => {
                let config = self.running.load().to_yaml_masked();
                (StatusCode::OK, YAML, config)
            }
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "try /metrics, /healthz, /readyz, /instances or /config\n".to_owned(),
            ),
        }
    }

    fn unready(&self) -> Option<String> {
        if self.readiness.is_draining() {
            return Some("draining".to_owned());
        }
        let unready = self.edge.as_ref().and_then(|edge| edge.unready());
        unready.map(|unready| unready.to_string())
    }

    /// Gauges that follow from state are taken at the time of the scrape, so that they cannot drift.
    fn metrics(&self) -> String {
        if let Some(edge) = &self.edge {
            edge.export();
        }
        for filter in &self.filters {
            filter.export();
        }
        telemetry::metrics().render()
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        crate::http::connection::head_is_read();
        let head = session.req_header();
        let (status, content_type, body) = self.answer(head);
        let length = body.len();
        let body = if head.method == Method::HEAD {
            Vec::new()
        } else {
            body.into_bytes()
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            let methods = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(header::ALLOW, methods);
        }
        response
    }
}
