//! One entry of expected values, or one line of `kindred sign` and `kindred verify`.
//!
//! An [`Entry`] reads the inputs that both share and runs them through the signing code. Values stay
//! raw JSON until they are asked for, so that numbers of any size survive. It never guesses: a field
//! that is absent or of another type is a [`FieldError`] that names it.

use std::fmt;

use crate::wire::{
    Role, coerce,
    headers::{self, AFFINITY_AUTH, AFFINITY_ID, DISAGG_AUTH},
    object::Object,
    python,
    signature::{KvTransfer, SigningKey, SigningKeys, SigningProfile},
    text::Text,
    verify::{Refusal, SignedFacts, Verifier},
};

/// A field that an entry lacks, or that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    field: String,
    problem: String,
}

impl FieldError {
    pub(super) fn new(field: &str, problem: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field '{}' {}", self.field, self.problem)
    }
}

/// What signing an entry gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The headers to send, in order; the reason where the request is refused.
    pub headers: Result<Vec<(&'static str, String)>, String>,
    /// The payload, where there is something to sign.
    pub canonical: Option<String>,
}

/// Header names and values of an entry.
pub type HeaderList = Vec<(String, String)>;

/// The fields of one entry.
#[derive(Debug, Clone)]
pub struct Entry<'a>(Object<'a>);

impl<'a> Entry<'a> {
    /// Reads one JSON object.
    pub fn parse(raw: &'a str) -> Result<Self, serde_json::Error> {
        Object::parse(raw).map(Self)
    }

    /// Whether the entry has this field, `null` included.
    pub fn has(&self, field: &str) -> bool {
        self.0.get(field).is_some()
    }

