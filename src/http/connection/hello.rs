//! A TLS connection before its handshake.
//!
//! Decides whether a connection is taken before anything is computed for it, and how long its first
//! message may take; the handshake as a whole has Pingora's own limit, which cannot be set. The place
//! goes with the connection, so that it is given back however the handshake ends. It must never take
//! bytes away from the handshake.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::{
    Error, ErrorType, Result,
    http::ResponseHeader,
    listeners::PreTlsProcess,
    protocols::{
        GetProxyDigest, GetSocketDigest, Peek, Stream, l4::stream::Stream as Socket,
        raw_connect::ProxyDigest,
    },
};

use super::{
    door::{Door, Place},
    peer_of,
};
use crate::telemetry::{labels::HeadRefusal, metrics};

/// The kind of a record that a handshake begins with, and the bytes before what it holds.
const HANDSHAKE: u8 = 22;
const RECORD_HEAD: usize = 5;
/// The longest record (RFC 8446 section 5.1).
const RECORD: usize = 1 << 14;

/// Waits for hellos at a door.
pub struct Hello(pub Arc<Door>);

#[async_trait]
impl PreTlsProcess for Hello {
    async fn process(&self, socket: &mut Socket) -> Result<()> {
        let peer = peer_of(socket.get_socket_digest());
        let Some(place) = self.0.enter(peer) else {
            return Error::e_explain(ErrorType::AcceptError, "there are too many connections");
        };
        keep(place, socket)?;
        let patience = self.0.bounds().read_header;
        match tokio::time::timeout(patience, hello(socket)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Error::e_because(ErrorType::AcceptError, "before the hello", error),
            Err(_) => {
                metrics().heads_refused.inc(HeadRefusal::Slow);
                Error::e_explain(ErrorType::AcceptError, "the hello takes too long")
            }
        }
    }
}

/// Waits until the first record is there. What is no handshake is left to fail as one.
async fn hello(socket: &mut Socket) -> std::io::Result<()> {
    let mut head = [0; RECORD_HEAD];
    socket.try_peek(&mut head).await?;
    let [kind, _, _, high, low] = head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind == HANDSHAKE && length <= RECORD {
        let mut record = vec![0; RECORD_HEAD + length];
        socket.try_peek(&mut record).await?;
    }
    Ok(())
}

/// Where Pingora lets something be kept with a connection: it is meant for what a proxy before it says.
fn keep(place: Place, socket: &mut Socket) -> Result<()> {
    let nothing = Box::new(ResponseHeader::build(200, Some(0))?);
    let kept = Box::new(Mutex::new(Some(place)));
    socket.set_proxy_digest(ProxyDigest::new(nothing, Some(kept)));
    Ok(())
}

/// The place that was taken before the handshake of this connection.
pub fn place_of(stream: &Stream) -> Option<Place> {
    let digest = stream.get_proxy_digest()?;
    let kept = digest.user_data.as_ref()?;
    kept.downcast_ref::<Mutex<Option<Place>>>()?.lock().take()
}
