//! Delegations: tokens by which a session lets its client's sub-agents name it as their parent.
//!
//! A token is `v1.EXPIRY.MAC`: when it ends, in Unix seconds, and an HMAC-SHA256 over that, the
//! client's name and the session's id. Whoever has the key can check one, so every replica can, with
//! nothing shared but the configuration. The key is derived from the configured secret for this one
//! use. A token must never say more than it binds, and a wrong one never why it is wrong.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

use crate::config::DelegationConfig;

/// The header that carries a token, on answers and on requests.
pub const HEADER: &str = "x-kindred-delegation";
const VERSION: &str = "v1";
/// What tells this use of the secret from every other.
const LABEL: &[u8] = b"kindred delegation v1";
/// Longer ones are none.
const LONGEST: usize = 128;

/// Makes and checks tokens.
pub struct Delegations {
    /// The first one signs.
    keys: Vec<Hmac<Sha256>>,
    ttl: Duration,
    /// Whether the answers of a session carry a token for it.
    pub on_answers: bool,
}

impl fmt::Debug for Delegations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delegations").finish_non_exhaustive()
    }
}

/// A token, as it is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    /// When it ends, in Unix seconds.
    pub expires_at: u64,
}

impl Delegations {
    /// From a configuration; without keys of its own, from those that the edge signs with.
    pub fn new(config: &DelegationConfig, inherited: &[SecretString]) -> Self {
        let own = match config.keys.is_empty() {
            true => inherited,
            false => &config.keys,
        };
        Self {
            keys: own.iter().filter_map(derived).collect(),
            ttl: config.ttl,
            on_answers: config.on_answers,
        }
    }

    /// A token by which requests of `client` may name `session`; `None` without a key.
    pub fn issue(&self, client: &str, session: &str, now: SystemTime) -> Option<Token> {
        let expires_at = unix(now + self.ttl);
        let mac = mac(self.keys.first()?, client, session, expires_at);
        let mac = BASE64_URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
        Some(Token {
            text: format!("{VERSION}.{expires_at}.{mac}"),
            expires_at,
        })
    }

    /// Whether `token` lets `client` name `session` now. Looks at every key.
    pub fn allows(&self, token: &str, client: &str, session: &str, now: SystemTime) -> bool {
        let Some((expires_at, presented)) = read(token) else {
            return false;
        };
        let mut known = Choice::from(0);
        for key in &self.keys {
            let expected = mac(key, client, session, expires_at).finalize();
            known |= expected.into_bytes().ct_eq(&presented[..]);
        }
        // One that claims to end later than any that is made now was made with another clock.
        let most = unix(now + self.ttl) + CLOCK_SKEW;
        bool::from(known) && expires_at > unix(now) && expires_at <= most
    }
}

/// Seconds by which the clocks of replicas may differ.
const CLOCK_SKEW: u64 = 60;

fn derived(secret: &SecretString) -> Option<Hmac<Sha256>> {
    let mut root = Hmac::<Sha256>::new_from_slice(secret.expose_secret().as_bytes()).ok()?;
    root.update(LABEL);
    Hmac::new_from_slice(&root.finalize().into_bytes()).ok()
}

/// The texts with their lengths before them, so that no two triples read alike.
fn mac(key: &Hmac<Sha256>, client: &str, session: &str, expires_at: u64) -> Hmac<Sha256> {
    let mut mac = key.clone();
    for text in [client, session] {
        mac.update(&(text.len() as u64).to_be_bytes());
        mac.update(text.as_bytes());
    }
    mac.update(&expires_at.to_be_bytes());
    mac
}

/// The parts of a token in its one spelling.
fn read(token: &str) -> Option<(u64, Vec<u8>)> {
    if token.len() > LONGEST {
        return None;
    }
    let rest = token.strip_prefix(VERSION)?.strip_prefix('.')?;
    let (expiry, mac) = rest.split_once('.')?;
    let expires_at: u64 = expiry.parse().ok()?;
    let one_spelling = expires_at.to_string() == expiry;
    let mac = BASE64_URL_SAFE_NO_PAD.decode(mac).ok()?;
    one_spelling.then_some((expires_at, mac))
}

fn unix(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delegations(keys: &[&str]) -> Delegations {
        let config = DelegationConfig {
            keys: keys.iter().map(|key| (*key).into()).collect(),
            ttl: Duration::from_secs(300),
            on_answers: false,
        };
        Delegations::new(&config, &["inherited-secret".into()])
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_is_good_for_its_client_its_session_and_its_time() {
        let here = delegations(&["one"]);
        let token = here.issue("ada", "parent", at(1000)).expect("a key");
        assert_eq!(token.expires_at, 1300);
        let elsewhere = delegations(&["one"]);
        assert!(elsewhere.allows(&token.text, "ada", "parent", at(1299)));
        for (client, session, now) in [
            ("ada", "parent", 1300),
            ("ada", "parent", 900),
            ("ben", "parent", 1000),
            ("ada", "parent2", 1000),
            ("adap", "arent", 1000),
        ] {
            let allowed = here.allows(&token.text, client, session, at(now));
            assert!(!allowed, "{client} {session} {now}");
        }
    }

    #[test]
    fn no_other_token_is_good() {
        let here = delegations(&["one"]);
        let token = here.issue("ada", "parent", at(1000)).expect("a key").text;
        let allowed = |token: &str| here.allows(token, "ada", "parent", at(1000));
        assert!(allowed(&token));
        for at in 0..token.len() {
            for other in ["A", "b", "0", "9", ".", "=", ""] {
                let mut changed = token.clone();
                changed.replace_range(at..=at, other);
                assert!(changed == token || !allowed(&changed), "{changed}");
            }
        }
        let longer = token.replacen("v1.", "v1.0", 1);
        for wrong in ["", "v1", "v1..", "v1.2000.", &longer, &format!("{token}\0")] {
            assert!(!allowed(wrong), "{wrong}");
        }
        let signed_by_another = delegations(&["two"]).issue("ada", "parent", at(1000));
        assert!(!allowed(&signed_by_another.expect("a key").text));
    }

    #[test]
    fn a_key_that_is_replaced_is_good_as_long_as_it_is_listed() {
        let old = delegations(&["old"]).issue("ada", "parent", at(1000));
        let old = old.expect("a key").text;
        let both = delegations(&["new", "old"]);
        assert!(both.allows(&old, "ada", "parent", at(1000)));
        assert!(!delegations(&["new"]).allows(&old, "ada", "parent", at(1000)));
        let new = both.issue("ada", "parent", at(1000)).expect("a key").text;
        assert!(delegations(&["new"]).allows(&new, "ada", "parent", at(1000)));
    }

    #[test]
    fn the_key_is_not_the_secret_itself() {
        let inherited = delegations(&[]);
        let token = inherited.issue("ada", "parent", at(1000)).expect("a key");
        let raw = Hmac::<Sha256>::new_from_slice(b"inherited-secret").expect("a key");
        let raw = mac(&raw, "ada", "parent", token.expires_at).finalize();
        let raw = BASE64_URL_SAFE_NO_PAD.encode(raw.into_bytes());
        assert!(!token.text.contains(&raw));
    }
}
