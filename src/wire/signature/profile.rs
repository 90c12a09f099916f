//! Whose way of signing affinity a fleet speaks.
//!
//! Upstream's workers and Dynamo's sidecar take the same two headers with the same HMAC over
//! different members, written differently. A profile says what is signed for a request, or that such
//! a request is not signed at all; it never chooses a key.

use super::affinity_payload;
use crate::wire::{Role, coerce::Integer, escape, headers, text::Text};

/// Which members are signed, and how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SigningProfile {
    /// Upstream's (specification section 5.4): both roles, ASCII only.
    #[default]
    Trtllm,
    /// Dynamo's: context requests only, `request_id` as a text, non-ASCII as it is.
    Dynamo,
}

impl SigningProfile {
    /// The name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trtllm => "trtllm",
            Self::Dynamo => "dynamo",
        }
    }

    /// The payload of an affinity signature; `None` where the profile signs no such request.
    pub(in crate::wire) fn payload(
        self,
        role: Role,
        affinity_id: &str,
        model: &Text,
        conversation_id: Option<&Text>,
        request_type: Option<&Text>,
        disagg_request_id: Option<&Integer>,
    ) -> Option<String> {
        match self {
            Self::Trtllm => Some(affinity_payload(
                role,
                affinity_id,
                model,
                conversation_id,
                request_type,
                disagg_request_id,
            )),
            Self::Dynamo if role != Role::Context => None,
            Self::Dynamo => dynamo_payload(
                affinity_id,
                model.as_str()?,
                conversation_id?.as_str()?,
                request_type?.as_str()?,
                disagg_request_id?,
            ),
        }
    }
}

/// Dynamo's payload. The request's id is a text there; here it is the digits of the
/// `disagg_request_id`. Half a surrogate pair cannot be written as UTF-8, so it is never signed.
fn dynamo_payload(
    affinity_id: &str,
    model: &str,
    conversation_id: &str,
    request_type: &str,
    disagg_request_id: &Integer,
) -> Option<String> {
    let acceptable = is_trimmed(affinity_id)
        && !headers::strip(conversation_id).is_empty()
        && Role::from_request_type(request_type) == Some(Role::Context);
    if !acceptable {
        return None;
    }
    let mut out = String::with_capacity(256 + affinity_id.len());
    out.push_str("{\"conversation_id\":");
    escape::unicode_string(&mut out, conversation_id);
    out.push_str(",\"model\":");
    escape::unicode_string(&mut out, model);
    out.push_str(",\"purpose\":\"");
    out.push_str(headers::AFFINITY_ID);
    out.push_str("\",\"request_id\":\"");
    out.push_str(&disagg_request_id.to_string());
    out.push_str("\",\"request_type\":");
    escape::unicode_string(&mut out, request_type);
    out.push_str(",\"subagent_affinity_id\":");
    escape::unicode_string(&mut out, affinity_id);
    out.push('}');
    Some(out)
}

/// Whether Dynamo takes this for a parent's id.
pub(in crate::wire) fn is_trimmed(affinity_id: &str) -> bool {
    !affinity_id.is_empty() && headers::strip(affinity_id) == affinity_id
}

#[cfg(test)]
mod tests {
    use super::super::{AffinityClaim, SigningKey};
    use super::*;

    fn claim() -> AffinityClaim<'static> {
        AffinityClaim {
            role: Role::Context,
            model: "m",
            conversation_id: Some("child"),
            affinity_id: "parent",
            request_type: Some("context_only"),
            disagg_request_id: Some(Integer::from(42)),
        }
    }

    fn dynamo(claim: &AffinityClaim) -> Option<String> {
        claim.payload(SigningProfile::Dynamo)
    }

    #[test]
    fn signs_dynamos_members_in_their_order() {
        let payload = dynamo(&claim()).expect("a context request");
        assert_eq!(
            payload,
            "{\"conversation_id\":\"child\",\"model\":\"m\",\
             \"purpose\":\"x-trtllm-subagent-affinity-id\",\"request_id\":\"42\",\
             \"request_type\":\"context_only\",\"subagent_affinity_id\":\"parent\"}"
        );
        let key = SigningKey::new("secret").expect("a key");
        assert_eq!(
            key.sign_payload(&payload),
            "sha256=895bc720b5b2bc1870bd2ead0af640e80fd273f092aa158562f0f5191ccb4b99"
        );
    }

    #[test]
    fn writes_other_scripts_as_they_are() {
        let claim = AffinityClaim {
            model: "a\"b\\c\u{7f}\t\u{1}/d",
            conversation_id: Some("\u{4f1a}\u{8bdd}-\u{1f600}"),
            affinity_id: "caf\u{c3}\u{a9}",
            ..claim()
        };
        let payload = dynamo(&claim).expect("a context request");
        assert!(
            payload.contains("\"a\\\"b\\\\c\u{7f}\\t\\u0001/d\""),
            "{payload}"
        );
        assert!(payload.contains("\"\u{4f1a}\u{8bdd}-\u{1f600}\""));
        let key = SigningKey::new("secret").expect("a key");
        assert_eq!(
            key.sign_payload(&payload),
            "sha256=f47a1f56546f307cfd734839f530cce9a3fcb4a9a99f142ebe739743abdc957b"
        );
    }

    #[test]
    fn signs_nothing_that_dynamo_refuses() {
        let unsigned = [
            AffinityClaim {
                role: Role::Generation,
                request_type: Some("generation_only"),
                ..claim()
            },
            AffinityClaim {
                role: Role::Generation,
                ..claim()
            },
            AffinityClaim {
                request_type: Some("generation_only"),
                ..claim()
            },
            AffinityClaim {
                request_type: None,
                ..claim()
            },
            AffinityClaim {
                conversation_id: None,
                ..claim()
            },
            AffinityClaim {
                conversation_id: Some(" \u{1f}"),
                ..claim()
            },
            AffinityClaim {
                disagg_request_id: None,
                ..claim()
            },
            AffinityClaim {
                affinity_id: "",
                ..claim()
            },
            AffinityClaim {
                affinity_id: "parent ",
                ..claim()
            },
        ];
        for claim in unsigned {
            assert_eq!(dynamo(&claim), None, "{claim:?}");
            assert!(claim.payload(SigningProfile::Trtllm).is_some());
        }
    }
}
