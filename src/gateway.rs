//! The trust boundary: who is asking, and which of their headers count.
//!
//! It recognises the client, names every header that may not come from one, and decides whether a
//! request may name a parent session. It must never let a client's own copy of an internal header
//! pass, never turn an unauthorised claim into an error, and never tell a client why its key is not
//! the right one. It knows plain header maps only; the caller removes what it names.

pub mod client;
pub mod lineage;
pub mod prune;

use std::{net::IpAddr, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::{
    config::{Config, GatewayConfig, OwnRoute, SubagentPolicy},
    telemetry::{
        labels::{ClaimOutcome, Label, Outcome, PrunedField},
        metrics,
    },
    wire::{
        body::BodyView,
        headers::{CONVERSATION_ID_HEADERS, HeaderSource, strip},
        pruning,
    },
};

use client::Clients;
pub use client::{Client, ClientId};
use lineage::Lineage;
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
    claim: Claim,
}

/// What the request says about its parent, before it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Claim {
    Absent,
    /// A parent header came though sub-agent affinity is off.
    Disabled,
    /// Copies of the parent header differ.
    Ambiguous,
    /// The parent's id, latin-1 text, stripped, not blank.
    Named(String),
}

/// The boundary that one configuration describes. A request asks the same `Gateway` from its head
/// to its end; a reload builds the next one.
#[derive(Debug)]
pub struct Gateway {
    pruner: Pruner,
    parent_header: Option<String>,
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
}

impl Boundary {
    fn build(config: &GatewayConfig, previous: Option<&Self>) -> Self {
        let lineage = match previous {
            Some(previous) => {
                previous.lineage.set_capacity(config.max_sessions);
                Arc::clone(&previous.lineage)
            }
            None => Arc::new(Lineage::new(config.max_sessions)),
        };
        Self {
            clients: Clients::new(config, previous.map(|previous| &previous.clients)),
            open_routes: config.open_routes.clone(),
            lineage,
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
        let pruner = Pruner::new(parent_header.as_deref(), configured);
        Self {
            pruner: if config.gateway.is_some() {
                pruner
            } else {
                pruner.trusting(parent_header.as_deref())
            },
            parent_header,
            max_session_id: config.limits.max_session_id,
            boundary: config
                .gateway
                .as_ref()
                .map(|gateway| Boundary::build(gateway, previous)),
        }
    }

    /// Looks at a request's headers before its body is read: what to remove, who sent it, what it
    /// claims. Counts what it prunes and how the client was recognised.
    ///
    /// # Errors
    /// 401 without usable credentials; 400 for a session id that is too long or holds control
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
            claim: self.claim(headers),
        })
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

    /// Decides the claim of an admitted request, once its own conversation id is known, and notes
    /// that the client has used that session. Counts the outcome; a claim that is dropped is logged
    /// with the client's name and both ids. Returns the parent's id where the request is to follow
    /// it.
    pub fn authorise(
        &self,
        admission: &Admission,
        conversation_id: Option<&str>,
    ) -> Option<String> {
        let outcome = self.decide(admission, conversation_id);
        metrics().parent_claims.inc(outcome);
        if let (Some(boundary), Some(session)) = (&self.boundary, conversation_id) {
            boundary.lineage.record(&admission.client, session);
        }
        let parent = match &admission.claim {
            Claim::Named(parent) => Some(parent.as_str()),
            Claim::Absent | Claim::Disabled | Claim::Ambiguous => None,
        };
        match outcome {
            ClaimOutcome::None => None,
            ClaimOutcome::Trusted | ClaimOutcome::Authorised => parent.map(str::to_owned),
            dropped => {
                // Ids are fields and not part of the message: as fields they are escaped.
                tracing::info!(
                    client = &*admission.client.name,
                    session = conversation_id.unwrap_or_default(),
                    parent = parent.unwrap_or_default(),
                    reason = dropped.as_str(),
                    "dropped a claim to a parent session"
                );
                None
            }
        }
    }

    fn decide(&self, admission: &Admission, conversation_id: Option<&str>) -> ClaimOutcome {
        let parent = match &admission.claim {
            Claim::Absent => return ClaimOutcome::None,
            Claim::Disabled => return ClaimOutcome::Disabled,
            Claim::Ambiguous => return ClaimOutcome::Ambiguous,
            Claim::Named(parent) => parent.as_str(),
        };
        let Some(boundary) = &self.boundary else {
            return ClaimOutcome::Trusted;
        };
        if conversation_id == Some(parent) {
            return ClaimOutcome::SelfNamed;
        }
        match admission.client.subagents {
            SubagentPolicy::None => ClaimOutcome::NotAllowed,
            SubagentPolicy::Declared => ClaimOutcome::Authorised,
            SubagentPolicy::Owned if boundary.lineage.owns(&admission.client, parent) => {
                ClaimOutcome::Authorised
            }
            SubagentPolicy::Owned => ClaimOutcome::NotOwned,
        }
    }

    fn check_session_headers(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let parent = self.parent_header.as_deref();
        for name in CONVERSATION_ID_HEADERS.into_iter().chain(parent) {
            for text in HeaderSource::values(headers, name) {
                let id = strip(&text);
                self.check_id(id, id.chars().count(), name)?;
            }
        }
        Ok(())
    }

    /// The claim as it stands in the headers. Without a gateway section the last copy counts, as
    /// upstream has it (specification section 5.7); with one, copies must agree.
    fn claim(&self, headers: &HeaderMap) -> Claim {
        let Some(name) = &self.parent_header else {
            let named = headers.contains_key(prune::USUAL_PARENT_HEADER);
            return if named {
                Claim::Disabled
            } else {
                Claim::Absent
            };
        };
        let copies = HeaderSource::values(headers, name);
        let mut copies = copies.map(|text| strip(&text).to_owned());
        let Some(first) = copies.next() else {
            return Claim::Absent;
        };
        let parent = if self.boundary.is_none() {
            copies.last().unwrap_or(first)
        } else if copies.all(|copy| copy == first) {
            first
        } else {
            return Claim::Ambiguous;
        };
        if parent.is_empty() {
            Claim::Absent
        } else {
            Claim::Named(parent)
        }
    }
}

#[cfg(test)]
mod tests;
