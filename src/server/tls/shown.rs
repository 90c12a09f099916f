//! What a port shows whoever connects, and how it judges what they show.
//!
//! Both follow the running configuration: a reload swaps them for new connections while old ones go
//! on.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::{listeners::tls::TlsSettings, protocols::ALPN};
use rustls::{
    DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use crate::http::certificate::KeepNames;

/// A certificate with its key, ready to be shown, and who judges those of clients.
pub struct Certificate {
    pub(super) shown: Arc<CertifiedKey>,
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
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
