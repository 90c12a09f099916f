//! Who is asking: API keys, compared in constant time.
//!
//! A key is known only by its SHA-256 digest, and a presented one is compared with every digest of
//! every client, so that the time taken says nothing about how close it came. This file must never
//! keep, log or return a key, and never let a request with a wrong key pass as anonymous.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Presented, Refusal, limits::Limits};
use crate::{
    config::{ClientLimits, GatewayConfig, SubagentPolicy},
    fleet::queue::{Queue, QueueLimits},
    telemetry::{
        labels::{AuthenticationOutcome, Outcome},
        metrics,
    },
};

/// Which client, within one configuration. Across reloads a client is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientId {
    /// There is no `gateway` section: everyone is one and the same.
    Trusted,
    /// Let in without credentials.
    Anonymous,
    /// Position in `gateway.clients`.
    Named(u32),
}

/// A recognised client.
#[derive(Debug, Clone)]
pub struct Client {
    pub id: ClientId,
    /// The configured name; `anonymous` where there is none. For logs and people.
    pub name: Arc<str>,
    /// Which parents its requests may name.
    pub subagents: SubagentPolicy,
    /// What bounds its requests at once; nobody waits for one of these places. `None` without a
    /// `gateway` section.
    pub places: Option<Arc<Queue>>,
    /// What else it may take.
    pub limits: Arc<Limits>,
}

impl Client {
    /// The client of every request where there is no `gateway` section.
    pub fn trusted() -> Self {
        Self {
            id: ClientId::Trusted,
            name: anonymous_name(),
            subagents: SubagentPolicy::Declared,
            places: None,
            limits: Limits::new(&ClientLimits::default(), None),
        }
    }
}

impl Client {
    /// The client's name as text that no other client's reads like: nobody can call themselves
    /// anonymous.
    pub fn principal(&self) -> String {
        match self.id {
            ClientId::Named(_) => format!("client:{}", self.name),
            ClientId::Anonymous | ClientId::Trusted => "anonymous".to_owned(),
        }
    }
}

fn bound(places: Option<usize>) -> QueueLimits {
    QueueLimits { places, waiting: 0 }
}

fn anonymous_name() -> Arc<str> {
    static NAME: std::sync::LazyLock<Arc<str>> = std::sync::LazyLock::new(|| "anonymous".into());
    Arc::clone(&NAME)
}

/// The clients of one configuration.
pub struct Clients {
    /// Each digest with the position of its client.
    digests: Box<[([u8; 32], u32)]>,
    clients: Box<[Client]>,
    anonymous: Option<Client>,
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("clients", &self.clients)
            .field("anonymous", &self.anonymous)
            .finish_non_exhaustive()
    }
}

impl Clients {
    /// The clients that a `gateway` section names. Those of `previous` keep what they have in flight.
    pub fn new(config: &GatewayConfig, previous: Option<&Self>) -> Self {
        let places = |name: Option<&str>, most| {
            let before = previous.and_then(|clients| clients.named(name)?.places.clone());
            let places = before.unwrap_or_else(|| Arc::new(Queue::new(bound(most))));
            places.set_limits(bound(most));
            Some(places)
        };
        let limits = |name: Option<&str>, config| {
            let before = previous.and_then(|clients| clients.named(name));
            Limits::new(config, before.map(|client| &client.limits))
        };
        let numbered = || (0u32..).zip(&config.clients);
        let digests = numbered().flat_map(|(position, client)| {
            let digests = client.api_keys.iter();
            digests.map(move |digest| (*digest, position))
        });
        let clients = numbered().map(|(position, client)| Client {
            id: ClientId::Named(position),
            name: client.name.as_str().into(),
            subagents: client.subagents,
            places: places(Some(&client.name), client.max_in_flight),
            limits: limits(Some(&client.name), &client.limits),
        });
        Self {
            digests: digests.collect(),
            clients: clients.collect(),
            anonymous: config.anonymous.map(|subagents| Client {
                id: ClientId::Anonymous,
                name: anonymous_name(),
                subagents,
                places: places(None, config.anonymous_max_in_flight),
                limits: limits(None, &config.anonymous_limits),
            }),
        }
    }

