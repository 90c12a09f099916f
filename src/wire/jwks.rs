//! The keys of a token issuer (RFC 7517), and what a token signed by one of them says (RFC 7519).
//!
//! It decides which algorithm a key may be used with: by its type and curve, by its own `alg` and
//! `use`, and by the configured list; a token's header only ever chooses among those. Keys are parsed
//! when a set is read, not per request. Symmetric keys and `none` are never taken, whatever the set or
//! the token says: a public key must not become a secret.

mod ring_provider;

use std::fmt;

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse},
};
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};

/// Bytes of a key set at most.
pub const MAX_SET: usize = 1024 * 1024;
/// Keys of a set at most.
const MAX_KEYS: usize = 100;
/// Bytes of a token at most.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Bytes of an RSA modulus at least: 2048 bits.
const MIN_MODULUS: usize = 256;

/// The algorithms that there are, by their names in RFC 7518 and RFC 8037.
pub const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// The public keys of an issuer that can be used.
pub struct KeySet {
    keys: Vec<Key>,
    /// The digest of the text that they were read from.
    fingerprint: [u8; 32],
}

struct Key {
    id: Option<String>,
    /// What it may be used with.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet")
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

/// Why a token is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenError {
    /// No key of the set has its id, or none fits its algorithm.
    UnknownKey,
    /// It is longer than [`MAX_TOKEN`], not a token at all, or its algorithm is not allowed.
    Malformed,
    /// Its signature is not by the key it names.
    Signature,
    /// Its time is over, or has not come.
    Time,
    /// It is of another issuer, for another audience, or lacks a claim that is needed.
    Claims,
}

impl KeySet {
    /// No keys: those of a set that was not fetched yet.
    pub fn empty() -> Self {
        Self {
            keys: Vec::new(),
            fingerprint: [0; 32],
        }
    }

    /// Reads a key set. A key that is for something else is passed over.
    ///
    /// # Errors
    /// What is wrong, as the rest of a sentence: too large, no JSON, or no key that could be used.
    pub fn parse(bytes: &[u8], allowed: &[Algorithm]) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Set<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        ring_provider::install();
        if bytes.len() > MAX_SET {
            return Err("is larger than 1 MiB".to_owned());
        }
        let set: Set<'_> = serde_json::from_slice(bytes)
            .map_err(|_| "is no JSON Web Key Set: {\"keys\": [...]}".to_owned())?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("has more than {MAX_KEYS} keys"));
        }
        let keys = set.keys.iter().filter_map(|key| usable(key.get(), allowed));
        let keys: Vec<Key> = keys.collect();
        if keys.is_empty() {
            return Err(
                "has no public key for signatures that fits jwt.algorithms (RSA keys need 2048 bits)"
                    .to_owned(),
            );
        }
        Ok(Self {
            keys,
            fingerprint: fingerprint(bytes),
        })
    }

    /// Whether it was read from this text.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.fingerprint == fingerprint(bytes)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The claims of a good token. `rules` say which issuer, audience and leeway; the algorithm is
    /// that of the key.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(
        &self,
        token: &[u8],
        rules: &Validation,
    ) -> Result<Map<String, Value>, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let head = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)?;
        let known = |algorithm| ALGORITHMS.iter().any(|(_, known)| *known == algorithm);
        if !known(head.alg) {
            return Err(TokenError::Malformed);
        }
        let key = self.key(head.kid.as_deref(), head.alg)?;
        let rules = Validation {
            algorithms: vec![head.alg],
            ..rules.clone()
        };
        let decoded = jsonwebtoken::decode::<Map<String, Value>>(token, key, &rules);
        decoded
            .map(|token| token.claims)
            .map_err(|error| reason(error.kind()))
    }

    /// The key that a token names. One that names none is by the only key that fits.
    fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&DecodingKey, TokenError> {
        let fits = |key: &&Key| {
            let named = id.is_none_or(|id| key.id.as_deref() == Some(id));
            named && key.algorithms.contains(&algorithm)
        };
        let mut keys = self.keys.iter().filter(fits);
        match (keys.next(), keys.next()) {
            (Some(key), None) => Ok(&key.key),
            _ => Err(TokenError::UnknownKey),
        }
    }
}

