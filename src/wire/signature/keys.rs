//! The keys that the edge and the workers share.
//!
//! [`SigningKeys`] signs with its first key and verifies with all of them, so that a key can be
//! replaced while requests are in flight. Every comparison looks at every key and every byte; nothing
//! here ever shows a key.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{AffinityClaim, KvTransfer};

const PREFIX: &str = "sha256=";

type Digest = [u8; 32];

/// One key, ready to sign with.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

/// An empty key signs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the internal_request_auth_key is empty")]
pub struct EmptyKey;

impl SigningKey {
    /// A key from the configured text, whose UTF-8 bytes are the HMAC key.
    ///
    /// # Errors
    /// For an empty text.
    pub fn new(secret: &str) -> Result<Self, EmptyKey> {
        if secret.is_empty() {
            return Err(EmptyKey);
        }
        Hmac::new_from_slice(secret.as_bytes())
            .map(Self)
            .map_err(|_| EmptyKey)
    }

    /// The value of `x-trtllm-subagent-affinity-auth` for a claim, in upstream's profile.
    pub fn sign_affinity(&self, claim: &AffinityClaim) -> String {
        self.sign_payload(&claim.canonical())
    }

    /// Whether `presented` is the signature of a claim; takes the same time for every wrong one.
    pub fn verify_affinity(&self, claim: &AffinityClaim, presented: &str) -> bool {
        self.verify_payload(&claim.canonical(), presented)
    }

    /// The value of `x-trtllm-disagg-auth`.
    pub fn sign_disagg(&self, transfer: &KvTransfer) -> String {
        self.sign_payload(&transfer.canonical())
    }

    /// Whether `presented` is the signature of a KV transfer, in constant time.
    pub fn verify_disagg(&self, transfer: &KvTransfer, presented: &str) -> bool {
        self.verify_payload(&transfer.canonical(), presented)
    }

    fn verify_payload(&self, payload: &str, presented: &str) -> bool {
        read(presented).is_some_and(|digest| self.digest(payload).ct_eq(&digest).into())
    }

    /// The signature of a canonical payload.
    pub fn sign_payload(&self, payload: &str) -> String {
        written(&self.digest(payload))
    }

    fn digest(&self, payload: &str) -> Digest {
        let mut mac = self.0.clone();
        mac.update(payload.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

fn written(digest: &Digest) -> String {
    let digit = |value: u8| char::from(value + if value < 10 { b'0' } else { b'a' - 10 });
    let mut out = String::with_capacity(PREFIX.len() + 2 * digest.len());
    out.push_str(PREFIX);
    for byte in digest {
        out.push(digit(byte >> 4));
        out.push(digit(byte & 15));
    }
    out
}

/// The digest that `presented` spells exactly as [`written`] would. What is presented is no secret,
/// so only the comparison of digests has to take constant time.
fn read(presented: &str) -> Option<Digest> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = presented.strip_prefix(PREFIX)?.as_bytes();
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    let mut digest = Digest::default();
    if pairs.len() != digest.len() {
        return None;
    }
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(digest)
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// At least one key: the first signs, all of them verify.
#[derive(Debug, Clone)]
pub struct SigningKeys {
    first: SigningKey,
    rest: Box<[SigningKey]>,
}

impl SigningKeys {
    /// The most keys that a list may have.
    pub const MOST: usize = 8;

    /// Keys from the configured secrets, in their order, at most [`SigningKeys::MOST`]; `None`
    /// without a usable one.
    pub fn of(secrets: &[SecretString]) -> Option<Self> {
        let mut keys = secrets
            .iter()
            .take(Self::MOST)
            .filter_map(|secret| SigningKey::new(secret.expose_secret()).ok());
        Some(Self {
            first: keys.next()?,
            rest: keys.collect(),
        })
    }

    /// The value of `x-trtllm-disagg-auth`, by the first key.
    pub fn sign_disagg(&self, transfer: &KvTransfer) -> String {
        self.first.sign_disagg(transfer)
    }

    /// The signature of a canonical payload, by the first key.
    pub fn sign_payload(&self, payload: &str) -> String {
        self.first.sign_payload(payload)
    }

    /// The place in the list of the key that `presented` is by; the first of equal ones. Takes the
    /// same time whichever key it is, and if it is none.
    pub fn verify_payload(&self, payload: &str, presented: &str) -> Option<usize> {
        const NONE: u8 = u8::MAX;
        let keys = std::iter::once(&self.first).chain(&*self.rest);
        let digest = read(presented)?;
        let mut found = NONE;
        for (place, key) in (0..NONE).zip(keys) {
            let holds = key.digest(payload).ct_eq(&digest);
            let unfound = found.ct_eq(&NONE);
            found.conditional_assign(&place, holds & unfound);
        }
        (found != NONE).then_some(usize::from(found))
    }
}

impl From<SigningKey> for SigningKeys {
    fn from(key: SigningKey) -> Self {
        Self {
            first: key,
            rest: Box::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secrets: &[&str]) -> SigningKeys {
        let secrets: Vec<SecretString> = secrets.iter().map(|&secret| secret.into()).collect();
        SigningKeys::of(&secrets).expect("a key")
    }

    #[test]
    fn the_first_key_signs_and_every_key_verifies() {
        let both = keys(&["new", "old"]);
        assert_eq!(both.sign_payload("x"), keys(&["new"]).sign_payload("x"));
        for (place, secret) in ["new", "old"].into_iter().enumerate() {
            let signature = keys(&[secret]).sign_payload("x");
            assert_eq!(both.verify_payload("x", &signature), Some(place));
            assert_eq!(both.verify_payload("y", &signature), None);
        }
        let unknown = keys(&["other"]).sign_payload("x");
        assert_eq!(both.verify_payload("x", &unknown), None);
        let twice = keys(&["a", "a"]);
        let signature = twice.sign_payload("x");
        assert_eq!(twice.verify_payload("x", &signature), Some(0));
    }

    #[test]
    fn any_other_signature_fails() {
        let key = keys(&["secret"]);
        let good = key.sign_payload("x");
        let (upper, longer) = (good.to_uppercase(), format!("{good} "));
        let bare = good.strip_prefix(PREFIX).expect("the prefix");
        let (odd, other) = (&good[..70], good.replace(['0', '1', '2', '3'], "g"));
        for presented in ["", PREFIX, bare, &upper, &longer, odd, &other, "\u{ff}"] {
            assert_eq!(key.verify_payload("x", presented), None, "{presented}");
        }
    }

    #[test]
    fn shows_no_key_and_takes_no_empty_one() {
        let shown = format!("{:?}", keys(&["topmost", "secret"]));
        assert!(!shown.contains("topmost") && !shown.contains("secret"));
        assert_eq!(SigningKey::new("").map(drop), Err(EmptyKey));
        assert!(SigningKeys::of(&[]).is_none());
        assert!(SigningKeys::of(&["".into()]).is_none());
    }

    #[test]
    fn the_list_is_bounded() {
        let secrets: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let many = keys(&secrets);
        let by = |secret: &str| many.verify_payload("x", &keys(&[secret]).sign_payload("x"));
        assert_eq!((by("7"), by("8")), (Some(7), None));
    }
}
