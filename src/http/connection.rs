//! What a client's connection may cost before there is a request to look at.
//!
//! Decides which connections are taken at all (`door`) and how long a head may take (`stream`, for
//! HTTP/2 by its `frames`), and answers in Kindred's words what Pingora would answer bare or not at all
//! (`answer`). Pingora has no hook for that, so each connection is wrapped before Pingora sees it; before
//! a TLS handshake it has one (`hello`). It must never look into a request and never touch bytes that go
//! on to Pingora.

mod answer;
mod door;
mod frames;
mod hello;
mod stream;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use pingora::{
    apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp},
    protocols::{
        SocketDigest, Stream,
        http::{ServerSession, v2::server::H2Options},
    },
    server::ShutdownWatch,
    services::listening::Service,
};

pub use door::{Bounds, Door};
use stream::Watched;

tokio::task_local! {
    /// The HTTP/1 connection that this task serves.
    static CONNECTION: Arc<Heads>;
}

/// Where an HTTP/1 connection stands: an even number while a head is awaited, an odd one from its
/// last byte to the end of its request.
#[derive(Debug, Default)]
struct Heads(AtomicUsize);

impl Heads {
    fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on to the next number if that is an even or an odd one.
    fn advance(&self, from_odd: bool) {
        let now = self.now();
        if (now % 2 == 1) == from_odd {
            self.0.store(now.wrapping_add(1), Ordering::Relaxed);
        }
    }
}

/// Tells the connection that the head of a request is whole. To be called by what sees a request
/// first; without effect for HTTP/2, whose frames tell it.
pub fn head_is_read() {
    let _ = CONNECTION.try_with(|heads| heads.advance(false));
}

fn peer_of(digest: Option<Arc<SocketDigest>>) -> Option<IpAddr> {
    Some(digest?.peer_addr()?.as_inet()?.ip())
}

/// A service whose connections come in by `door`, those of TLS before their handshake.
pub fn behind<A: HttpServerApp>(door: &Arc<Door>, name: &str, app: A) -> Service<Front<A>> {
    let mut service = Service::new(name.to_owned(), Front::new(app, door.clone()));
    let hello = Arc::new(hello::Hello(door.clone()));
    service.endpoints().set_pre_tls_callback(hello);
    service
}

/// An application of Pingora's behind a door.
pub struct Front<A> {
    app: Arc<Told<A>>,
    door: Arc<Door>,
}

impl<A> Front<A> {
    fn new(app: A, door: Arc<Door>) -> Self {
        let app = Arc::new(Told(Arc::new(app)));
        Self { app, door }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Front<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let bounds = self.door.bounds();
        let place = hello::place_of(&stream);
        let place = place.or_else(|| self.door.enter(peer_of(stream.get_socket_digest())));
        let Some(place) = place else {
            answer::turn_away(&mut stream, bounds.compatibility).await;
            return None;
        };
        let heads = Arc::new(Heads::default());
        let stream = Box::new(Watched::new(stream, heads.clone(), bounds, place));
        let served = self.app.process_new(stream, shutdown);
        CONNECTION.scope(heads, served).await
    }

    async fn cleanup(&self) {
        self.app.0.http_cleanup().await;
    }
}

/// Tells the connection when the next head is awaited.
struct Told<A>(Arc<A>);

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> HttpServerApp for Told<A> {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let _ = CONNECTION.try_with(|heads| heads.advance(true));
        self.0.process_new_http(session, shutdown).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.0.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.0.server_options()
    }
}
