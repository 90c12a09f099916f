//! The trust boundary: who is asking, and which of their headers count.
//!
//! It recognises the client, names every header that may not come from one, and decides whether a
//! request may name a parent session. It must never let a client's own copy of an internal header
//! pass, never turn an unauthorised claim into an error, and never tell a client why its key is not
//! the right one. It knows plain header maps only; the caller removes what it names.

pub mod claims;
pub mod client;
pub mod delegation;
pub mod isolation;
pub mod limits;
pub mod lineage;
pub mod prune;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::{
    config::{Config, GatewayConfig, Nested, OwnRoute, ParentSource, SubagentPolicy},
    telemetry::{
        labels::{ClaimOutcome, Label, Outcome, PrunedField},
        metrics,
    },
    wire::{
        body::BodyView,
        conversation,
        headers::{self, CONVERSATION_ID_HEADERS, HeaderSource, strip},
        pruning,
    },
};

use claims::{Claim, Heard, Sources};
use client::Clients;
pub use client::{Client, ClientId};
use delegation::{Delegations, Token};
pub use isolation::Isolation;
use lineage::{Lineage, Root, Seconds};
use prune::Pruner;

/// Why a request may not go on; `http/reply` turns it into an answer in OpenAI's shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub status: StatusCode,
    /// OpenAI's `error.code`.
    pub code: &'static str,
    /// OpenAI's `error.type`.
    pub kind: &'static str,
    /// What is wrong and what to do, for the person behind the client.
    pub message: String,
    /// OpenAI's `error.param`: the header or field at fault.
    pub param: Option<String>,
    /// The answer's `WWW-Authenticate`.
    pub www_authenticate: Option<&'static str>,
    /// Further header fields of the answer.
    pub headers: Box<[(&'static str, String)]>,
    /// How the request counts in the metrics.
    pub outcome: Outcome,
}

impl Refusal {
    /// A 400 about one header or body field.
    pub fn bad_id(place: &str, problem: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code: "invalid_session_id",
            kind: "invalid_request_error",
            message: format!("The session id in `{place}` {problem}."),
            param: Some(place.to_owned()),
            www_authenticate: None,
            headers: Box::default(),
            outcome: Outcome::ClientError,
        }
    }

    /// A 403 for a client that may not have a delegation, and has no use for one.
    fn no_delegation(why: &str) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            code: "no_delegation",
            kind: "permission_error",
            message: format!("No delegation is handed out: {why}."),
            param: None,
            www_authenticate: None,
            headers: Box::default(),
            outcome: Outcome::ClientError,
        }
    }

    /// A 404 for a session that was not seen from the client.
    fn unknown_session() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: "unknown_session",
            kind: "invalid_request_error",
            message: "This session was not seen here of late; send its own turn first.".to_owned(),
            param: Some("session_id".to_owned()),
            www_authenticate: None,
            headers: Box::default(),
            outcome: Outcome::ClientError,
        }
    }
}

/// What says who sent a request.
#[derive(Debug, Clone, Copy)]
pub struct Presented<'a> {
    pub headers: &'a HeaderMap,
    /// The other end of the connection; `None` where it cannot be told.
    pub address: Option<IpAddr>,
    /// The names in the certificate that the connection was opened with; empty without one.
    pub certificate: &'a [String],
}

impl<'a> Presented<'a> {
    /// Header fields alone.
    pub fn headers(headers: &'a HeaderMap) -> Self {
        Self {
            headers,
            address: None,
            certificate: &[],
        }
    }
}

/// A request that may go on to its body.
#[derive(Debug)]
pub struct Admission {
    /// Who sent it.
    pub client: Client,
    /// Headers to remove from the request now, before anything else reads it.
    pub remove: Vec<HeaderName>,
    /// The `Connection` header to set after the removals, where it nominated internal headers.
    pub connection: Option<HeaderValue>,
    claim: Heard,
    /// The delegation that came with the claim; of several copies none counts.
    delegation: Option<String>,
}

/// What became of a request's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// The session that the request is to follow.
    pub parent: Option<String>,
    pub outcome: ClaimOutcome,
    /// What lets the session's own sub-agents name it, where the answer is to carry that.
    pub delegation: Option<String>,
}

