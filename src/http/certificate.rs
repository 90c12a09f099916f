//! The names in the certificate that a client has proved to hold.
//!
//! Read once for each connection, when its handshake is done and the certificate was verified. Only
//! subject alternative names count (RFC 5280 section 4.2.1.6): the common name is for people.

use std::{any::Any, sync::Arc};

use async_trait::async_trait;
use pingora::{listeners::TlsAccept, protocols::tls::TlsRef, proxy::Session};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Names of one certificate that are looked at.
const MOST: usize = 64;

/// The DNS names, URIs and e-mail addresses of a certificate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names(Vec<String>);

impl Names {
    fn of(der: &[u8]) -> Self {
        let names = X509Certificate::from_der(der).ok();
        let names = names.and_then(|(_, certificate)| {
            let names = certificate.subject_alternative_name().ok()??;
            let names = names
                .value
                .general_names
                .iter()
                .filter_map(|name| match name {
                    GeneralName::DNSName(name)
                    | GeneralName::URI(name)
                    | GeneralName::RFC822Name(name) => Some((*name).to_owned()),
                    _ => None,
                });
            Some(names.take(MOST).collect())
        });
        Self(names.unwrap_or_default())
    }
}

/// Keeps a connection's names where requests find them.
pub struct KeepNames;

#[async_trait]
impl TlsAccept for KeepNames {
    async fn handshake_complete_callback(
        &self,
        tls: &TlsRef,
    ) -> Option<Arc<dyn Any + Send + Sync>> {
        let names = Names::of(tls.peer_certificate_der()?);
        Some(Arc::new(names))
    }
}

/// The names of the client's certificate; none without one.
pub fn names(session: &Session) -> &[String] {
    let digest = session
        .digest()
        .and_then(|digest| digest.ssl_digest.as_ref());
    let names = digest.and_then(|digest| digest.extension.get::<Names>());
    names.map_or(&[], |names| &names.0)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn every_kind_of_name_is_read_and_the_common_name_is_none() {
        let mut params = CertificateParams::new(["agents.example".to_owned()]).expect("a name");
        let uri = "spiffe://example/agents".try_into().expect("a URI");
        let mail = "agents@example.com".try_into().expect("an address");
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.push(SanType::Rfc822Name(mail));
        let ip = SanType::IpAddress([127, 0, 0, 1].into());
        params.subject_alt_names.push(ip);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let names = Names::of(certificate.der());
        let expected = [
            "agents.example",
            "spiffe://example/agents",
            "agents@example.com",
        ];
        assert_eq!(names.0, expected);
        assert_eq!(Names::of(b"no certificate"), Names::default());
    }
}