    /// The client of that name; without one whoever needs none.
    fn named(&self, name: Option<&str>) -> Option<&Client> {
        match name {
            Some(name) => self.clients.iter().find(|client| &*client.name == name),
            None => self.anonymous.as_ref(),
        }
    }

    /// Recognises the client of a request, and counts how.
    ///
    /// Where no client is configured and anonymous access is on, every request is anonymous: there
    /// is no key that could be right, and many programs send a placeholder.
    ///
    /// # Errors
    /// 401 where credentials are missing, wrong, or given more than once.
    pub fn identify(&self, presented: &Presented<'_>) -> Result<Client, Refusal> {
        let (client, outcome) = self.recognise(presented.headers);
        metrics().authentications.inc(outcome);
        client.cloned().ok_or_else(|| refusal(outcome))
    }

    fn recognise(&self, headers: &HeaderMap) -> (Option<&Client>, AuthenticationOutcome) {
        if let Some(anonymous) = &self.anonymous
            && self.clients.is_empty()
        {
            return (Some(anonymous), AuthenticationOutcome::Anonymous);
        }
        let mut copies = headers.get_all(AUTHORIZATION).iter();
        match (copies.next(), copies.next()) {
            (None, _) if self.anonymous.is_some() => {
                (self.anonymous.as_ref(), AuthenticationOutcome::Anonymous)
            }
            (None, _) => (None, AuthenticationOutcome::Missing),
            (Some(_), Some(_)) => (None, AuthenticationOutcome::Ambiguous),
            (Some(value), None) => match bearer(value).and_then(|key| self.owner(key)) {
                Some(client) => (Some(client), AuthenticationOutcome::Ok),
                None => (None, AuthenticationOutcome::Invalid),
            },
        }
    }

    /// The client whose key this is. Looks at every digest, also after the one that fits.
    fn owner(&self, key: &[u8]) -> Option<&Client> {
        let presented: [u8; 32] = Sha256::digest(key).into();
        let mut owner = u32::MAX;
        for (digest, position) in &self.digests {
            owner.conditional_assign(position, digest.ct_eq(&presented));
        }
        self.clients.get(usize::try_from(owner).ok()?)
    }
}

/// The key of `Bearer KEY`, the scheme in any case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let value = value.as_bytes().trim_ascii();
    let (scheme, rest) = value.split_at_checked(b"Bearer".len())?;
    let key = rest.trim_ascii_start();
    let separated = key.len() < rest.len();
    (scheme.eq_ignore_ascii_case(b"Bearer") && separated && !key.is_empty()).then_some(key)
}

fn refusal(outcome: AuthenticationOutcome) -> Refusal {
    let (code, message) = match outcome {
        AuthenticationOutcome::Missing => (
            "missing_api_key",
            "No API key was given. Send one as `Authorization: Bearer YOUR_KEY`.",
        ),
        AuthenticationOutcome::Ambiguous => (
            "ambiguous_authorization",
            "More than one `Authorization` header was given. Send exactly one, as \
             `Authorization: Bearer YOUR_KEY`.",
        ),
        _ => (
            "invalid_api_key",
            "The API key is not known here. Send a valid one as `Authorization: Bearer YOUR_KEY`, \
             or ask the operator of this gateway for one.",
        ),
    };
    Refusal {
        status: StatusCode::UNAUTHORIZED,
        code,
        kind: "invalid_request_error",
        message: message.to_owned(),
        param: None,
        www_authenticate: Some(match outcome {
            AuthenticationOutcome::Missing => r#"Bearer realm="kindred""#,
            AuthenticationOutcome::Ambiguous => {
                r#"Bearer realm="kindred", error="invalid_request""#
            }
            _ => r#"Bearer realm="kindred", error="invalid_token""#,
        }),
        outcome: Outcome::Unauthenticated,
    }
}

#[cfg(test)]
mod tests;
