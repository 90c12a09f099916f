//! Clients of the `gateway` section.

use sha2::{Digest, Sha256};

/// The SHA-256 of a key, as `api_keys_sha256` has it.
pub fn digest(key: &str) -> String {
    let digest = Sha256::digest(key);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
