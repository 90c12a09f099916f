//! Kindred keeps families of agents together.

#![forbid(unsafe_code)]

pub mod telemetry;
pub mod wire;