/// The boundary that one configuration describes. A request asks the same `Gateway` from its head
/// to its end; a reload builds the next one.
#[derive(Debug)]
pub struct Gateway {
    pruner: Pruner,
    sources: Sources,
    max_session_id: usize,
    /// `None` where the file has no `gateway` section.
    boundary: Option<Boundary>,
}

#[derive(Debug)]
struct Boundary {
    clients: Clients,
    /// What needs no credentials.
    open_routes: Vec<OwnRoute>,
    lineage: Arc<Lineage>,
    /// How long after its last use a session is its client's.
    owned_ttl: Duration,
    nested: Nested,
    delegations: Delegations,
    isolation: Option<Isolation>,
}

impl Boundary {
    fn build(whole: &Config, config: &GatewayConfig, previous: Option<&Self>) -> Self {
        let edge = whole.edge.as_ref();
        let keys = edge.map_or(&[][..], |edge| &edge.internal_request_auth_keys);
        let lineage = match previous {
            Some(previous) => {
                previous.lineage.set_capacity(config.max_sessions);
                Arc::clone(&previous.lineage)
            }
            None => Arc::new(Lineage::new(config.max_sessions)),
        };
        lineage.set_share(config.table_share());
        Self {
            clients: Clients::new(config, previous.map(|previous| &previous.clients)),
            open_routes: config.open_routes.clone(),
            lineage,
            owned_ttl: config.owned_ttl,
            nested: edge.map(|edge| edge.affinity.nested).unwrap_or_default(),
            delegations: Delegations::new(&config.delegation, keys),
            isolation: config
                .isolates()
                .then(|| Isolation::new(keys.first(), config.namespace_conversation_ids))
                .flatten(),
        }
    }
}

impl Gateway {
    /// The boundary at start-up, with no session seen yet.
    pub fn new(config: &Config) -> Self {
        Self::rebuild(config, None)
    }

    /// The boundary after a reload: the sessions that `previous` has seen stay seen, by client name.
    pub fn rebuild(config: &Config, previous: Option<&Self>) -> Self {
        let parent_header = config
            .edge
            .as_ref()
            .and_then(|edge| edge.affinity.parent_header.clone());
        let configured = config
            .gateway
            .as_ref()
            .map_or(&[][..], |gateway| &gateway.prune_headers);
        let previous = previous.and_then(|gateway| gateway.boundary.as_ref());
        let sources = match (&config.gateway, &parent_header) {
            (Some(gateway), header) => gateway.sources(header.as_deref()),
            (None, Some(header)) => vec![ParentSource::Header(header.clone())],
            // Nothing is followed; what is claimed is still told.
            (None, None) => GatewayConfig::default().sources(None),
        };
        let trusting = config.gateway.is_none();
        let sources = Sources::new(sources, trusting, parent_header.is_some());
        let named = sources.headers().chain(parent_header.as_deref());
        let pruner = Pruner::new(named, configured);
        Self {
            pruner: if trusting {
                pruner.trusting(parent_header.as_deref())
            } else {
                pruner
            },
            sources,
            max_session_id: config.limits.max_session_id,
            boundary: config
                .gateway
                .as_ref()
                .map(|gateway| Boundary::build(config, gateway, previous)),
        }
    }

    /// Looks at a request's headers before its body is read: what to remove, who sent it, what it
    /// claims. Counts what it prunes and how the client was recognised.
    ///
    /// # Errors
    /// 401 without usable credentials, 403 for those of nobody who is known, 429 for an address that
    /// failed too often; 400 for a session id that is too long or holds control
    /// characters.
    pub fn admit(&self, presented: &Presented<'_>) -> Result<Admission, Refusal> {
        let headers = presented.headers;
        let pruned = self.pruner.prune(headers);
        let client = match &self.boundary {
            Some(boundary) => boundary.clients.identify(presented)?,
            None => Client::trusted(),
        };
        self.check_session_headers(headers)?;
        Ok(Admission {
            client,
            remove: pruned.remove,
            connection: pruned.connection,
            claim: self.sources.hear(headers),
            delegation: delegation_of(headers),
        })
    }

    /// The clients, where there is a `gateway` section.
    pub fn clients(&self) -> Option<&Clients> {
        Some(&self.boundary.as_ref()?.clients)
    }

