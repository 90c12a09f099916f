//! The two signatures between the edge and the workers.
//!
//! Both are `sha256=` and the lower-case hex HMAC-SHA256 of a canonical JSON payload (specification
//! sections 5.4 to 5.6). This file says what is signed, in the words of either [`SigningProfile`];
//! `keys` signs and compares. It takes no part in deciding whether a signature is needed (`verify`
//! does).

mod keys;
mod profile;

use super::{Role, canonical, coerce::Integer, escape, headers, object::Object, text::Text};

pub use keys::{EmptyKey, SigningKey, SigningKeys};
pub use profile::SigningProfile;
pub(super) use profile::is_trimmed;

/// What `x-trtllm-subagent-affinity-auth` vouches for (specification section 5.4).
#[derive(Debug, Clone)]
pub struct AffinityClaim<'a> {
    /// The role of the instance that the request goes to.
    pub role: Role,
    /// The model exactly as in the body.
    pub model: &'a str,
    /// The id in the body's `conversation_params`, stripped.
    pub conversation_id: Option<&'a str>,
    /// The parent's id as latin-1 text, stripped: what `x-trtllm-subagent-affinity-id` carries.
    pub affinity_id: &'a str,
    /// `disaggregated_params.request_type` of the body.
    pub request_type: Option<&'a str>,
    /// `disaggregated_params.disagg_request_id` of the body.
    pub disagg_request_id: Option<Integer>,
}

impl AffinityClaim<'_> {
    /// The payload that is signed in upstream's profile, which signs every claim.
    pub fn canonical(&self) -> String {
        affinity_payload(
            self.role,
            self.affinity_id,
            &Text::from(self.model),
            self.conversation_id.map(Text::from).as_ref(),
            self.request_type.map(Text::from).as_ref(),
            self.disagg_request_id.as_ref(),
        )
    }

    /// The payload that is signed in a profile; `None` where the profile signs no such request.
    pub fn payload(&self, profile: SigningProfile) -> Option<String> {
        profile.payload(
            self.role,
            self.affinity_id,
            &Text::from(self.model),
            self.conversation_id.map(Text::from).as_ref(),
            self.request_type.map(Text::from).as_ref(),
            self.disagg_request_id.as_ref(),
        )
    }
}

/// The canonical payload of upstream's affinity signature; texts may have lone surrogates.
pub(super) fn affinity_payload(
    role: Role,
    affinity_id: &str,
    model: &Text,
    conversation_id: Option<&Text>,
    request_type: Option<&Text>,
    disagg_request_id: Option<&Integer>,
) -> String {
    let mut out = String::with_capacity(256 + affinity_id.len());
    out.push_str("{\"conversation_id\":");
    escape::optional(&mut out, conversation_id);
    out.push_str(",\"disagg_request_id\":");
    match disagg_request_id {
        Some(id) => out.push_str(&id.to_string()),
        None => out.push_str("null"),
    }
    out.push_str(",\"model\":");
    escape::text(&mut out, model);
    out.push_str(",\"purpose\":\"");
    out.push_str(headers::AFFINITY_ID);
    out.push_str("\",\"request_type\":");
    escape::optional(&mut out, request_type);
    out.push_str(",\"role\":\"");
    out.push_str(role.as_wire());
    out.push_str("\",\"subagent_affinity_id\":");
    escape::string(&mut out, affinity_id);
    out.push('}');
    out
}

/// The fields of `disaggregated_params` that `x-trtllm-disagg-auth` protects (specification section
/// 5.5), as raw JSON; `None` where a field is absent or null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvTransfer<'a> {
    encoded_opaque_state: Option<&'a str>,
    ctx_info_endpoint: Option<&'a str>,
}

/// A protected field is not JSON, or far too large a list or map to be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a value that can be signed")]
pub struct Unsignable(pub &'static str);

impl<'a> KvTransfer<'a> {
    /// From the raw JSON of both fields; absent and `null` are the same.
    pub fn new(
        encoded_opaque_state: Option<&'a str>,
        ctx_info_endpoint: Option<&'a str>,
    ) -> Result<Self, Unsignable> {
        let checked = |raw: Option<&'a str>, field| match raw {
            None | Some("null") => Ok(None),
            Some(raw) if Text::from_json(raw).is_some() => Ok(Some(raw)),
            Some(raw) => match canonical::json(&mut String::new(), raw) {
                Some(()) => Ok(Some(raw)),
                None => Err(Unsignable(field)),
            },
        };
        Ok(Self {
            encoded_opaque_state: checked(encoded_opaque_state, "encoded_opaque_state")?,
            ctx_info_endpoint: checked(ctx_info_endpoint, "ctx_info_endpoint")?,
        })
    }

    /// From the members of a `disaggregated_params` map.
    pub fn of(params: &Object<'a>) -> Result<Self, Unsignable> {
        Self::new(
            params.present("encoded_opaque_state"),
            params.present("ctx_info_endpoint"),
        )
    }

    /// Whether the request needs a signature at all.
    pub fn requires_auth(&self) -> bool {
        self.encoded_opaque_state.is_some() || self.ctx_info_endpoint.is_some()
    }

    /// The payload that is signed: of a list of endpoints the first one, whatever it is.
    pub fn canonical(&self) -> String {
        let state = self.encoded_opaque_state.unwrap_or("null");
        let endpoint = self.ctx_info_endpoint.unwrap_or("null");
        let mut out = String::with_capacity(64 + state.len() + endpoint.len());
        out.push_str("{\"ctx_info_endpoint\":");
        // `new` has made sure that both can be written.
        let _ = canonical::json(&mut out, first_element(endpoint));
        out.push_str(",\"encoded_opaque_state\":");
        let _ = canonical::json(&mut out, state);
        out.push('}');
        out
    }
}

