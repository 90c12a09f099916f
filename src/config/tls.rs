//! What is said of TLS: the certificates that a port shows and believes, and those between this
//! process and workers.
//!
//! Paths only; `server::tls` reads what they name.

use std::{collections::HashSet, path::PathBuf};

/// The certificate that a port shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// `cert_file`, PEM: the server's certificate, then those that lead to its root.
    pub cert_file: PathBuf,
    /// `key_file`, PEM: the certificate's private key.
    pub key_file: PathBuf,
    /// Whose certificates those who connect may show; `None` asks for none.
    pub clients: Option<ClientCertificates>,
}

impl TlsConfig {
    /// Whether certificates are asked for and, if so, whether there is no connection without one.
    pub fn client_auth(&self) -> Option<bool> {
        self.clients.as_ref().map(|clients| clients.required)
    }
}

/// Certificates of those who connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// `client_ca_file`, PEM: the roots that they lead to.
    pub ca_file: PathBuf,
    /// `client_auth: required`: no connection without one.
    pub required: bool,
}

/// How workers are connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerTlsConfig {
    /// `ca_file`, PEM: the roots that the workers' certificates lead to. No others are believed.
    pub ca_file: PathBuf,
    /// `cert_file` and `key_file`, PEM: what workers that ask are shown; `None` shows nothing.
    pub shown: Option<(PathBuf, PathBuf)>,
    /// `server_name`: the name that the workers' certificates are for; `None` is the host of each
    /// worker's address.
    pub server_name: Option<String>,
    /// `plain`: addresses (`host:port`) that are still connected to without TLS.
    pub plain: HashSet<String>,
}
