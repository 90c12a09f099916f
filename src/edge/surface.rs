//! The clients' port beyond inference: which paths there are, and what the edge tells of itself.
//!
//! It decides what a request asks for by its method and its path alone, and answers whatever needs no
//! leg: the models, health, the version, the fleets, upstream's metrics, and browsers that ask before
//! they send. It reads no body but the one that asks for a delegation, and it must never tell of the fleets to a client that is not let in.

mod cluster_info;
pub mod cors;
mod delegations;
mod models;
mod routes;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::header;
use pingora::{Result, proxy::Session};
use serde_json::{Value, json};

use super::{Edge, live::Live, plan::Plan, request};
use crate::{
    config::OwnRoute,
    http::reply::{self, Failure},
    telemetry::{
        self,
        labels::{Outcome, Route},
    },
};
pub use models::Models;
pub use routes::{Asked, Own, asked};

const JSON: &str = "application/json";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a body that nobody reads may keep its connection.
const UNREAD: Duration = Duration::from_secs(5);

/// A whole answer of the edge's own.
pub struct Told {
    status: u16,
    /// `None` for an answer without a body.
    content_type: Option<&'static str>,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    outcome: Outcome,
}

impl Told {
    fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: 200,
            content_type: Some(content_type),
            headers: Vec::new(),
            body: body.into(),
            outcome: Outcome::Ok,
        }
    }

    fn json(body: &Value) -> Self {
        Self::new(JSON, body.to_string())
    }

    /// What the store of announcements says; 400 is an answer there, not a mistake.
    pub fn result(status: u16, body: &Value) -> Self {
        Self {
            status,
            ..Self::json(body)
        }
    }

    fn empty(status: u16, outcome: Outcome) -> Self {
        Self {
            status,
            content_type: None,
            headers: Vec::new(),
            body: Bytes::new(),
            outcome,
        }
    }

    /// Writes the answer, with what every answer to this request carries.
    ///
    /// # Errors
    /// Pingora's, of a client that cannot be written to.
    pub async fn write(mut self, session: &mut Session, plan: &mut Plan) -> Result<()> {
        plan.outcome = Some(self.outcome);
        self.headers.extend(plan.on_every_answer.iter().cloned());
        if session.get_header(header::EXPECT).is_none() {
            // A body is passed over after the answer. Pingora would close the connection at once, and
            // a client that is still sending would lose the answer.
            session.set_close_on_response_before_downstream_finish(false);
            session.set_total_drain_timeout(Some(UNREAD));
        }
        match self.content_type {
            Some(kind) => reply::write(session, self.status, kind, &self.headers, self.body).await,
            None => reply::write_empty(session, self.status, &self.headers).await,
        }
    }
}

impl Edge {
    /// Answers what needs no leg.
    ///
    /// # Errors
    /// 401 for a client that is not let in, 404 for a model that is not there, 503 where no worker
    /// says which models there are.
    pub(super) async fn tell(
        &self,
        session: &Session,
        plan: &mut Plan,
        own: Own,
    ) -> Result<Told, Failure> {
        let live = plan.live.clone();
        let route = own.route();
        plan.route = match route {
            OwnRoute::Models => Route::Models,
            _ => Route::Status,
        };
        live.gateway.let_in(route, &request::presented(session))?;
        Ok(match own {
            Own::Models => Told::json(&models::list(&self.known_models(&live).await?)),
            Own::Model(id) => {
                let known = self.known_models(&live).await?;
                let card = known.iter().find(|card| card.id == id);
                Told::json(&card.ok_or_else(|| Failure::no_model(&id))?.json())
            }
            Own::Health => match live.unready() {
                None => Told::empty(200, Outcome::Ok),
                Some(_) => Told::empty(503, Outcome::NoInstance),
            },
            Own::Version => Told::json(&json!({"version": env!("CARGO_PKG_VERSION")})),
            Own::ClusterInfo => Told::json(&cluster_info::of(&live, &self.discovery)),
            Own::Metrics => Told::new(EXPOSITION, telemetry::metrics().render_upstream()),
        })
    }

    async fn known_models(&self, live: &Arc<Live>) -> Result<Arc<[models::Card]>, Failure> {
        self.models.known(&self.upstreams, live).await
    }
}

/// What is allowed at a path; to a browser that asks before it sends, whether it may.
pub fn options(live: &Live, session: &Session, allow: &str) -> Told {
    let head = session.req_header();
    let mut told = Told::empty(204, Outcome::Ok);
    told.headers.push(("allow", allow.to_owned()));
    if let Some(cors) = &live.config.cors {
        told.headers.extend(cors::preflight(cors, &head.headers));
    }
    told
}
