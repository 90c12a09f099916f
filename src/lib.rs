//! Kindred keeps families of agents together.
//!
//! The map of the house, from the street in: [`server`] puts the rooms on sockets; [`edge`] takes a
//! client's request through its two legs and [`worker`] is the filter in front of one worker;
//! [`admin`] is the operator's port; [`simulate`] and [`conformance`] run the real code without a
//! GPU. They rest on [`gateway`], the trust boundary, [`routing`], which picks an instance, and
//! [`mod@http`], what both proxies know of HTTP. Below are [`fleet`], the instances and their load, and
//! [`affinity`], the tables of who stays where; at the bottom [`wire`], the facts both sides share,
//! and [`config`]. [`telemetry`] is called by all and calls nobody.

#![forbid(unsafe_code)]

pub mod admin;
pub mod affinity;
pub mod config;
pub mod conformance;
pub mod edge;
pub mod fleet;
pub mod gateway;
pub mod http;
pub mod routing;
pub mod server;
pub mod simulate;
pub mod telemetry;
pub mod wire;
pub mod worker;