    /// Lets a request in that asks what the edge tells of itself, and counts how its client was
    /// recognised where it has to be one.
    ///
    /// # Errors
    /// 401 without usable credentials for what is not open to everybody.
    pub fn let_in(&self, route: OwnRoute, presented: &Presented<'_>) -> Result<(), Refusal> {
        match &self.boundary {
            Some(boundary) if !boundary.open_routes.contains(&route) => {
                boundary.clients.identify(presented).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a session id that is too long or holds control characters; `place` is the header or
    /// body field it came from. For ids in the body, which [`Gateway::admit`] cannot see.
    ///
    /// # Errors
    /// 400 that names `place`.
    pub fn check_session_id(&self, id: &str, place: &str) -> Result<(), Refusal> {
        self.check_id(id, id.len(), place)
    }

    fn check_id(&self, id: &str, bytes: usize, place: &str) -> Result<(), Refusal> {
        let most = self.max_session_id;
        if bytes > most {
            let problem = format!("has {bytes} bytes; at most {most} are allowed");
            return Err(Refusal::bad_id(place, &problem));
        }
        // Not the characters U+0080 to U+009F: in a header they are parts of UTF-8 sequences.
        if id.contains(|c: char| c.is_ascii_control()) {
            let problem = "holds control characters; send printable text";
            return Err(Refusal::bad_id(place, problem));
        }
        Ok(())
    }

    /// A body without the fields that a client may not set, counted; `None` where there are none.
    pub fn prune_body(&self, view: &BodyView<'_>) -> Option<Vec<u8>> {
        let pruned = pruning::prune(view)?;
        for field in pruned.fields.into_iter().filter_map(PrunedField::from_text) {
            metrics().pruned_fields.inc(field);
        }
        Some(pruned.body)
    }

    /// Decides the claim of an admitted request, once its body and its own conversation id are known,
    /// and notes that the client has used that session. Counts the outcome; a claim that is dropped is
    /// logged with the client's name and both ids.
    ///
    /// # Errors
    /// 400 for a parent's id in the body that is too long or holds control characters.
    pub fn authorise(
        &self,
        admission: &Admission,
        view: &BodyView<'_>,
        conversation_id: Option<&str>,
    ) -> Result<Family, Refusal> {
        let check = |id: &str, place: &str| self.check_session_id(id, place);
        let claim = self.sources.settle(admission.claim.clone(), view, check)?;
        let session = conversation_id.map(|id| conversation::as_claimed(view, id));
        let session = session.as_deref();
        let (outcome, parent) = self.decide(admission, &claim, session);
        metrics().parent_claims.inc(outcome);
        let mut delegation = None;
        if let (Some(boundary), Some(session)) = (&self.boundary, session) {
            let (client, now) = (&admission.client, Seconds::now());
            let root = parent.as_deref();
            boundary.lineage.record(client, session, root, now);
            let handed_out = boundary.delegations.on_answers && root.is_none();
            delegation = handed_out
                .then(|| boundary.delegate(client, session))
                .flatten();
        }
        if outcome.is_dropped() {
            let named = match &claim {
                Claim::Named(named) => named.as_str(),
                Claim::Absent | Claim::Disabled | Claim::Ambiguous => "",
            };
            // Ids are fields and not part of the message: as fields they are escaped.
            tracing::info!(
                client = &*admission.client.name,
                session = conversation_id.unwrap_or_default(),
                parent = named,
                reason = outcome.as_str(),
                "dropped a claim to a parent session"
            );
        }
        Ok(Family {
            parent,
            outcome,
            delegation: delegation.map(|token| token.text),
        })
    }

    /// What becomes of a claim, and whom the request is to follow.
    fn decide(
        &self,
        admission: &Admission,
        claim: &Claim,
        session: Option<&str>,
    ) -> (ClaimOutcome, Option<String>) {
        let dropped = |outcome| (outcome, None);
        let parent = match claim {
            Claim::Absent => return dropped(ClaimOutcome::None),
            Claim::Disabled => return dropped(ClaimOutcome::Disabled),
            Claim::Ambiguous => return dropped(ClaimOutcome::Ambiguous),
            Claim::Named(parent) => parent.as_str(),
        };
        let Some(boundary) = &self.boundary else {
            return (ClaimOutcome::Trusted, Some(parent.to_owned()));
        };
        if session == Some(parent) {
            return dropped(ClaimOutcome::SelfNamed);
        }
        match boundary.judge(admission, parent) {
            ClaimOutcome::Authorised => {}
            refused => return dropped(refused),
        }
        let (client, ttl) = (&admission.client, boundary.owned_ttl);
        let asked = (session, parent);
        match (
            boundary.lineage.root(client, asked, ttl, Seconds::now()),
            boundary.nested,
        ) {
            (Root::Itself, _) => (ClaimOutcome::Authorised, Some(parent.to_owned())),
            (Root::Session(root), Nested::Root) => (ClaimOutcome::Root, Some(root.into())),
            (Root::Session(_) | Root::Circle, _) => dropped(ClaimOutcome::Nested),
        }
    }

    /// How the sessions of clients are kept apart; `None` where equal ids are one session.
    pub fn isolation(&self) -> Option<&Isolation> {
        self.boundary.as_ref()?.isolation.as_ref()
    }

    /// The client of a request for a delegation.
    ///
    /// # Errors
    /// 401 as [`Gateway::admit`]; 403 for a client that needs none.
    pub fn delegating(&self, presented: &Presented<'_>) -> Result<Client, Refusal> {
        let Some(boundary) = &self.boundary else {
            let why = "without a `gateway` section every claim is trusted";
            return Err(Refusal::no_delegation(why));
        };
        let client = boundary.clients.identify(presented)?;
        match client.subagents {
            SubagentPolicy::Delegated => Ok(client),
            _ => Err(Refusal::no_delegation(
                "this client's policy is not `delegated`",
            )),
        }
    }

    /// A delegation of one of the client's own sessions, for its sub-agents.
    ///
    /// # Errors
    /// 400 for an id out of bounds, 404 for a session that was not seen from this client.
    pub fn delegate(&self, client: &Client, session: &str) -> Result<Token, Refusal> {
        self.check_session_id(session, "session_id")?;
        let session = &*headers::as_header(session);
        let token = self.boundary.as_ref().and_then(|boundary| {
            let (ttl, now) = (boundary.owned_ttl, Seconds::now());
            let owns = boundary.lineage.owns(client, session, ttl, now);
            owns.then(|| boundary.delegate(client, session)).flatten()
        });
        token.ok_or_else(Refusal::unknown_session)
    }

    fn check_session_headers(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        for name in CONVERSATION_ID_HEADERS
            .into_iter()
            .chain(self.sources.headers())
        {
            for text in HeaderSource::values(headers, name) {
                let id = strip(&text);
                self.check_id(id, id.chars().count(), name)?;
            }
        }
        Ok(())
    }
}

impl Boundary {
    /// What the client's policy says of a claim to `parent`.
    fn judge(&self, admission: &Admission, parent: &str) -> ClaimOutcome {
        let client = &admission.client;
        match client.subagents {
            SubagentPolicy::None => ClaimOutcome::NotAllowed,
            SubagentPolicy::Declared => ClaimOutcome::Authorised,
            SubagentPolicy::Owned => {
                let now = Seconds::now();
                match self.lineage.owns(client, parent, self.owned_ttl, now) {
                    true => ClaimOutcome::Authorised,
                    false => ClaimOutcome::NotOwned,
                }
            }
            SubagentPolicy::Delegated => {
                let Some(token) = &admission.delegation else {
                    return ClaimOutcome::NotDelegated;
                };
                let now = SystemTime::now();
                match self
                    .delegations
                    .allows(token, &client.principal(), parent, now)
                {
                    true => ClaimOutcome::Authorised,
                    false => ClaimOutcome::BadDelegation,
                }
            }
        }
    }

    /// A token for a session of a client that needs one.
    fn delegate(&self, client: &Client, session: &str) -> Option<Token> {
        if client.subagents != SubagentPolicy::Delegated {
            return None;
        }
        let now = SystemTime::now();
        self.delegations.issue(&client.principal(), session, now)
    }
}

/// The delegation that a request carries.
fn delegation_of(headers: &HeaderMap) -> Option<String> {
    let mut copies = headers.get_all(delegation::HEADER).iter();
    let only = copies.next()?.to_str().ok()?.trim().to_owned();
    copies.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests;
