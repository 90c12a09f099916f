//! A call whose answer is read part by part.
//!
//! For answers that go on to the client while they come. The body's errors are Pingora's own, told
//! to be upstream's, so that they are treated as those of the proxy path are. It must not hold back what
//! has come, and it never repeats a request whose answer has begun.

use bytes::Bytes;
use pingora::{
    http::ResponseHeader, protocols::http::client::HttpSession, upstreams::peer::HttpPeer,
};

use super::{Call, CallError, Upstreams, read_head, send};
use crate::config::Timeouts;

/// A request that was sent, and its answer as it comes. Dropping it closes the connection.
pub struct Streaming<'a> {
    upstreams: &'a Upstreams,
    session: HttpSession,
    peer: HttpPeer,
    reused: bool,
}

impl Upstreams {
    /// Sends one request: all of it is written when this returns. No deadline but those for
    /// connecting and writing. Cancel-safe: dropping the future closes the connection.
    ///
    /// # Errors
    /// [`CallError::Unresolved`] and [`CallError::Connect`] when nothing was sent, others when
    /// something may have been.
    pub async fn open(
        &self,
        call: &Call<'_>,
        timeouts: &Timeouts,
    ) -> Result<Streaming<'_>, CallError> {
        let peer = self.peer(call.address, timeouts).await?;
        let (mut session, reused) = self.connect(&peer, call.fresh).await?;
        send(&mut session, &peer, call).await?;
        Ok(Streaming {
            upstreams: self,
            session,
            peer,
            reused,
        })
    }
}

impl Streaming<'_> {
    /// Waits for the head of the answer, without a deadline.
    ///
    /// # Errors
    /// Any [`CallError`] that tells of a connection.
    pub async fn head(&mut self) -> Result<ResponseHeader, CallError> {
        match read_head(&mut self.session).await {
            Ok(head) => Ok(head.clone()),
            Err(error) => Err(CallError::before_head(&error, &self.session, self.reused)),
        }
    }

    /// From now on the answer may not be silent for longer than `timeouts.silence`.
    pub fn limit_silence(&mut self) {
        let silence = self.peer.options.read_timeout;
        self.session.set_read_timeout(silence);
    }

    /// The next part of the body as it came, `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// Pingora's, of an upstream: the body ended early, or it was silent for too long.
    pub async fn next(&mut self) -> pingora::Result<Option<Bytes>> {
        let part = self.session.read_response_body().await;
        part.map_err(|error| error.into_up())
    }

    /// Keeps the connection for other calls, after the last part.
    pub async fn release(self) {
        let idle = self.peer.options.idle_timeout;
        let connector = &self.upstreams.connector;
        connector
            .release_http_session(self.session, &self.peer, idle)
            .await;
    }
}
