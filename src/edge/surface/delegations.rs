//! `POST /v1/kindred/delegations`: hands a session's client the token for its sub-agents.

use pingora::proxy::Session;
use serde_json::json;

use super::Told;
use crate::{
    edge::{Edge, live::Live, request},
    http::{
        body::{self, ReadLimits},
        reply::Failure,
    },
    wire::body::BodyView,
};

/// Bytes of a question at most.
const MAX_BODY: usize = 16 * 1024;
const FIELD: &str = "session_id";

impl Edge {
    /// Hands out a delegation of the session that the body names.
    ///
    /// # Errors
    /// 401 for a client that is not known, 403 for one that needs no delegation, 404 for a session that
    /// was not seen from it, 400 for a body that names none.
    pub(in crate::edge) async fn delegate(
        &self,
        session: &mut Session,
        live: &Live,
    ) -> Result<Told, Failure> {
        let client = live.gateway.delegating(&request::presented(session))?;
        let limits = ReadLimits {
            max_body: MAX_BODY,
            budget: live.config.limits.body_budget,
            deadline: live.config.timeouts.read_body,
            min_rate: live.config.limits.min_body_rate,
        };
        let mut body = body::read(session, limits, &self.budget).await?;
        body.read_rest(session).await?;
        let view = BodyView::parse(&body.bytes)?;
        let named = view.string(FIELD)?.unwrap_or_default();
        let named = named.trim();
        if named.is_empty() {
            let message = "session_id must be the id of a session, as text.";
            let failure = Failure::bad_request("invalid_body", message);
            return Err(failure.param(Some(FIELD.to_owned())));
        }
        let token = live.gateway.delegate(&client, named)?;
        Ok(Told::json(&json!({
            "object": "kindred.delegation",
            "session_id": named,
            "token": token.text,
            "expires_at": token.expires_at,
        })))
    }
}
