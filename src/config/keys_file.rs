//! `gateway.keys_file`: digests of clients' API keys, in a file that may change at any time.
//!
//! A map from the names of configured clients to lists of SHA-256 digests. It is all or nothing: one
//! wrong entry makes the file unusable, since half of it may be what a writer has got to. A wrong digest
//! may be the key itself, so messages give lines and never a value.

use std::{collections::HashMap, fmt, io::Read, path::Path};

use sha2::{Digest, Sha256};

use super::{
    ClientConfig,
    own::digest,
    raw::{
        self,
        node::{Node, Value},
    },
};

/// Bytes of a keys file at most.
const MAX_FILE: u64 = 1024 * 1024;

/// What a keys file says.
#[derive(Clone, PartialEq, Eq)]
pub struct FileKeys {
    /// The digest of the file's own text.
    pub fingerprint: [u8; 32],
    /// Digests of keys, each with the position of its client.
    pub digests: Vec<([u8; 32], u32)>,
}

impl fmt::Debug for FileKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileKeys")
            .field("digests", &self.digests.len())
            .finish_non_exhaustive()
    }
}

impl FileKeys {
    /// Whether it was read from this text.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.fingerprint == <[u8; 32]>::from(Sha256::digest(bytes))
    }

    /// Reads the text of a keys file for `clients`, whose own keys in the configuration count too: a
    /// key belongs to one client.
    ///
    /// # Errors
    /// What is wrong and in which line, as the rest of a sentence.
    pub fn parse(bytes: &[u8], clients: &[ClientConfig]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())?;
        let node = raw::node::parse(text).map_err(|error| match error.line {
            Some(line) => format!("line {line}: {}", error.what),
            None => error.what,
        })?;
        let entries = match node.value {
            Value::Map(entries) => entries,
            // Also a file that is being written.
            Value::Null => return Err("is empty; write {} for no keys".to_owned()),
            _ => {
                return Err("must map names of clients to lists of SHA-256 digests".to_owned());
            }
        };
        let mut owners: HashMap<[u8; 32], u32> = (0u32..)
            .zip(clients)
            .flat_map(|(at, client)| client.api_keys.iter().map(move |key| (*key, at)))
            .collect();
        let mut digests = Vec::new();
        for entry in entries {
            let found = (0u32..).zip(clients);
            let mut found = found.filter(|(_, client)| client.name == entry.key);
            let Some((client, _)) = found.next() else {
                return Err(at_line(
                    entry.line,
                    "names a client that gateway.clients does not; add it there first",
                ));
            };
            for item in items(entry.node)? {
                let key = key_of(&item)?;
                if owners
                    .insert(key, client)
                    .is_some_and(|owner| owner != client)
                {
                    let what = "is a key of another client too; a key belongs to one client";
                    return Err(at_line(item.line, what));
                }
                digests.push((key, client));
            }
        }
        Ok(Self {
            fingerprint: Sha256::digest(bytes).into(),
            digests,
        })
    }
}

/// The bytes of a small file.
///
/// # Errors
/// Why it cannot be read, as the rest of a sentence.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let fail = |error: std::io::Error| format!("cannot be read ({error})");
    let file = std::fs::File::open(path).map_err(fail)?;
    // A pipe would be waited for, and never end.
    if !file.metadata().map_err(fail)?.is_file() {
        return Err("is not a plain file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err("is larger than 1 MiB".to_owned());
    }
    Ok(bytes)
}

fn items(node: Node) -> Result<Vec<Node>, String> {
    match node.value {
        Value::List(items) => Ok(items),
        _ => Err(at_line(node.line, "must be a list of SHA-256 digests")),
    }
}

fn key_of(item: &Node) -> Result<[u8; 32], String> {
    let digest = match &item.value {
        Value::Text(text) => digest(text.trim()),
        _ => None,
    };
    digest.ok_or_else(|| {
        let what = "is not a SHA-256 digest: 64 hex digits, in quotes if it is all digits";
        at_line(item.line, what)
    })
}

fn at_line(line: Option<u64>, what: &str) -> String {
    match line {
        Some(line) => format!("line {line}: {what}"),
        None => what.to_owned(),
    }
}