/// The rules for tokens of these issuers for these audiences.
pub fn rules(issuers: &[String], audiences: &[String], leeway: u64) -> Validation {
    let mut rules = Validation::new(Algorithm::EdDSA);
    rules.leeway = leeway;
    rules.validate_nbf = true;
    rules.set_issuer(issuers);
    rules.set_audience(audiences);
    rules.set_required_spec_claims(&["exp", "iss", "aud"]);
    rules
}

/// Whether this has the form of a token: three parts in base64url.
pub fn looks_like_a_token(text: &[u8]) -> bool {
    let part = |part: &[u8]| {
        let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        part.iter().all(digit)
    };
    let parts = || text.split(|byte| *byte == b'.');
    // The last part of an unsigned token is empty: it is a token all the same, and refused as one.
    parts().count() == 3 && parts().all(part) && parts().take(2).all(|part| !part.is_empty())
}

fn fingerprint(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn reason(kind: &jsonwebtoken::errors::ErrorKind) -> TokenError {
    use jsonwebtoken::errors::ErrorKind;
    match kind {
        ErrorKind::ExpiredSignature | ErrorKind::ImmatureSignature => TokenError::Time,
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidIssuer
        | ErrorKind::InvalidAudience
        | ErrorKind::MissingRequiredClaim(_)
        | ErrorKind::InvalidClaimFormat(_) => TokenError::Claims,
        _ => TokenError::Malformed,
    }
}

/// A key that may verify something, with what it may verify.
fn usable(text: &str, allowed: &[Algorithm]) -> Option<Key> {
    let jwk: Jwk = serde_json::from_str(text).ok()?;
    let common = &jwk.common;
    if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let own = common.key_algorithm.as_ref();
    let algorithms = by_type(&jwk.algorithm).iter().copied();
    let algorithms = algorithms.filter(|algorithm| {
        allowed.contains(algorithm) && own.is_none_or(|own| same(own, *algorithm))
    });
    let algorithms: Vec<Algorithm> = algorithms.collect();
    if algorithms.is_empty() {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    sound(&key, &algorithms).then_some(Key {
        id: common.key_id.clone(),
        algorithms,
        key,
    })
}

fn same(own: &KeyAlgorithm, algorithm: Algorithm) -> bool {
    let named = ALGORITHMS.iter().find(|(_, known)| *known == algorithm);
    let own = serde_json::to_value(own).ok();
    named.is_some_and(|(name, _)| own.as_ref().and_then(Value::as_str) == Some(name))
}

/// What a key of this type and curve can verify.
fn by_type(parameters: &AlgorithmParameters) -> &'static [Algorithm] {
    const RSA: [Algorithm; 6] = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
    ];
    match parameters {
        AlgorithmParameters::RSA(_) => &RSA,
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        _ => &[],
    }
}

/// Whether the key is as long as its type says.
fn sound(key: &DecodingKey, algorithms: &[Algorithm]) -> bool {
    use jsonwebtoken::DecodingKeyKind;
    match (key.kind(), algorithms.first()) {
        (DecodingKeyKind::RsaModulusExponent { n, .. }, _) => {
            let leading = n.iter().take_while(|byte| **byte == 0).count();
            n.len() - leading >= MIN_MODULUS
        }
        (DecodingKeyKind::SecretOrDer(point), Some(Algorithm::ES256)) => point.len() == 65,
        (DecodingKeyKind::SecretOrDer(point), Some(Algorithm::ES384)) => point.len() == 97,
        (DecodingKeyKind::SecretOrDer(point), Some(Algorithm::EdDSA)) => point.len() == 32,
        _ => false,
    }
}
