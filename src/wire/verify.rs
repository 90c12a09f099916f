//! Whether a worker may believe the internal headers of a request.
//!
//! The verdicts are upstream's (specification section 5.8), or Dynamo's in its profile, with one
//! difference: where a request has two copies of an internal header upstream takes one of them, and
//! here the request is refused, because nobody honest sends two. This file decides; who asks answers
//! with 400 and the message.

use std::borrow::Cow;

use super::{
    Role,
    coerce::Integer,
    headers::{self, HeaderSource},
    signature::{KvTransfer, SigningKeys, SigningProfile, is_trimmed},
    text::Text,
};

/// Why a request is refused. `Display` is upstream's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An affinity id came and there is no key to check it with.
    #[error("Subagent affinity requires internal_request_auth_key")]
    KeyMissing,
    /// The affinity signature is absent or wrong.
    #[error("Invalid internal subagent affinity authentication")]
    BadAffinity,
    /// The signature over the KV transfer fields is absent or wrong.
    #[error("Invalid internal disaggregated request authentication")]
    BadKvTransfer,
    /// Dynamo's profile: a signature without an id, or an id that is blank or not trimmed.
    #[error("Subagent affinity needs a trimmed, non-empty parent id beside its signature")]
    NoParent,
    /// Dynamo's profile: no conversation id of the child's own, or no request id.
    #[error("Subagent affinity needs a conversation id and a disagg_request_id in the body")]
    NoChild,
    /// Dynamo's profile: affinity on anything but a context request.
    #[error("Subagent affinity is for context requests only")]
    NotContext,
    /// An internal header came twice.
    #[error("The internal header {0} may be sent only once")]
    Repeated(&'static str),
}

impl Refusal {
    /// The HTTP status of upstream's answer.
    pub const HTTP_STATUS: u16 = 400;
}

/// What of a body goes into an affinity signature, as the worker's parser reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedFacts<'a> {
    /// `model`.
    pub model: Text<'a>,
    /// `conversation_params.conversation_id`, stripped.
    pub conversation_id: Option<Text<'a>>,
    /// `disaggregated_params.request_type`.
    pub request_type: Option<Text<'a>>,
    /// `disaggregated_params.disagg_request_id`.
    pub disagg_request_id: Option<Integer>,
}

impl SignedFacts<'_> {
    /// Of a body that says nothing that a signature covers.
    pub fn none() -> Self {
        Self {
            model: Text::from(""),
            conversation_id: None,
            request_type: None,
            disagg_request_id: None,
        }
    }

    /// The payload of the affinity signature for these facts; `None` where the profile signs no such
    /// request.
    pub fn payload(
        &self,
        profile: SigningProfile,
        role: Role,
        affinity_id: &str,
    ) -> Option<String> {
        profile.payload(
            role,
            affinity_id,
            &self.model,
            self.conversation_id.as_ref(),
            self.request_type.as_ref(),
            self.disagg_request_id.as_ref(),
        )
    }

    /// The role a worker acts in: the configured one, else the one its request type implies.
    pub fn role(&self, configured: Option<Role>) -> Option<Role> {
        let implied = || Role::from_request_type(self.request_type.as_ref()?.as_str()?);
        configured.or_else(implied)
    }
}

/// A parent's id that may be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The id, stripped.
    pub affinity_id: String,
    /// The place in the list of the key that signed it.
    pub key: usize,
}

/// How a worker checks what reaches it.
#[derive(Debug, Clone, Default)]
pub struct Verifier {
    /// The configured role; `None` infers it from each request.
    pub role: Option<Role>,
    /// How affinity is signed. KV transfer fields are signed in upstream's way in every profile.
    pub profile: SigningProfile,
    /// The shared keys.
    pub keys: Option<SigningKeys>,
}

impl Verifier {
    /// Checks the affinity headers of a request; `Ok(None)` where there is no affinity.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn affinity(
        &self,
        headers: &(impl HeaderSource + ?Sized),
        facts: &SignedFacts,
    ) -> Result<Option<Verified>, Refusal> {
        match self.profile {
            SigningProfile::Trtllm => self.trtllm(headers, facts),
            SigningProfile::Dynamo => self.dynamo(headers, facts),
        }
    }

    /// A role that takes no affinity ignores the headers, and a blank id is none.
    fn trtllm(
        &self,
        headers: &(impl HeaderSource + ?Sized),
        facts: &SignedFacts,
    ) -> Result<Option<Verified>, Refusal> {
        let Some(role) = facts.role(self.role).filter(|role| role.takes_affinity()) else {
            return Ok(None);
        };
        let id = only(headers, headers::AFFINITY_ID)?;
        let presented = only(headers, headers::AFFINITY_AUTH)?;
        let id = id.as_deref().map(headers::strip).unwrap_or_default();
        if id.is_empty() {
            return Ok(None);
        }
        let payload = facts.payload(self.profile, role, id);
        self.signed(id, payload, presented)
    }

    /// Nothing is ignored: either header alone, or on another request than a context one, is refused.
    fn dynamo(
        &self,
        headers: &(impl HeaderSource + ?Sized),
        facts: &SignedFacts,
    ) -> Result<Option<Verified>, Refusal> {
        let id = only(headers, headers::AFFINITY_ID)?;
        let presented = only(headers, headers::AFFINITY_AUTH)?;
        if id.is_none() && presented.is_none() {
            return Ok(None);
        }
        let id = id.filter(|id| is_trimmed(id));
        let id = id.ok_or(Refusal::NoParent)?;
        let implied = facts.role(None);
        if implied != Some(Role::Context) || facts.role(self.role) != implied {
            return Err(Refusal::NotContext);
        }
        if facts.conversation_id.is_none() || facts.disagg_request_id.is_none() {
            return Err(Refusal::NoChild);
        }
        let payload = facts.payload(self.profile, Role::Context, &id);
        self.signed(&id, payload, presented)
    }

    fn signed(
        &self,
        id: &str,
        payload: Option<String>,
        presented: Option<Cow<'_, str>>,
    ) -> Result<Option<Verified>, Refusal> {
        let keys = self.keys.as_ref().ok_or(Refusal::KeyMissing)?;
        let (payload, presented) = payload.zip(presented).ok_or(Refusal::BadAffinity)?;
        let key = keys
            .verify_payload(&payload, &presented)
            .ok_or(Refusal::BadAffinity)?;
        Ok(Some(Verified {
            affinity_id: id.to_owned(),
            key,
        }))
    }

    /// Checks the signature over the KV transfer fields; without a key nothing is checked, as
    /// upstream. The result is the place of the key that signed them.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn kv_transfer(
        &self,
        headers: &(impl HeaderSource + ?Sized),
        transfer: &KvTransfer,
    ) -> Result<Option<usize>, Refusal> {
        let Some(keys) = self.keys.as_ref().filter(|_| transfer.requires_auth()) else {
            return Ok(None);
        };
        let presented = only(headers, headers::DISAGG_AUTH)?.ok_or(Refusal::BadKvTransfer)?;
        let key = keys.verify_payload(&transfer.canonical(), &presented);
        key.map(Some).ok_or(Refusal::BadKvTransfer)
    }
}

/// The one copy of an internal header.
fn only<'a>(
    headers: &'a (impl HeaderSource + ?Sized),
    name: &'static str,
) -> Result<Option<Cow<'a, str>>, Refusal> {
    let mut values = headers.values(name);
    let first = values.next();
    match values.next() {
        Some(_) => Err(Refusal::Repeated(name)),
        None => Ok(first),
    }
}

#[cfg(test)]
mod tests;
