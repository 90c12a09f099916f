//! Which workers there are, where they announce themselves (specification section 7.2).
//!
//! Decides what an announcement must look like and which instances follow from all of them. Where the
//! announcements are kept, in this process (`store`) or in etcd, is not its concern. It must never take a worker
//! away as long as one of its announcements stands.

pub mod store;

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

use crate::wire::Role;

/// Announcements that are kept at most; a fleet has far fewer workers.
pub const MOST_WORKERS: usize = 16_384;

/// A worker as it announces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub worker_id: String,
    pub host: String,
    pub port: u16,
    pub role: Role,
}

/// An announcement as it is written. Newer workers may say more.
#[derive(Deserialize)]
struct Written {
    worker_id: String,
    host: String,
    port: u16,
    role: i64,
}

/// Why an announcement is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("its value is not a worker's: {0}")]
    Malformed(String),
    #[error("its host is no host name or IPv4 address")]
    Host,
    #[error("its port is 0")]
    Port,
    #[error(
        "its role {0} is neither CONTEXT (0) nor GENERATION (1), which are all that serve here"
    )]
    Role(i64),
    #[error("there are {MOST_WORKERS} workers already")]
    TooMany,
}

impl Worker {
    /// Reads the value of a worker's key.
    ///
    /// # Errors
    /// [`Unfit`] says what is wrong with it.
    pub fn parse(value: &str) -> Result<Self, Unfit> {
        let written: Written =
            serde_json::from_str(value).map_err(|error| Unfit::Malformed(error.to_string()))?;
        let is_host = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        if written.host.is_empty() || written.host.len() > 253 || !written.host.bytes().all(is_host)
        {
            return Err(Unfit::Host);
        }
        if written.port == 0 {
            return Err(Unfit::Port);
        }
        Ok(Self {
            role: match written.role {
                0 => Role::Context,
                1 => Role::Generation,
                other => return Err(Unfit::Role(other)),
            },
            worker_id: written.worker_id,
            host: written.host,
            port: written.port,
        })
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The role as upstream numbers it.
    pub fn role_number(&self) -> u8 {
        match self.role {
            Role::Generation => 1,
            Role::Context | Role::Aggregated => 0,
        }
    }
}

/// The keys under which the workers of a cluster announce themselves.
pub fn workers_prefix(cluster_name: &str) -> String {
    format!("/trtllm-disagg/{cluster_name}/workers/")
}

/// All announcements that stand, by key. A worker that was started anew has two for a while, under its
/// old id and its new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announced {
    by_key: BTreeMap<String, Worker>,
}

impl Announced {
    /// An announcement was made or made anew. One that is not fit takes the place of an earlier one
    /// all the same: the worker is not what it was.
    ///
    /// # Errors
    /// [`Unfit`] for one that is not taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Unfit> {
        match Worker::parse(value) {
            Ok(worker) => {
                if self.by_key.len() >= MOST_WORKERS && !self.by_key.contains_key(key) {
                    return Err(Unfit::TooMany);
                }
                self.by_key.insert(key.to_owned(), worker);
                Ok(())
            }
            Err(unfit) => {
                self.by_key.remove(key);
                Err(unfit)
            }
        }
    }

    /// An announcement was withdrawn or has expired.
    pub fn remove(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    /// The workers of a role, one for each address.
    pub fn workers(&self, role: Role) -> Vec<&Worker> {
        let mut seen = HashSet::new();
        let workers = self.by_key.values().filter(|worker| worker.role == role);
        workers
            .filter(|worker| seen.insert((worker.host.as_str(), worker.port)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