/// The first element of a list, anything else as it is; of an empty list `null`.
pub(super) fn first_element(raw: &str) -> &str {
    if !raw.starts_with('[') {
        return raw;
    }
    let items: Vec<&serde_json::value::RawValue> = serde_json::from_str(raw).unwrap_or_default();
    items.first().map_or("null", |first| first.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        SigningKey::new("secret").expect("a key")
    }

    fn claim() -> AffinityClaim<'static> {
        AffinityClaim {
            role: Role::Context,
            model: "test-model",
            conversation_id: Some("child"),
            affinity_id: "parent",
            request_type: Some("context_only"),
            disagg_request_id: Some(Integer::from(42)),
        }
    }

    fn transfer<'a>(state: Option<&'a str>, endpoint: Option<&'a str>) -> KvTransfer<'a> {
        KvTransfer::new(state, endpoint).expect("JSON")
    }

    #[test]
    fn signs_the_specified_affinity_payloads() {
        let cases = [
            (
                claim(),
                "62c51cfa1713d6ad8cb87f9615f46c9beb492bddb8aa3904e57feb446e0b307e",
            ),
            (
                AffinityClaim {
                    role: Role::Generation,
                    request_type: Some("generation_only"),
                    ..claim()
                },
                "a54f9315079d95e2ef62450564e610f8364d0f5f1e1c1a98b9813f1a5b8023e9",
            ),
            (
                AffinityClaim {
                    model: "m",
                    conversation_id: None,
                    disagg_request_id: None,
                    ..claim()
                },
                "af14e38f785d483161a664302065176857a38f623d37ad9a924a4b3f5f74bbba",
            ),
            (
                AffinityClaim {
                    model: "m",
                    conversation_id: Some("\u{4f1a}\u{8bdd}-\u{1f600}"),
                    disagg_request_id: Some(Integer::from(1 << 40)),
                    ..claim()
                },
                "effecac7890913b7fdc9f5c9ac9005af57a1f4c0721aa36ce609b863d6a9183e",
            ),
            (
                AffinityClaim {
                    model: "m",
                    affinity_id: &headers::latin1(b"caf\xc3\xa9"),
                    disagg_request_id: Some(Integer::from(7)),
                    ..claim()
                },
                "4391c8a97ac191695bc5918b91de7fc9e4fd514c3919856f28263e7552720242",
            ),
            (
                AffinityClaim {
                    model: "m",
                    conversation_id: Some("a\"b\\c\u{7f}\t/d"),
                    disagg_request_id: Some(Integer::from(7)),
                    ..claim()
                },
                "93213fd11a6b16fd5f6e02090ed28bf155aae53b2c3b08e10d1b9894c256c148",
            ),
        ];
        for (claim, hex) in cases {
            let signature = key().sign_affinity(&claim);
            assert_eq!(signature, format!("sha256={hex}"), "{}", claim.canonical());
            assert!(key().verify_affinity(&claim, &signature));
            assert!(!key().verify_affinity(&claim, hex));
        }
    }

    #[test]
    fn signs_the_specified_transfer_payloads() {
        let (state, endpoint) = (Some("\"b3BhcXVl\""), Some("\"tcp://10.0.0.1:5000\""));
        for (transfer, hex) in [
            (
                transfer(state, None),
                "dd0226a7360fb1d422781ed05d4db132774395583e9f79091e0113371cae3257",
            ),
            (
                transfer(None, endpoint),
                "9f231f1556947f2cc0d68b742964cb16e8662f6b41262d536be4f2692f786130",
            ),
            (
                transfer(state, endpoint),
                "2c855337a244b082618df980f3ca112bdd1d90f76609d813aef90813a9cf64b9",
            ),
        ] {
            assert_eq!(key().sign_disagg(&transfer), format!("sha256={hex}"));
            assert!(transfer.requires_auth());
        }
        assert!(!transfer(None, Some("null")).requires_auth());
        let empty = transfer(None, Some("[]"));
        assert!(empty.requires_auth());
        assert_eq!(
            empty.canonical(),
            r#"{"ctx_info_endpoint":null,"encoded_opaque_state":null}"#
        );
    }
}
