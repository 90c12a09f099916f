//! Facts that both sides of a leg share.
//!
//! This room knows how the edge and the workers talk: header names and their bytes, canonical JSON
//! and the signatures over it, whose conversation a request belongs to, what a worker's parser makes
//! of a body, and how the two legs of a request are built from each other. It decides whether bytes
//! are well formed and whether a signature holds; it never opens a socket, never chooses an instance
//! and never keeps state, [`request_id::RequestIds`] excepted.

pub mod body;
pub mod canonical;
pub mod coerce;
pub mod conversation;
pub mod disagg;
pub mod escape;
pub mod headers;
pub mod jwks;
pub mod object;
pub mod prompt;
pub mod pruning;
pub mod python;
pub mod request_id;
pub mod scan;
pub mod signature;
pub mod text;
pub mod trace;
pub mod usage;
pub mod verify;
pub mod worker_body;

/// What an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Prefill: computes the KV cache of a prompt.
    Context,
    /// Decode: continues from the KV cache of a context instance.
    Generation,
    /// Serves whole requests by itself; on the wire, every role that is neither of the other two.
    Aggregated,
}

impl Role {
    /// The name that is signed and configured upstream (specification section 5.4).
    pub fn as_wire(self) -> &'static str {
        match self {
            Self::Context => "CONTEXT",
            Self::Generation => "GENERATION",
            Self::Aggregated => "AGGREGATED",
        }
    }

    /// The word for people and metric labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Generation => "generation",
            Self::Aggregated => "aggregated",
        }
    }

    /// The role that `disaggregated_params.request_type` implies (specification section 5.8).
    pub fn from_request_type(request_type: &str) -> Option<Self> {
        match request_type {
            "context_only" => Some(Self::Context),
            "generation_only" => Some(Self::Generation),
            _ => None,
        }
    }

    /// The `disaggregated_params.request_type` of the role's leg.
    pub fn request_type(self) -> Option<&'static str> {
        match self {
            Self::Context => Some("context_only"),
            Self::Generation => Some("generation_only"),
            Self::Aggregated => None,
        }
    }

    /// Whether upstream reads and signs the affinity headers for this role.
    pub fn takes_affinity(self) -> bool {
        self != Self::Aggregated
    }
}
