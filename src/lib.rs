//! Kindred keeps families of agents together.

#![forbid(unsafe_code)]

pub mod wire;
