//! Equal session ids of two clients are two sessions.
//!
//! Decides what a session is called where it is placed: on the edge by a key of client and id, on the
//! ranks by an opaque id that the edge signs, since a worker knows no clients. A family has one such id,
//! its parent's requests included. The id that a worker is told as the conversation's stays the
//! client's own, unless the configuration wants otherwise. Nothing here may depend on the process:
//! every replica must come to the same id.

use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;

use super::Client;
use crate::affinity::AffinityKey;

/// What tells these ids from every other use of the secret.
const LABEL: &[u8] = b"kindred session isolation v1";
/// How the opaque ids begin.
const PREFIX: &str = "kindred:";
/// No id that a client sends holds this character.
const SEPARATOR: char = '\u{1}';
/// Bytes of a digest that are used.
const DIGEST: usize = 16;

/// How the sessions of a configuration are kept apart.
pub struct Isolation {
    key: Hmac<Sha256>,
    /// Whether the ids that workers are told are the client's no more.
    pub namespaced: bool,
}

impl std::fmt::Debug for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Isolation")
            .field("namespaced", &self.namespaced)
            .finish_non_exhaustive()
    }
}

impl Isolation {
    /// With a key derived from the one that the edge signs with. Without one nothing is signed either,
    /// and the ids are told apart, though whoever knows a client's name and a session's id can say
    /// what they come to.
    pub fn new(secret: Option<&SecretString>, namespaced: bool) -> Option<Self> {
        let secret = secret.map_or("", |secret| secret.expose_secret());
        let mut root = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
        root.update(LABEL);
        let key = Hmac::new_from_slice(&root.finalize().into_bytes()).ok()?;
        Some(Self { key, namespaced })
    }

    /// What the edge's tables know a client's session by.
    pub fn key(client: &Client, id: &str) -> String {
        let client = client.principal();
        format!("{SEPARATOR}{client}{SEPARATOR}{id}")
    }

    /// What tells a client's requests without a session from those of others, in this process.
    pub fn scope(client: &Client) -> u64 {
        AffinityKey::of_client(&client.principal(), "").table_hash()
    }

    /// What workers know a client's session by: printable, of one length, the same on every replica.
    pub fn opaque(&self, client: &Client, id: &str) -> String {
        let client = client.principal();
        let mut mac = self.key.clone();
        mac.update(&(client.len() as u64).to_be_bytes());
        mac.update(client.as_bytes());
        mac.update(id.as_bytes());
        let digest = mac.finalize().into_bytes();
        let mut out = String::with_capacity(PREFIX.len() + 2 * DIGEST);
        out.push_str(PREFIX);
        for byte in digest.iter().take(DIGEST) {
            out.push_str(&format!("{byte:02x}"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::SubagentPolicy,
        gateway::{ClientId, limits::Limits},
    };

    fn client(id: ClientId, name: &str) -> Client {
        Client {
            id,
            name: name.into(),
            subagents: SubagentPolicy::Owned,
            places: None,
            limits: Limits::new(&Default::default(), None),
        }
    }

    #[test]
    fn sessions_are_told_apart_by_client_and_id() {
        let isolation = Isolation::new(Some(&"secret".into()), false).expect("a key");
        let clients = [
            client(ClientId::Named(0), "a"),
            client(ClientId::Named(1), "ab"),
            client(ClientId::Named(2), "anonymous"),
            client(ClientId::Anonymous, "anonymous"),
        ];
        let mut seen = std::collections::HashSet::new();
        for client in &clients {
            for id in ["", "b", "bc", "c"] {
                assert!(seen.insert(isolation.opaque(client, id)), "{client:?} {id}");
                assert!(seen.insert(Isolation::key(client, id)), "{client:?} {id}");
            }
        }
    }

    #[test]
    fn an_opaque_id_is_the_same_wherever_the_secret_is() {
        let of = |secret: &str, position| {
            let secret = SecretString::from(secret);
            let isolation = Isolation::new(Some(&secret), false).expect("a key");
            isolation.opaque(&client(ClientId::Named(position), "a"), "s")
        };
        assert_eq!(of("one", 0), of("one", 7));
        assert_ne!(of("one", 0), of("two", 0));
        assert_eq!(of("one", 0).len(), PREFIX.len() + 32);
        assert!(of("one", 0).bytes().all(|byte| byte.is_ascii_graphic()));
    }
}
