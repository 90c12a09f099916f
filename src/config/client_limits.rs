//! What one client may take.

use std::num::NonZeroU32;

/// The limits of one client; `None` for no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientLimits {
    /// Requests a second, on average.
    pub requests_per_second: Option<NonZeroU32>,
    /// Requests at once after a quiet while; default as many as in a second.
    pub burst: Option<NonZeroU32>,
    /// Prompt tokens a minute.
    pub prompt_tokens_per_minute: Option<u64>,
    /// Requests of the sub-agents of one parent at once.
    pub subagents_in_flight: Option<usize>,
}
