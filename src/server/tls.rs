//! TLS on the clients' port.
//!
//! Decides which certificate is shown: the one of the running configuration, which a reload swaps for
//! new connections while old ones go on. Files are read and checked before anything is changed, since
//! Pingora would panic at a bad one. It must never listen without TLS where TLS is asked for.

use std::{path::Path, sync::Arc};

use arc_swap::ArcSwap;
use pingora::{listeners::tls::TlsSettings, protocols::ALPN};
use rustls::{
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::config::{Config, TlsConfig};

/// A certificate or its key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: tls.{key}: {} {what}", .path.display())]
pub struct TlsError {
    /// The configuration file.
    file: String,
    key: &'static str,
    path: std::path::PathBuf,
    what: String,
}

/// A certificate with its key, ready to be shown.
pub struct Certificate(Arc<CertifiedKey>);

/// Whether the files that `config` names can be used.
///
/// # Errors
/// [`TlsError`] names the key and the file that cannot.
pub fn check(config: &Config) -> Result<(), TlsError> {
    read(config).map(drop)
}

/// Reads the certificate that `config` names, if it names one.
///
/// # Errors
/// [`TlsError`] names the key and the file that cannot be used.
pub fn read(config: &Config) -> Result<Option<Certificate>, TlsError> {
    let Some(tls) = &config.tls else {
        return Ok(None);
    };
    let origin = &config.origin;
    let chain = chain(tls).map_err(|what| error(origin, "cert_file", &tls.cert_file, what))?;
    let bad_key = |what: String| error(origin, "key_file", &tls.key_file, what);
    let key = PrivateKeyDer::from_pem_file(&tls.key_file);
    let key = key.map_err(|error| bad_key(told(&error, "a private key")))?;
    let certified = CertifiedKey::from_der(chain, key, &default_provider());
    let certified = certified.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let certificate = tls.cert_file.display();
            bad_key(format!(
                "is not the key of the first certificate in {certificate}"
            ))
        }
        error => bad_key(format!("cannot be used: {error}")),
    })?;
    Ok(Some(Certificate(Arc::new(certified))))
}

fn chain(tls: &TlsConfig) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(&tls.cert_file);
    let certificates = certificates.and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| told(&error, "certificates"))?;
    if certificates.is_empty() {
        return Err("holds no certificate in PEM; put the server's first".to_owned());
    }
    Ok(certificates)
}

fn told(error: &rustls::pki_types::pem::Error, what: &str) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) => format!("cannot be read: {error}"),
        Error::NoItemsFound => format!("holds nothing like {what} in PEM"),
        error => format!("does not hold {what} in PEM: {error}"),
    }
}

fn error(origin: &Path, key: &'static str, path: &Path, what: String) -> TlsError {
    TlsError {
        file: origin.display().to_string(),
        key,
        path: path.to_path_buf(),
        what,
    }
}

/// The certificate that new connections are shown.
#[derive(Debug)]
pub struct Shown(ArcSwap<CertifiedKey>);

impl Shown {
    pub fn new(certificate: Certificate) -> Self {
        Self(ArcSwap::new(certificate.0))
    }

    /// Shows another certificate to whoever connects from now on.
    pub fn swap(&self, certificate: Certificate) {
        self.0.store(certificate.0);
    }

    /// What Pingora listens with: TLS 1.2 and 1.3, HTTP/2 where the client offers it.
    ///
    /// # Errors
    /// None in practice: there are no files to be read.
    pub fn settings(self: &Arc<Self>) -> pingora::Result<TlsSettings> {
        let mut settings = TlsSettings::intermediate("", "")?;
        settings.set_cert_resolver(self.clone());
        settings.set_alpn(ALPN::H2H1);
        Ok(settings)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}
