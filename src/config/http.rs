//! `http`: how clients' connections are treated.

use std::time::Duration;

/// How clients' connections are treated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpConfig {
    /// `http.half_close`: what an HTTP/1.1 client means that shuts down its writing side.
    pub half_close: HalfClose,
    /// `http.heartbeat`: how long an event stream may be silent before the client gets an SSE
    /// comment; `None`, the default, sends none.
    pub heartbeat: Option<Duration>,
}

/// What a client means that shuts down its writing side after its request. On the wire it looks the
/// same as a client that has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HalfClose {
    /// It has left: its request is cancelled.
    #[default]
    Cancel,
    /// It waits for its answer. A client that closes its connection for good is then noticed only
    /// when its end answers with a reset: at the next write, or at once if it had bytes unread.
    Serve,
}
