//! An issuer of tokens: keys of every type, tokens signed by them, and the key set as JSON.

use std::{
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD as STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64},
};
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        Ed25519KeyPair, KeyPair, RsaKeyPair,
    },
};
use serde_json::{Value, json};

pub const ISSUER: &str = "https://issuer.test";

pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// Claims that are good for client ada.
pub fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "kindred", "sub": "ada@x", "exp": now() + 600})
}

/// A private key with its id.
pub struct Key {
    pub id: &'static str,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Key {
    pub fn rsa(id: &'static str) -> Self {
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA"])
            .args(["-pkeyopt", "rsa_keygen_bits:2048"])
            .output()
            .expect("openssl, which makes RSA keys");
        let pem = String::from_utf8(made.stdout).unwrap();
        let lines = pem.lines().filter(|line| !line.starts_with('-'));
        let der = STANDARD.decode(lines.collect::<String>()).unwrap();
        let pair = RsaKeyPair::from_pkcs8(&der).unwrap();
        Self {
            id,
            pair: Pair::Rsa(pair),
        }
    }

    pub fn p256(id: &'static str) -> Self {
        let pair = ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Self {
            id,
            pair: Pair::P256(pair),
        }
    }

    pub fn p384(id: &'static str) -> Self {
        let pair = ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING);
        Self {
            id,
            pair: Pair::P384(pair),
        }
    }

    pub fn ed(id: &'static str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        Self {
            id,
            pair: Pair::Ed(pair),
        }
    }

    /// The public key as a member of a set.
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| BASE64.encode(bytes);
        let ec = |curve: &str, pair: &EcdsaKeyPair| {
            let point = &pair.public_key().as_ref()[1..];
            let (x, y) = point.split_at(point.len() / 2);
            json!({"kty": "EC", "crv": curve, "x": text(x), "y": text(y)})
        };
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let public: PublicKeyComponents<Vec<u8>> = pair.public_key().into();
                json!({"kty": "RSA", "n": text(&public.n), "e": text(&public.e)})
            }
            Pair::P256(pair) => ec("P-256", pair),
            Pair::P384(pair) => ec("P-384", pair),
            Pair::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref())})
            }
        };
        jwk["kid"] = self.id.into();
        jwk
    }

    /// The bytes that somebody might take for a secret: all that is public of the key.
    pub fn public(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Pair::P256(pair) | Pair::P384(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ed(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// A token with this `alg` and these claims, signed by this key.
    pub fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.signed(
            &json!({"alg": algorithm, "typ": "JWT", "kid": self.id}),
            claims,
        )
    }

    /// A token with this header.
    pub fn signed(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let random = SystemRandom::new();
        let bytes = message.as_bytes();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let padding: &dyn signature::RsaEncoding = match header["alg"].as_str().unwrap() {
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    "PS512" => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &random, bytes, &mut signature).unwrap();
                signature
            }
            Pair::P256(pair) | Pair::P384(pair) => {
                pair.sign(&random, bytes).unwrap().as_ref().to_vec()
            }
            Pair::Ed(pair) => pair.sign(bytes).as_ref().to_vec(),
        };
        format!("{message}.{}", BASE64.encode(signature))
    }
}

fn ecdsa(algorithm: &'static signature::EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap()
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// A token without a signature.
pub fn unsigned(algorithm: &str) -> String {
    format!(
        "{}.",
        message(&json!({"alg": algorithm, "typ": "JWT"}), &claims())
    )
}

/// A token by which a public key is passed off as a secret.
pub fn hmac_by(secret: &[u8], id: &str) -> String {
    let message = message(&json!({"alg": "HS256", "typ": "JWT", "kid": id}), &claims());
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", BASE64.encode(tag))
}

/// A key set.
pub fn set(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}
