//! TLS on the clients' port.
//!
//! Decides which certificate is shown, and whether one of a client's is believed: by the running
//! configuration, which a reload swaps for new connections while old ones go on. Files are read and checked before anything is changed, since
//! Pingora would panic at a bad one. It must never listen without TLS where TLS is asked for.

use std::{path::Path, sync::Arc};

use arc_swap::ArcSwap;
use pingora::{listeners::tls::TlsSettings, protocols::ALPN};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        ClientHello, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use crate::{
    config::{ClientCertificates, Config},
    http::certificate::KeepNames,
};

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

/// A certificate with its key, ready to be shown, and who judges those of clients.
pub struct Certificate {
    shown: Arc<CertifiedKey>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

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
    let chain =
        chain(&tls.cert_file).map_err(|what| error(origin, "cert_file", &tls.cert_file, what))?;
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
    let clients = tls.clients.as_ref().map(|clients| {
        let verifier = verifier(clients);
        verifier.map_err(|what| error(origin, "client_ca_file", &clients.ca_file, what))
    });
    Ok(Some(Certificate {
        shown: Arc::new(certified),
        clients: clients.transpose()?,
    }))
}

/// Takes certificates that lead to one of the roots.
fn verifier(clients: &ClientCertificates) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for root in chain(&clients.ca_file)? {
        let added = roots.add(root);
        added.map_err(|error| format!("holds what is no root: {error}"))?;
    }
    let provider = Arc::new(default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match clients.required {
        true => builder,
        false => builder.allow_unauthenticated(),
    };
    let built = builder.build();
    built.map_err(|error| format!("cannot be used: {error}"))
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(file);
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

/// The certificate that new connections are shown, and how theirs are judged.
#[derive(Debug)]
pub struct Shown {
    certificate: ArcSwap<CertifiedKey>,
    clients: Option<Arc<Clients>>,
}

impl Shown {
    pub fn new(certificate: Certificate) -> Self {
        let clients = certificate.clients.map(|verifier| {
            let mandatory = verifier.client_auth_mandatory();
            Arc::new(Clients {
                verifier: ArcSwap::from_pointee(verifier),
                mandatory,
            })
        });
        Self {
            certificate: ArcSwap::new(certificate.shown),
            clients,
        }
    }

    /// Shows another certificate, and judges by other roots, whoever connects from now on. Whether
    /// certificates are asked for stays.
    pub fn swap(&self, certificate: Certificate) {
        self.certificate.store(certificate.shown);
        if let (Some(clients), Some(verifier)) = (&self.clients, certificate.clients) {
            clients.verifier.store(Arc::new(verifier));
        }
    }

    /// What Pingora listens with: TLS 1.2 and 1.3, HTTP/2 where the client offers it.
    ///
    /// # Errors
    /// None in practice: there are no files to be read.
    pub fn settings(self: &Arc<Self>) -> pingora::Result<TlsSettings> {
        let mut settings = TlsSettings::with_callbacks(Box::new(KeepNames))?;
        settings.set_cert_resolver(self.clone());
        settings.set_alpn(ALPN::H2H1);
        if let Some(clients) = &self.clients {
            settings.set_client_cert_verifier(clients.clone());
        }
        Ok(settings)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certificate.load_full())
    }
}

/// Judges the certificates of clients by the roots of the running configuration.
#[derive(Debug)]
struct Clients {
    verifier: ArcSwap<Arc<dyn ClientCertVerifier>>,
    mandatory: bool,
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    /// None: they change, and clients have one certificate to show.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verifier = self.verifier.load();
        verifier.verify_client_cert(certificate, chain, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = self.verifier.load();
        verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = self.verifier.load();
        verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.load().supported_verify_schemes()
    }
}
