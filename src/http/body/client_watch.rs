//! Whether the client is still there while its request waits.

use std::time::Duration;

use pingora::proxy::Session;
use tokio::time::{sleep, timeout};

use crate::config::HalfClose;

/// How long a read may tell nothing before the kernel is asked.
const READ_PROBE: Duration = Duration::from_millis(400);
/// How often a connection is looked at when it may not be read from.
const SOCKET_PROBE: Duration = Duration::from_millis(200);

/// How a client that leaves is noticed while nothing is read from or written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientWatch {
    /// The body is finished: a read that ends or fails is the client going.
    Read,
    /// The end of the body must stay unread, so the kernel is asked about the connection instead.
    Socket,
}

impl ClientWatch {
    /// Completes when the client has left. Cancel-safe.
    pub async fn left(self, session: &mut Session, half_close: HalfClose) {
        // Over HTTP/2 a stream says itself that it is reset; there is nothing to take for it.
        let may_read = session.is_http2() || half_close == HalfClose::Cancel;
        match self {
            // Bytes after the body are not ours to judge; once some came, a read tells no more whether
            // the client left, so the kernel is asked as well.
            Self::Read if may_read => loop {
                match timeout(READ_PROBE, session.read_body_or_idle(true)).await {
                    Ok(Err(_)) => return,
                    Ok(Ok(_)) => sleep(READ_PROBE).await,
                    Err(_) => {}
                }
                if !socket_is_open(session, half_close) {
                    return;
                }
            },
            Self::Read | Self::Socket => loop {
                sleep(SOCKET_PROBE).await;
                if !socket_is_open(session, half_close) {
                    return;
                }
            },
        }
    }
}

/// Whether the peer has neither reset the TCP connection nor, where that counts, closed its side
/// (states of RFC 9293 section 3.3.2 in Linux' numbering). A connection that cannot be asked counts
/// as open.
fn socket_is_open(session: &Session, half_close: HalfClose) -> bool {
    const ESTABLISHED: u8 = 1;
    const CLOSE_WAIT: u8 = 8;
    session
        .digest()
        .and_then(|digest| digest.socket_digest.as_ref())
        .and_then(|socket| socket.tcp_info())
        .is_none_or(|info| match info.tcpi_state {
            ESTABLISHED => true,
            CLOSE_WAIT => half_close == HalfClose::Serve,
            _ => false,
        })
}
