//! Reads the files of certificates and keys that a configuration names.
//!
//! Everything is read and checked before anything of it is used, since Pingora would panic at what it
//! cannot read. It also notes when each certificate ends, for whoever has to renew it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::{
    RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Certificate, Expiry};
use crate::{
    config::{ClientCertificates, TlsConfig, WorkerTlsConfig},
    http::upstream::Material,
};

/// A certificate or its key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {key}: {} {what}", .path.display())]
pub struct TlsError {
    /// The configuration file.
    file: String,
    /// Dotted path of the key that names the file.
    key: String,
    path: PathBuf,
    what: String,
}

/// Reads the files of one configuration.
pub(super) struct Reader<'a> {
    /// The configuration file.
    pub(super) origin: &'a Path,
    /// When what was read ends.
    pub(super) expiries: Vec<Expiry>,
}

/// A file, and the key that names it.
struct Named<'a> {
    key: String,
    path: &'a Path,
}

impl Reader<'_> {
    /// What the port of `section` shows, and whom it believes.
    pub(super) fn port(&mut self, section: &str, tls: &TlsConfig) -> Result<Certificate, TlsError> {
        let (chain, key) = self.pair(section, &tls.cert_file, &tls.key_file)?;
        let certified = self.certified(section, &tls.cert_file, &tls.key_file, chain, key)?;
        let clients = tls.clients.as_ref();
        let clients = clients.map(|clients| self.clients(section, clients));
        Ok(Certificate {
            shown: Arc::new(certified),
            clients: clients.transpose()?,
        })
    }

    /// How the workers of `section` are connected to.
    pub(super) fn workers(
        &mut self,
        section: &str,
        tls: &WorkerTlsConfig,
    ) -> Result<Material, TlsError> {
        let named = Named {
            key: format!("{section}.ca_file"),
            path: &tls.ca_file,
        };
        let roots = self.roots(&named)?;
        let mut group = blake3::Hasher::new();
        roots.iter().for_each(|root| {
            group.update(root);
        });
        let mut shown = None;
        if let Some((cert_file, key_file)) = &tls.shown {
            let (chain, key) = self.pair(section, cert_file, key_file)?;
            let secret = key.secret_der().to_vec();
            self.certified(section, cert_file, key_file, chain.clone(), key)?;
            chain.iter().for_each(|certificate| {
                group.update(certificate);
            });
            let chain = chain.iter().map(|certificate| certificate.to_vec());
            shown = Some(Arc::new(CertKey::new(chain.collect(), secret)));
        }
        let roots = roots.iter().map(|root| root.to_vec());
        let roots: Vec<_> = roots
            .map(|root| WrappedX509::new(root, parse_x509))
            .collect();
        Ok(Material {
            roots: roots.into(),
            shown,
            server_name: tls.server_name.clone(),
            plain: tls.plain.clone(),
            group: even(group.finalize().as_bytes()),
        })
    }

    /// Takes certificates of clients that lead to one of the roots.
    fn clients(
        &mut self,
        section: &str,
        clients: &ClientCertificates,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let named = Named {
            key: format!("{section}.client_ca_file"),
            path: &clients.ca_file,
        };
        let mut roots = RootCertStore::empty();
        for root in self.roots(&named)? {
            let added = roots.add(root);
            added.map_err(|error| self.bad(&named, format!("holds what is no root: {error}")))?;
        }
        let provider = Arc::new(default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = match clients.required {
            true => builder,
            false => builder.allow_unauthenticated(),
        };
        let built = builder.build();
        built.map_err(|error| self.bad(&named, format!("cannot be used: {error}")))
    }

    /// Certificates that others lead to. The file ends with the last of them.
    fn roots(&mut self, named: &Named<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let (roots, ends) = self.certificates(named)?;
        let mut checked = RootCertStore::empty();
        for root in &roots {
            let added = checked.add(root.clone());
            added.map_err(|error| self.bad(named, format!("holds what is no root: {error}")))?;
        }
        self.note(named, ends.into_iter().max());
        Ok(roots)
    }

    /// A certificate with those that lead to its root, and its key, which is not yet known to be its.
    /// The file ends with the first of them.
    fn pair(
        &mut self,
        section: &str,
        cert_file: &Path,
        key_file: &Path,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let named = Named {
            key: format!("{section}.cert_file"),
            path: cert_file,
        };
        let (chain, ends) = self.certificates(&named)?;
        self.note(&named, ends.into_iter().min());
        let named = Named {
            key: format!("{section}.key_file"),
            path: key_file,
        };
        let key = PrivateKeyDer::from_pem_file(key_file);
        let key = key.map_err(|error| self.bad(&named, told(&error, "a private key")))?;
        Ok((chain, key))
    }

    fn certified(
        &self,
        section: &str,
        cert_file: &Path,
        key_file: &Path,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<CertifiedKey, TlsError> {
        let named = Named {
            key: format!("{section}.key_file"),
            path: key_file,
        };
        CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let certificate = cert_file.display();
                let what = format!("is not the key of the first certificate in {certificate}");
                self.bad(&named, what)
            }
            error => self.bad(&named, format!("cannot be used: {error}")),
        })
    }

    /// The certificates of a file, and when each ends, in seconds since the epoch.
    fn certificates(
        &self,
        named: &Named<'_>,
    ) -> Result<(Vec<CertificateDer<'static>>, Vec<i64>), TlsError> {
        let read = CertificateDer::pem_file_iter(named.path);
        let read = read.and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let read = read.map_err(|error| self.bad(named, told(&error, "certificates")))?;
        if read.is_empty() {
            let what = "holds no certificate in PEM; put the server's first".to_owned();
            return Err(self.bad(named, what));
        }
        let mut ends = Vec::with_capacity(read.len());
        for certificate in &read {
            let parsed = X509Certificate::from_der(certificate);
            let (_, parsed) = parsed.map_err(|error| {
                self.bad(named, format!("holds what is no certificate: {error}"))
            })?;
            ends.push(parsed.validity().not_after.timestamp());
        }
        Ok((read, ends))
    }

    fn note(&mut self, named: &Named<'_>, ends: Option<i64>) {
        let expiry = ends.map(|ends| Expiry {
            key: named.key.clone(),
            path: named.path.to_path_buf(),
            ends,
        });
        self.expiries.extend(expiry);
    }

    fn bad(&self, named: &Named<'_>, what: String) -> TlsError {
        TlsError {
            file: self.origin.display().to_string(),
            key: named.key.clone(),
            path: named.path.to_path_buf(),
            what,
        }
    }
}

/// The beginning of a hash as a number that is even, since one odd group of connections is taken.
fn even(hash: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) & !1
}

fn told(error: &rustls::pki_types::pem::Error, what: &str) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) => format!("cannot be read: {error}"),
        Error::NoItemsFound => format!("holds nothing like {what} in PEM"),
        error => format!("does not hold {what} in PEM: {error}"),
    }
}
