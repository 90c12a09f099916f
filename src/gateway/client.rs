//! Who is asking: by API key, signed token or certificate. Keys are compared in constant time.
//!
//! A key is known only by its SHA-256 digest, and a presented one is compared with every digest of
//! every client, so that the time taken says nothing about how close it came. This file must never
//! keep, log or return a key, and never let a request with a wrong key pass as anonymous.

mod failures;
mod refusal;
mod tokens;

use std::{collections::HashMap, fmt, sync::Arc, time::Instant};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Presented, Refusal, limits::Limits};
use crate::{
    config::{
        ClientConfig, ClientLimits, FailedAttempts, GatewayConfig, SubagentPolicy,
        identity::FileKeys,
    },
    fleet::queue::{Queue, QueueLimits},
    telemetry::{
        labels::{AuthenticationMethod, AuthenticationOutcome},
        metrics,
    },
    wire::jwks,
};
use failures::Failures;
pub use tokens::IssuerKeys;
use tokens::Tokens;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

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
    /// Those of the keys file, which may change meanwhile.
    file_keys: ArcSwapOption<FileKeys>,
    /// The clients' names in tokens and in certificates, each with its position.
    subjects: HashMap<String, u32>,
    certificates: HashMap<String, u32>,
    tokens: Option<Tokens>,
    failed_attempts: Option<FailedAttempts>,
    failures: Arc<Failures>,
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

