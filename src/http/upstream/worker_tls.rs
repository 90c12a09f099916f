//! Whether workers are connected to with TLS, and who is believed to be one.
//!
//! The material belongs to the running configuration; a reload swaps it for new connections. Pingora
//! verifies nothing where it is given no server name, so there always is one.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use pingora::{Error, protocols::tls::CaType, upstreams::peer::HttpPeer, utils::tls::CertKey};

use super::CallError;

/// How often the same worker's failed handshakes are told.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How workers are connected to now; by default without TLS. Clones share it.
#[derive(Clone, Default)]
pub struct WorkerTls(Arc<Shared>);

#[derive(Default)]
struct Shared {
    material: ArcSwapOption<Material>,
    /// When a worker's failure was last told. Bounded: addresses come from the configuration and
    /// from discovery.
    told: Mutex<HashMap<String, Instant>>,
}

/// Roots and certificates, read and checked.
pub struct Material {
    /// What the workers' certificates lead to.
    pub roots: Arc<CaType>,
    /// What workers that ask are shown.
    pub shown: Option<Arc<CertKey>>,
    /// The name that the workers' certificates are for; `None` is the host of each address.
    pub server_name: Option<String>,
    /// Addresses that are connected to without TLS.
    pub plain: HashSet<String>,
    /// Different for other roots and other certificates: connections are pooled by it.
    pub group: u64,
}

impl WorkerTls {
    pub fn new(material: Option<Material>) -> Self {
        let tls = Self::default();
        tls.swap(material);
        tls
    }

    /// Connects by other material from now on; connections that are there go on with their requests.
    pub fn swap(&self, material: Option<Material>) {
        self.0.material.store(material.map(Arc::new));
    }

    /// Describes the worker at `address`, which was found at `socket`.
    pub(super) fn peer(&self, address: &str, socket: SocketAddr) -> Result<HttpPeer, CallError> {
        let material = self.0.material.load();
        let material = material.as_ref();
        let Some(material) = material.filter(|material| !material.plain.contains(address)) else {
            return Ok(HttpPeer::new(socket, false, String::new()));
        };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = material.server_name.as_deref().unwrap_or(host);
        if name.is_empty() {
            return Err(CallError::Tls);
        }
        let mut peer = HttpPeer::new(socket, true, name.to_owned());
        peer.options.ca = Some(material.roots.clone());
        peer.client_cert_key = material.shown.clone();
        peer.group_key = material.group;
        Ok(peer)
    }

    /// Tells the operator why the worker at `peer` is not spoken to.
    pub(super) fn tell(&self, peer: &HttpPeer, error: &Error) {
        let worker = peer._address.to_string();
        let now = Instant::now();
        let last = self.0.told.lock().insert(worker.clone(), now);
        if last.is_none_or(|last| now.duration_since(last) >= TOLD_EVERY) {
            tracing::warn!(worker, "no TLS connection to a worker: {error}");
        }
    }
}

/// Whether an error is one of TLS, before or after the handshake: a worker that asks for a
/// certificate refuses a client without one only when the client takes the handshake for done.
pub(super) fn is_of_tls(error: &Error) -> bool {
    use pingora::ErrorType::{
        HandshakeError, InvalidCert, TLSHandshakeFailure, TLSHandshakeTimedout, TLSWantX509Lookup,
    };
    let handshake = matches!(
        error.etype(),
        HandshakeError
            | InvalidCert
            | TLSHandshakeFailure
            | TLSHandshakeTimedout
            | TLSWantX509Lookup
    );
    handshake || {
        let cause = error.root_cause().downcast_ref::<std::io::Error>();
        let cause = cause.and_then(std::io::Error::get_ref);
        cause.is_some_and(|cause| cause.is::<rustls::Error>())
    }
}
