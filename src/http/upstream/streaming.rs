//! A call whose answer is read part by part.
//!
//! For answers that go on to the client while they come. The body's errors are Pingora's own, told
//! to be upstream's, so that they are treated as those of the proxy path are. It must not hold back what
//! has come, and it never repeats a request whose answer has begun.

use bytes::Bytes;
use pingora::{
    http::ResponseHeader, protocols::http::client::HttpSession, upstreams::peer::HttpPeer,
};

use super::{Call, CallError, Upstreams, classify, read_head, send};
use crate::config::Timeouts;

/// A request that was sent, and its answer as it comes. Dropping it closes the connection.
pub struct Streaming<'a> {
    upstreams: &'a Upstreams,
    session: HttpSession,
    peer: HttpPeer,
    reused: bool,
}

impl Upstreams {
    /// Sends one request: all of it is written when this returns. Cancel-safe: dropping the future
    /// closes the connection.
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
        tokio::time::timeout(timeouts.context, self.begin(peer, call))
            .await
            .map_err(|_| CallError::Timeout)?
    }

    async fn begin(&self, peer: HttpPeer, call: &Call<'_>) -> Result<Streaming<'_>, CallError> {
        let session = self.connector.get_http_session(&peer).await;
        let (mut session, reused) = session.map_err(|_| CallError::Connect)?;
        let sent = send(&mut session, &peer, call).await;
        sent.map_err(|error| error.on(&session, reused))?;
        Ok(Streaming {
            upstreams: self,
            session,
            peer,
            reused,
        })
    }
}

impl Streaming<'_> {
    /// Waits for the head of the answer, as long as `timeouts.silence` at most.
    ///
    /// # Errors
    /// Any [`CallError`] that tells of a connection.
    pub async fn head(&mut self) -> Result<ResponseHeader, CallError> {
        match read_head(&mut self.session).await {
            Ok(head) => Ok(head.clone()),
            Err(error) => Err(classify(error).on(&self.session, self.reused)),
        }
    }

    /// The next part of the body as it came, `None` after the last. Cancel-safe.
    ///
    /// # Errors
    /// Pingora's, of an upstream: the body ended early, or nothing came within `timeouts.silence`.
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
