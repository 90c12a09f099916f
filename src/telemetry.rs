//! What an operator sees: numbers and log lines.
//!
//! This room names every metric and every value of every label, so that the label sets are bounded
//! by construction: a label value is either a variant of an enum in [`labels`] or a name from the
//! configuration. It must never take a session, a parent, a client-supplied model or a path as a
//! label, and it calls no other room.

pub mod access_log;
pub mod labels;
pub mod log;
pub mod metrics;

pub use metrics::{Metrics, metrics};
