//! A client's connection with a limit on the time of a head.
//!
//! Decides when a head has taken too long: counted from the beginning of the connection for its first,
//! and from the first byte for each further one over HTTP/1, where an idle connection has a limit of its
//! own; over HTTP/2 as `frames` tells. It answers in Pingora's place where Pingora gives up on a head. It
//! must never change, keep back or reorder the bytes of a request that is served.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
    raw_connect::ProxyDigest,
    tls::{SslDigest, TlsRef},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::{Sleep, sleep, timeout},
};

use super::{
    Heads, answer,
    door::{Bounds, Place},
    frames::Frames,
};
use crate::{
    http::reply::Failure,
    telemetry::{labels::HeadRefusal, metrics},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What begins Pingora's answer to a head that it cannot read.
const BARE: &[u8] = b"HTTP/1.1 400";
/// Where Pingora stops to read a head.
const MAX_HEAD: usize = 1_000_000;
/// How much is read after a refusal, and for how long, so that the client gets its answer: bytes that
/// nobody read would reset the connection under it.
const LINGER_BYTES: usize = 16 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// A connection that is watched.
#[derive(Debug)]
pub struct Watched {
    /// Nothing once it is dropped.
    inner: Option<Stream>,
    place: Option<Place>,
    heads: Arc<Heads>,
    bounds: Bounds,
    /// What was looked at and is still to be read.
    ahead: Vec<u8>,
    frames: Option<Frames>,
    /// Which head `timer` and `received` are about.
    about: usize,
    timer: Option<Pin<Box<Sleep>>>,
    received: usize,
    /// Whether the client has been told that there is no more.
    refused: bool,
}

impl Watched {
    pub fn new(inner: Stream, heads: Arc<Heads>, bounds: Bounds, place: Place) -> Self {
        let frames = (inner.selected_alpn_proto() == Some(ALPN::H2)).then(Frames::default);
        Self {
            inner: Some(inner),
            place: Some(place),
            heads,
            bounds,
            ahead: Vec::new(),
            frames,
            about: 0,
            timer: Some(Box::pin(sleep(bounds.read_header))),
            received: 0,
            refused: false,
        }
    }

    fn inner(&self) -> io::Result<&Stream> {
        self.inner.as_ref().ok_or_else(ended)
    }

    fn inner_mut(&mut self) -> io::Result<Pin<&mut Stream>> {
        self.inner.as_mut().map(Pin::new).ok_or_else(ended)
    }

    /// Forgets what was about another head.
    fn follow(&mut self) {
        let now = match &self.frames {
            Some(frames) => frames.steps().wrapping_mul(2) + usize::from(!frames.owes()),
            None => self.heads.now(),
        };
        if now != self.about {
            self.about = now;
            self.timer = None;
            self.received = 0;
        }
    }

    /// Whether a head is awaited.
    fn awaits_a_head(&self) -> bool {
        self.about.is_multiple_of(2)
    }

    /// Takes note of bytes that came.
    fn pass(&mut self, bytes: &[u8]) {
        if let Some(frames) = &mut self.frames {
            frames.pass(bytes);
            self.follow();
        }
        if !self.awaits_a_head() || bytes.is_empty() {
            return;
        }
        self.received = self.received.saturating_add(bytes.len());
        if self.timer.is_none() {
            self.timer = Some(Box::pin(sleep(self.bounds.read_header)));
        }
    }

    /// Writes a refusal and takes nothing more.
    fn refuse(&mut self, cx: &mut Context<'_>, failure: &Failure) -> io::Result<()> {
        let bytes = answer::bytes(failure, self.bounds.compatibility);
        self.refused = true;
        // Nothing has been written for this request: there is room for a few hundred bytes, or the
        // client does not read what it is told.
        let mut inner = self.inner_mut()?;
        if let Poll::Ready(written) = inner.as_mut().poll_write(cx, &bytes) {
            written?;
        }
        let _ = inner.poll_flush(cx);
        Ok(())
    }

    /// Ends the connection because of a head that takes too long; one that never began needs no answer.
    fn too_slow(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        metrics().heads_refused.inc(HeadRefusal::Slow);
        self.timer = None;
        if self.frames.is_none() && self.received > 0 {
            let seconds = self.bounds.read_header.as_secs_f64();
            self.refuse(cx, &answer::too_slow(seconds))?;
        }
        self.refused = true;
        Err(io::ErrorKind::TimedOut.into())
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.follow();
        let due = self.timer.as_mut().filter(|_| self.about.is_multiple_of(2));
        match due.map(|timer| timer.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(self.too_slow(cx)),
            _ => Poll::Pending,
        }
    }
}

fn ended() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused {
            return Poll::Ready(Err(ended()));
        }
        if let Poll::Ready(due) = this.poll_due(cx) {
            return Poll::Ready(due);
        }
        if !this.ahead.is_empty() {
            let taken = this.ahead.len().min(buf.remaining());
            let bytes: Vec<u8> = this.ahead.drain(..taken).collect();
            buf.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(this.inner_mut()?.poll_read(cx, buf))?;
        this.pass(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.refused {
            return Poll::Ready(Ok(buf.len()));
        }
        this.follow();
        if this.frames.is_none() && this.awaits_a_head() && buf.starts_with(BARE) {
            let (refusal, failure) = if this.received > MAX_HEAD {
                (HeadRefusal::TooLarge, answer::too_large())
            } else {
                (HeadRefusal::Invalid, answer::not_http())
            };
            metrics().heads_refused.inc(refusal);
            return Poll::Ready(this.refuse(cx, &failure).map(|()| buf.len()));
        }
        this.inner_mut()?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner_mut()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().inner_mut()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.frames.is_none() {
            let first = bufs.iter().find(|buf| !buf.is_empty());
            return Pin::new(this).poll_write(cx, first.map_or(&[], |buf| buf));
        }
        this.inner_mut()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.frames.is_some() && self.inner().is_ok_and(|inner| inner.is_write_vectored())
    }
}

#[async_trait]
impl Peek for Watched {
    /// Looks whether HTTP/2's preface comes, and stops at the first byte that is not of it: what is
    /// shorter than a preface must not wait to be answered.
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        while self.ahead.len() < PREFACE.len() && PREFACE.starts_with(&self.ahead) {
            let mut part = [0; PREFACE.len()];
            let wanted = PREFACE.len() - self.ahead.len();
            // What is already looked at is not to be had again from `poll_read`.
            let before = std::mem::take(&mut self.ahead);
            let read = self.read(part.get_mut(..wanted).unwrap_or_default()).await;
            self.ahead = before;
            let read = read?;
            if read == 0 {
                break;
            }
            self.ahead
                .extend_from_slice(part.get(..read).unwrap_or_default());
        }
        if self.ahead == PREFACE {
            let mut frames = Frames::default();
            frames.pass(&self.ahead);
            self.frames = Some(frames);
        }
        buf.fill(0);
        for (to, from) in buf.iter_mut().zip(&self.ahead) {
            *to = *from;
        }
        Ok(true)
    }
}