    /// The raw value of a field that must be there.
    pub fn raw(&self, field: &str) -> Result<&'a str, FieldError> {
        let missing = || FieldError::new(field, "is missing");
        self.0.get(field).map(|raw| raw.get()).ok_or_else(missing)
    }

    /// A text that must be there; `null` is `None`.
    pub fn text(&self, field: &str) -> Result<Option<String>, FieldError> {
        match self.any_text(field)? {
            None => Ok(None),
            Some(Text::Plain(text)) => Ok(Some(text.into_owned())),
            Some(Text::Wide(_)) => Err(FieldError::new(field, "has half of a surrogate pair")),
        }
    }

    /// As [`Entry::text`], lone surrogates allowed.
    fn any_text(&self, field: &str) -> Result<Option<Text<'a>>, FieldError> {
        let raw = self.raw(field)?;
        if raw == "null" {
            return Ok(None);
        }
        let unfit = || FieldError::new(field, "must be a string or null");
        Text::from_json(raw).map(Some).ok_or_else(unfit)
    }

    /// The entry's name; empty where it has none.
    pub fn name(&self) -> String {
        self.text("name").ok().flatten().unwrap_or_default()
    }

    /// A boolean that must be there.
    pub fn boolean(&self, field: &str) -> Result<bool, FieldError> {
        match self.raw(field)? {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(FieldError::new(field, "must be true or false")),
        }
    }

    /// The key; empty and `null` are none, as upstream.
    pub fn key(&self) -> Result<Option<SigningKeys>, FieldError> {
        let secret = self.text("key")?.unwrap_or_default();
        Ok(SigningKey::new(&secret).ok().map(SigningKeys::from))
    }

    fn verifier(&self, role: Option<Role>) -> Result<Verifier, FieldError> {
        Ok(Verifier {
            role,
            profile: SigningProfile::Trtllm,
            keys: self.key()?,
        })
    }

    /// The role; every role that takes no affinity is the same here.
    pub fn role(&self) -> Result<Option<Role>, FieldError> {
        Ok(self.text("role")?.map(|role| {
            let known = [Role::Context, Role::Generation].into_iter();
            let mut known = known.filter(|known| role.eq_ignore_ascii_case(known.as_wire()));
            known.next().unwrap_or(Role::Aggregated)
        }))
    }

    /// Header pairs, `[[name, value], ...]`; `null` is none.
    pub fn headers(&self) -> Result<HeaderList, FieldError> {
        let pairs: Result<Option<HeaderList>, _> = serde_json::from_str(self.raw("headers")?);
        pairs.map(Option::unwrap_or_default).map_err(|error| {
            let problem = format!("must be a list of [name, value] pairs: {error}");
            FieldError::new("headers", problem)
        })
    }

    /// What a worker reads of the request; the inner error is a refusal of the request.
    pub fn facts(&self) -> Result<Result<SignedFacts<'a>, String>, FieldError> {
        let missing = || FieldError::new("model", "must be a string");
        let model = self.any_text("model")?.ok_or_else(missing)?;
        let raw = self.raw("conversation_id")?;
        let conversation_id = match raw {
            "null" => None,
            raw => match python::str_of(raw).and_then(Text::stripped) {
                Some(id) => Some(id),
                None => return Ok(Err("conversation_id must be non-empty".to_owned())),
            },
        };
        let (request_type, disagg_request_id) = self.disagg_facts()?;
        Ok(Ok(SignedFacts {
            model,
            conversation_id,
            request_type,
            disagg_request_id,
        }))
    }

    fn disagg_facts(&self) -> Result<(Option<Text<'a>>, Option<coerce::Integer>), FieldError> {
        const ID: &str = "disagg_request_id";
        let request_type = self.any_text("request_type")?;
        let id = match self.raw(ID)? {
            "null" => None,
            raw => Some(
                coerce::integer(raw)
                    .map_err(|unfit| FieldError::new(ID, format!("must be {} or null", unfit.0)))?,
            ),
        };
        if self.has("has_disagg_params") && !self.boolean("has_disagg_params")? {
            return Ok((None, None));
        }
        Ok((request_type, id))
    }

    /// The KV transfer fields; the inner error is a refusal of the request.
    pub fn transfer(&self) -> Result<Result<KvTransfer<'a>, String>, FieldError> {
        let state = self.raw("encoded_opaque_state")?;
        let endpoint = self.raw("ctx_info_endpoint")?;
        let transfer = KvTransfer::new(Some(state), Some(endpoint));
        Ok(transfer.map_err(|error| error.to_string()))
    }

    /// Signs the affinity of the entry's request (specification section 5.4).
    pub fn sign_affinity(&self) -> Result<Signed, FieldError> {
        let (key, role) = (self.key()?, self.role()?);
        let id = self.text("subagent_affinity_id")?.unwrap_or_default();
        let facts = self.facts()?;
        let id = headers::strip(&id);
        let role = role.filter(|role| role.takes_affinity() && !id.is_empty());
        let Some(role) = role else {
            return Ok(Signed::nothing());
        };
        let facts = match facts {
            Ok(facts) => facts,
            Err(refused) => return Ok(Signed::refused(refused)),
        };
        let Some(payload) = facts.payload(SigningProfile::Trtllm, role, id) else {
            return Ok(Signed::nothing());
        };
        let headers = match key {
            None => Err(Refusal::KeyMissing.to_string()),
            Some(key) => Ok(vec![
                (AFFINITY_ID, id.to_owned()),
                (AFFINITY_AUTH, key.sign_payload(&payload)),
            ]),
        };
        Ok(Signed {
            headers,
            canonical: Some(payload),
        })
    }

    /// Signs the KV transfer of the entry's request (specification section 5.5).
    pub fn sign_transfer(&self) -> Result<Signed, FieldError> {
        let key = self.key()?;
        let transfer = match self.transfer()? {
            Ok(transfer) => transfer,
            Err(refused) => return Ok(Signed::refused(refused)),
        };
        if !transfer.requires_auth() {
            return Ok(Signed::nothing());
        }
        let signature = key.map(|key| (DISAGG_AUTH, key.sign_disagg(&transfer)));
        Ok(Signed {
            headers: Ok(signature.into_iter().collect()),
            canonical: Some(transfer.canonical()),
        })
    }

    /// The verdict on the entry's affinity headers; the inner error is the message of a refusal.
    pub fn verify_affinity(&self) -> Result<Result<Option<String>, Refused>, FieldError> {
        let (verifier, headers) = (self.verifier(self.role()?)?, self.headers()?);
        Ok(match self.facts()? {
            Ok(facts) => verifier
                .affinity(&headers, &facts)
                .map(|verified| verified.map(|verified| verified.affinity_id))
                .map_err(Refused::from),
            Err(message) => Err(Refused::body(message)),
        })
    }

    /// The verdict on the entry's KV transfer signature.
    pub fn verify_transfer(&self) -> Result<Result<(), Refused>, FieldError> {
        let (verifier, headers) = (self.verifier(None)?, self.headers()?);
        Ok(match self.transfer()? {
            Ok(transfer) => verifier
                .kv_transfer(&headers, &transfer)
                .map(drop)
                .map_err(Refused::from),
            Err(message) => Err(Refused::body(message)),
        })
    }
}

impl Signed {
    fn nothing() -> Self {
        Self {
            headers: Ok(Vec::new()),
            canonical: None,
        }
    }

    fn refused(message: String) -> Self {
        Self {
            headers: Err(message),
            canonical: None,
        }
    }
}

/// A request that a worker answers with 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What the answer says.
    pub message: String,
    /// Whether it is for two copies of a header, where upstream would take one of them.
    pub repeated: bool,
}

impl Refused {
    fn body(message: String) -> Self {
        Self {
            message,
            repeated: false,
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            message: refusal.to_string(),
            repeated: matches!(refusal, Refusal::Repeated(_)),
        }
    }
}
