//! The embedded fleet: workers without a GPU that behave as TensorRT-LLM's do on the wire, and the
//! replayer.
//!
//! The demo, the tests and the benches run against these. A simulated worker decides nothing that
//! a real one would not: it refuses what upstream refuses, reports only tokens that really are in
//! its cache, and never repairs a request that the edge got wrong. Nothing here is reachable from
//! the way of a real request.

pub mod demo;
pub mod engine;
pub mod replay;
pub mod transfer;
pub mod worker;