#[async_trait]
impl Shutdown for Watched {
    async fn shutdown(&mut self) {
        // Whoever was refused is closed when it has had the time to read why.
        if let Some(inner) = self.inner.as_mut().filter(|_| !self.refused) {
            inner.shutdown().await;
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let (Some(inner), Some(place)) = (self.inner.take(), self.place.take()) else {
            return;
        };
        if self.refused
            && self.frames.is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(linger(inner, place));
        }
    }
}

/// Reads on for a little, and keeps the connection's place for that long.
async fn linger(mut inner: Stream, place: Place) {
    let _ = tokio::io::AsyncWriteExt::shutdown(&mut inner).await;
    let read = async {
        let mut some = vec![0; 16 << 10];
        let mut left = LINGER_BYTES;
        while let Ok(read @ 1..) = inner.read(&mut some).await
            && left > read
        {
            left -= read;
        }
    };
    let _ = timeout(LINGER, read).await;
    drop((inner, place));
}

impl UniqueID for Watched {
    fn id(&self) -> UniqueIDType {
        self.inner.as_ref().map_or(-1, |inner| inner.id())
    }
}

impl Ssl for Watched {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.inner.as_ref()?.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.as_ref()?.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.as_ref()?.selected_alpn_proto()
    }
}

impl GetTimingDigest for Watched {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        let inner = self.inner.as_ref();
        inner.map_or_else(Vec::new, |inner| inner.get_timing_digest())
    }
}

impl GetProxyDigest for Watched {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.as_ref()?.get_proxy_digest()
    }
}

impl GetSocketDigest for Watched {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.as_ref()?.get_socket_digest()
    }
}
