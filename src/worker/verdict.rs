//! Whether a request's internal headers are genuine (specification section 5.8), and what is told
//! when they are not.

use bytes::Bytes;
use http::HeaderMap;
use pingora::{Result, protocols::http::ServerSession};
use serde_json::json;

use super::placement::Ask;
use crate::{
    affinity::AffinityKey,
    http::reply::{self, Failure},
    telemetry::{
        self,
        labels::{Check, KeyIndex, Label, VerificationOutcome},
    },
    wire::{
        Role,
        body::{BodyError, BodyView},
        disagg::Endpoint,
        headers::{AFFINITY_AUTH, AFFINITY_ID, DISAGG_AUTH, HeaderSource},
        prompt::Prompt,
        signature::KvTransfer,
        verify::{Refusal, SignedFacts, Verified, Verifier},
        worker_body::{WorkerBody, decided, is_surely_ordinary},
    },
};

/// A request that may go on.
pub struct Verdict<'a> {
    read: Read<'a>,
    /// The verified parent.
    affinity_id: Option<String>,
    /// Whether the worker gets the signature of a hand-over: it was found genuine, or there is no
    /// key to check it with here and the worker is the first who can.
    transfer: bool,
}

/// What a body says to a worker.
struct Read<'a> {
    facts: SignedFacts<'a>,
    transfer: KvTransfer<'a>,
    prompt: Option<Prompt<'a>>,
}

impl<'a> Read<'a> {
    /// An ordinary request at a worker that takes such is the worker's to judge, whatever it is but
    /// one that decides in the filter's place.
    fn of(verifier: &Verifier, places: bool, body: &'a [u8]) -> Result<Self, Failure> {
        let view = BodyView::parse(body);
        let decided = match &view {
            Ok(view) => decided::of_members(view.object(), places),
            Err(_) => decided::of_bytes(body, places),
        };
        if let Some(field) = decided {
            let message = format!("'{field}' is not taken here; this worker's filter decides it");
            return Err(BodyError::field(field, message).into());
        }
        let prompt = view.as_ref().ok().map(Prompt::of);
        let read = view.and_then(|view| WorkerBody::of_view(&view));
        let takes_ordinary = matches!(verifier.role, None | Some(Role::Aggregated));
        let (facts, transfer) = match read {
            Ok(read) => (read.facts, read.transfer),
            Err(_) if takes_ordinary && is_surely_ordinary(body) => {
                (SignedFacts::none(), KvTransfer::default())
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            facts,
            transfer,
            prompt,
        })
    }
}

impl<'a> Verdict<'a> {
    /// Reads the body as the worker will and checks both signatures; `places` is whether the filter
    /// tells the worker a rank.
    ///
    /// # Errors
    /// 400 with upstream's message.
    pub fn of(
        verifier: &Verifier,
        places: bool,
        headers: &HeaderMap,
        body: &'a [u8],
    ) -> Result<Self, Failure> {
        let read = Read::of(verifier, places, body)?;
        let affinity = verifier.affinity(headers, &read.facts);
        count(
            Check::Affinity,
            affinity_outcome(&affinity, verifier.role, headers, &read.facts),
        );
        let affinity = affinity.map_err(refused)?;
        count_key(Check::Affinity, affinity.as_ref().map(|parent| parent.key));
        let transfer = verifier.kv_transfer(headers, &read.transfer);
        count(
            Check::KvTransfer,
            transfer_outcome(&transfer, &read.transfer),
        );
        count_key(Check::KvTransfer, transfer.map_err(refused)?);
        Ok(Self {
            transfer: read.transfer.requires_auth(),
            read,
            affinity_id: affinity.map(|parent| parent.affinity_id),
        })
    }

    /// The internal headers that the worker gets: the verdict was about them.
    pub fn kept(&self) -> Vec<&'static str> {
        let affinity = [AFFINITY_ID, AFFINITY_AUTH];
        let affinity = affinity.into_iter().filter(|_| self.affinity_id.is_some());
        affinity
            .chain(self.transfer.then_some(DISAGG_AUTH))
            .collect()
    }

    /// What placement needs to know. Completions have no affinity on ranks, as upstream.
    pub fn ask(&self, endpoint: Endpoint) -> Ask {
        let own = self.read.facts.conversation_id.as_ref();
        let own = own.map(|id| id.to_lossy());
        let key = match endpoint {
            Endpoint::ChatCompletions => self.affinity_id.as_deref().or(own.as_deref()),
            Endpoint::Completions => None,
        };
        let tokens = self.read.prompt.as_ref().map_or(0, Prompt::weight);
        Ask::new(key.map(AffinityKey::new), tokens)
    }
}

/// Answers in upstream's shape, because what calls a worker knows that one.
pub async fn refuse(session: &mut ServerSession, failure: &Failure) -> Result<()> {
    let kind = if failure.status == 400 {
        "BadRequestError"
    } else {
        failure.kind
    };
    let body = json!({
        "object": "error",
        "message": failure.message,
        "type": kind,
        "param": null,
        "code": failure.status,
    });
    reply::write_json(
        session,
        failure.status,
        &failure.headers,
        Bytes::from(body.to_string()),
    )
    .await
}

fn refused(refusal: Refusal) -> Failure {
    Failure::bad_request("internal_authentication", refusal.to_string())
}

fn count(check: Check, outcome: VerificationOutcome) {
    telemetry::metrics().verifications.inc((check, outcome));
}

/// Which key of the list verified: when the old one's count stands still, it can go.
fn count_key(check: Check, key: Option<usize>) {
    if let Some(index) = key.and_then(|key| KeyIndex::ALL.get(key)) {
        telemetry::metrics()
            .verifications_by_key
            .inc((check, *index));
    }
}

fn affinity_outcome(
    result: &Result<Option<Verified>, Refusal>,
    role: Option<Role>,
    headers: &HeaderMap,
    facts: &SignedFacts<'_>,
) -> VerificationOutcome {
    match result {
        Ok(Some(_)) => VerificationOutcome::Verified,
        Ok(None) if HeaderSource::values(headers, AFFINITY_ID).next().is_none() => {
            VerificationOutcome::Absent
        }
        Ok(None) if facts.role(role).is_some_and(Role::takes_affinity) => {
            VerificationOutcome::Absent
        }
        Ok(None) => VerificationOutcome::NotApplicable,
        Err(Refusal::KeyMissing) => VerificationOutcome::KeyMissing,
        Err(Refusal::Repeated(_)) => VerificationOutcome::Repeated,
        Err(Refusal::BadAffinity)
            if HeaderSource::values(headers, AFFINITY_AUTH)
                .next()
                .is_none() =>
        {
            VerificationOutcome::Unsigned
        }
        Err(Refusal::NoParent | Refusal::NoChild | Refusal::NotContext) => {
            VerificationOutcome::Malformed
        }
        Err(_) => VerificationOutcome::Forged,
    }
}

fn transfer_outcome(
    result: &Result<Option<usize>, Refusal>,
    transfer: &KvTransfer<'_>,
) -> VerificationOutcome {
    match result {
        Ok(None) if !transfer.requires_auth() => VerificationOutcome::Absent,
        Ok(None) => VerificationOutcome::KeyMissing,
        Ok(Some(_)) => VerificationOutcome::Verified,
        Err(Refusal::Repeated(_)) => VerificationOutcome::Repeated,
        Err(_) => VerificationOutcome::Forged,
    }
}
