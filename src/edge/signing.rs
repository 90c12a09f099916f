//! The signed headers of a leg (specification sections 5.4 and 5.5), in the profile of its fleet.

use super::{live::Live, request::Request};
use crate::{
    config::AffinityScope,
    wire::{
        Role,
        coerce::Integer,
        headers::{self, AFFINITY_AUTH, AFFINITY_ID, DISAGG_AUTH},
        signature::{AffinityClaim, KvTransfer, SigningProfile},
    },
};

/// Header fields for a worker.
pub type Headers = Vec<(&'static str, Vec<u8>)>;

/// What carries a family to a worker: its parent's id where one is authorised, or what stands for its
/// client and its root where sessions are kept apart. Nothing without either, and nothing where the
/// fleet's profile signs no such request: an id without a signature would be refused. Without a key
/// nothing is carried either, and the configuration sees to it that there is one.
pub fn affinity(
    live: &Live,
    request: &Request<'_>,
    (role, profile): (Role, SigningProfile),
    disagg_request_id: Integer,
) -> Headers {
    let (Some(affinity_id), Some(keys)) = (&request.affinity_id, &live.keys) else {
        return Vec::new();
    };
    let Some(id) = headers::latin1_bytes(affinity_id) else {
        return Vec::new();
    };
    let claim = AffinityClaim {
        role,
        model: &request.model,
        conversation_id: request.conversation_id.as_deref(),
        affinity_id,
        request_type: role.request_type(),
        disagg_request_id: Some(disagg_request_id),
    };
    let Some(payload) = claim.payload(profile) else {
        return Vec::new();
    };
    let signature = keys.sign_payload(&payload).into_bytes();
    vec![(AFFINITY_ID, id), (AFFINITY_AUTH, signature)]
}

/// The signed headers of a generation request: its affinity in scope `both`, and its hand-over.
pub fn generation(
    live: &Live,
    request: &Request<'_>,
    profile: SigningProfile,
    disagg_request_id: Integer,
    transfer: &KvTransfer<'_>,
) -> Headers {
    let mut headers = Vec::new();
    if live.edge.affinity.scope == AffinityScope::Both {
        headers = affinity(
            live,
            request,
            (Role::Generation, profile),
            disagg_request_id,
        );
    }
    headers.extend(kv_transfer(live, transfer));
    headers
}

/// What vouches for the hand-over, where it holds protected fields and there is a key.
fn kv_transfer(live: &Live, transfer: &KvTransfer<'_>) -> Headers {
    let keys = live.keys.as_ref().filter(|_| transfer.requires_auth());
    keys.map(|keys| {
        let signature = keys.sign_disagg(transfer);
        (DISAGG_AUTH, signature.into_bytes())
    })
    .into_iter()
    .collect()
}