/// Each name of each client, with the client's position.
fn positions(
    config: &GatewayConfig,
    names: impl Fn(&ClientConfig) -> &[String],
) -> HashMap<String, u32> {
    let clients = (0u32..).zip(&config.clients);
    let named = clients.flat_map(|(position, client)| {
        names(client)
            .iter()
            .map(move |name| (name.clone(), position))
    });
    named.collect()
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
            file_keys: ArcSwapOption::from(
                config
                    .keys_file
                    .as_ref()
                    .map(|file| Arc::new(file.keys.clone())),
            ),
            subjects: positions(config, |client| &client.subjects),
            certificates: positions(config, |client| &client.certificate_names),
            tokens: config
                .jwt
                .as_ref()
                .map(|jwt| Tokens::new(jwt, previous.and_then(|clients| clients.tokens.as_ref()))),
            failed_attempts: config.failed_attempts,
            failures: previous
                .map(|clients| Arc::clone(&clients.failures))
                .unwrap_or_default(),
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
    /// 401 where credentials are missing, wrong, or of more than one client; 403 for good ones of
    /// nobody who is known; 429 for an address that has failed too often, whatever it presents.
    pub fn identify(&self, presented: &Presented<'_>) -> Result<Client, Refusal> {
        let watched = self.failed_attempts.zip(presented.address);
        if let Some((limit, address)) = watched
            && let Some(wait) = self.failures.blocked(address, limit, Instant::now())
        {
            let counted = (AuthenticationMethod::None, AuthenticationOutcome::Blocked);
            metrics().authentications.inc(counted);
            return Err(refusal::blocked(limit, wait));
        }
        let (method, found) = self.recognise(presented);
        let outcome = match &found {
            Ok(_) if method == AuthenticationMethod::Anonymous => AuthenticationOutcome::Anonymous,
            Ok(_) => AuthenticationOutcome::Ok,
            Err(outcome) => *outcome,
        };
        metrics().authentications.inc((method, outcome));
        if let Some((limit, address)) = watched
            && outcome.is_a_guess()
        {
            self.failures.note(address, limit, Instant::now());
        }
        found.cloned().map_err(refusal::refusal)
    }

    fn recognise(&self, presented: &Presented<'_>) -> (AuthenticationMethod, Found<'_>) {
        if let Some(anonymous) = &self.anonymous
            && self.clients.is_empty()
        {
            return (AuthenticationMethod::Anonymous, Ok(anonymous));
        }
        let said = self.by_headers(presented.headers);
        let shown = self.by_certificate(presented.certificate);
        match (said, shown) {
            (Some((method, Ok(said))), Some(Ok(shown))) if said.id != shown.id => {
                (method, Err(AuthenticationOutcome::Ambiguous))
            }
            // A certificate of nobody is no credential beside another.
            (Some(said), None | Some(Ok(_)) | Some(Err(AuthenticationOutcome::NotAClient))) => said,
            (Some((method, _)), Some(Err(outcome))) => (method, Err(outcome)),
            (None, Some(Err(AuthenticationOutcome::NotAClient))) if self.anonymous.is_some() => {
                self.nobody()
            }
            (None, Some(shown)) => (AuthenticationMethod::Certificate, shown),
            (None, None) => self.nobody(),
        }
    }

    /// A request that does not say who sent it.
    fn nobody(&self) -> (AuthenticationMethod, Found<'_>) {
        match &self.anonymous {
            Some(anonymous) => (AuthenticationMethod::Anonymous, Ok(anonymous)),
            None => (
                AuthenticationMethod::None,
                Err(AuthenticationOutcome::Missing),
            ),
        }
    }

    /// Whom the headers name; `None` where they name nobody. Two that say the same are one.
    fn by_headers(&self, headers: &HeaderMap) -> Option<(AuthenticationMethod, Found<'_>)> {
        let bearer = only(headers, &AUTHORIZATION).map(|value| match value {
            Some(value) => match bearer(value) {
                Some(credential) => self.by_bearer(credential),
                None => wrong(AuthenticationOutcome::Invalid),
            },
            None => wrong(AuthenticationOutcome::Ambiguous),
        });
        let key = only(headers, &API_KEY).map(|value| match value {
            Some(value) => match self.owner(value.as_bytes().trim_ascii()) {
                Some(client) => (AuthenticationMethod::ApiKey, Ok(client)),
                None => wrong(AuthenticationOutcome::Invalid),
            },
            None => wrong(AuthenticationOutcome::Ambiguous),
        });
        match (bearer, key) {
            (Some((method, Ok(one))), Some((_, Ok(other)))) if one.id != other.id => {
                Some((method, Err(AuthenticationOutcome::Ambiguous)))
            }
            (Some((_, Ok(_))), Some(bad @ (_, Err(_)))) => Some(bad),
            (Some(bearer), _) => Some(bearer),
            (None, key) => key,
        }
    }

    /// A known key is a key, whatever it looks like.
    fn by_bearer(&self, credential: &[u8]) -> (AuthenticationMethod, Found<'_>) {
        if let Some(client) = self.owner(credential) {
            return (AuthenticationMethod::ApiKey, Ok(client));
        }
        let tokens = self.tokens.as_ref();
        let Some(tokens) = tokens.filter(|_| jwks::looks_like_a_token(credential)) else {
            return wrong(AuthenticationOutcome::Invalid);
        };
        let subject = tokens.subject(credential);
        let client = subject.and_then(|subject| {
            self.at(self.subjects.get(&subject))
                .ok_or(AuthenticationOutcome::NotAClient)
        });
        (AuthenticationMethod::Jwt, client)
    }

    /// Whom a certificate names; `None` without one. All its names that are known must be one client's.
    fn by_certificate(&self, names: &[String]) -> Option<Found<'_>> {
        if names.is_empty() {
            return None;
        }
        let known = names.iter().filter_map(|name| self.certificates.get(name));
        let mut known: Vec<&u32> = known.collect();
        known.dedup();
        Some(match known.as_slice() {
            [] => Err(AuthenticationOutcome::NotAClient),
            [one] => self.at(Some(*one)).ok_or(AuthenticationOutcome::NotAClient),
            _ => Err(AuthenticationOutcome::Ambiguous),
        })
    }

    fn at(&self, position: Option<&u32>) -> Option<&Client> {
        self.clients.get(usize::try_from(*position?).ok()?)
    }

    /// Takes what the keys file says now in place of what it said before.
    pub fn set_file_keys(&self, keys: Arc<FileKeys>) {
        self.file_keys.store(Some(keys));
    }

    /// What the keys file said last; `None` where there is none.
    pub fn file_keys(&self) -> Option<Arc<FileKeys>> {
        self.file_keys.load_full()
    }

    /// The keys of the tokens' issuer; `None` where no tokens are believed.
    pub fn issuer_keys(&self) -> Option<&Arc<IssuerKeys>> {
        self.tokens.as_ref().map(|tokens| &tokens.keys)
    }

    /// The client whose key this is. Looks at every digest, also after the one that fits.
    fn owner(&self, key: &[u8]) -> Option<&Client> {
        let presented: [u8; 32] = Sha256::digest(key).into();
        let mut owner = u32::MAX;
        let file = self.file_keys.load();
        let file = file.as_ref().map_or(&[][..], |file| &file.digests);
        for (digest, position) in self.digests.iter().chain(file) {
            owner.conditional_assign(position, digest.ct_eq(&presented));
        }
        self.clients.get(usize::try_from(owner).ok()?)
    }
}

/// A client, or how it was not recognised.
type Found<'a> = Result<&'a Client, AuthenticationOutcome>;

/// Credentials that are no good, of whatever kind they were meant to be.
fn wrong<'a>(outcome: AuthenticationOutcome) -> (AuthenticationMethod, Found<'a>) {
    (AuthenticationMethod::None, Err(outcome))
}

/// The value of a header; `Some(None)` where there is more than one copy.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a HeaderValue>> {
    let mut copies = headers.get_all(name).iter();
    let first = copies.next()?;
    Some(copies.next().is_none().then_some(first))
}

/// The key of `Bearer KEY`, the scheme in any case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let value = value.as_bytes().trim_ascii();
    let (scheme, rest) = value.split_at_checked(b"Bearer".len())?;
    let key = rest.trim_ascii_start();
    let separated = key.len() < rest.len();
    (scheme.eq_ignore_ascii_case(b"Bearer") && separated && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests;
