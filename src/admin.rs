//! The operator's port: `/metrics`, `/healthz`, `/readyz`, and in the demo `/demo/faults`.
//!
//! It runs on a thread of its own, so that it answers while the edge is busy. It tells what is and
//! must never change anything but a demo's simulated workers.

mod faults;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora::{apps::http_app::ServeHttp, protocols::http::ServerSession};

use crate::{edge::Edge, simulate::worker::fault::Control, telemetry, worker::Filter};

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
    /// The simulated workers of a demo, by name.
    pub simulated: Vec<(String, Arc<Control>)>,
}

impl Admin {
    fn answer(&self, method: &Method, path: &str) -> (StatusCode, &'static str, String) {
        const TEXT: &str = "text/plain; charset=utf-8";
        const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
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
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "try /metrics, /healthz or /readyz\n".to_owned(),
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
        let head = session.req_header();
        let (status, content_type, body) = match head.uri.path() {
            "/demo/faults" if !self.simulated.is_empty() => faults::answer(
                &self.simulated,
                &head.method,
                head.uri.query().unwrap_or_default(),
            ),
            path => self.answer(&head.method, path),
        };
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
