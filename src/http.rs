//! HTTP rules that the edge and the worker filter share.
//!
//! This room decides which connections are taken (`connection`), which requests are well formed enough to be looked at (`guard`), how a whole
//! body is read without losing Pingora's ability to forward it (`body`), how a worker is called
//! (`upstream`), how requests under way are counted (`in_flight`), in which spelling a path is compared
//! (`path`), and what an error looks like to the person who reads it (`reply`). It must never know what
//! a request is about: no sessions, no fleets, no signatures.

pub mod body;
pub mod certificate;
pub mod connection;
pub mod guard;
pub mod in_flight;
pub mod path;
pub mod reply;
pub mod upstream;

use pingora::protocols::http::ServerSession;

/// A request in a log line: without its query and its host, which are the client's to choose.
pub fn summary(session: &ServerSession) -> String {
    let head = session.req_header();
    format!("{} {}", head.method, head.uri.path())
}
