//! Kindred keeps families of agents together.

#![forbid(unsafe_code)]

pub mod affinity;
pub mod config;
pub mod conformance;
pub mod edge;
pub mod fleet;
pub mod gateway;
pub mod http;
pub mod routing;
pub mod simulate;
pub mod telemetry;
pub mod wire;
pub mod worker;
