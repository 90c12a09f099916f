//! Kindred keeps families of agents together.

#![forbid(unsafe_code)]

pub mod config;
pub mod telemetry;
pub mod wire;
