//! `limits.max_body`: how large a request body may be, by path.

use crate::wire::disagg::Endpoint;

/// Bytes of one request body, at most, for each endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    pub chat_completions: usize,
    pub completions: usize,
}

impl BodyLimits {
    /// The same for every endpoint.
    pub fn all(bytes: usize) -> Self {
        Self {
            chat_completions: bytes,
            completions: bytes,
        }
    }

    /// Bytes of one request body for that endpoint, at most.
    pub fn of(self, endpoint: Endpoint) -> usize {
        match endpoint {
            Endpoint::ChatCompletions => self.chat_completions,
            Endpoint::Completions => self.completions,
        }
    }

    /// Bytes of the largest body that any endpoint takes.
    pub fn largest(self) -> usize {
        self.chat_completions.max(self.completions)
    }
}
