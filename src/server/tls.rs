//! TLS on the ports of this process and to workers.
//!
//! Decides which certificates are shown and believed where, by the running configuration. A port must
//! never listen without TLS where TLS is asked for.

mod expiry;
mod files;
mod shown;

use std::sync::Arc;

use crate::{
    config::{Config, TlsConfig, WorkerTlsConfig},
    http::upstream::{Material, WorkerTls},
};
use expiry::Expiry;
use files::Reader;
pub use files::TlsError;
pub use shown::{Certificate, Shown};

/// Everything that a configuration names, read and checked, to be used or not.
pub struct Loaded {
    edge: Option<Certificate>,
    admin: Option<Certificate>,
    /// Of the edge.
    workers: Option<Material>,
    /// Of each worker filter: its port, and its worker.
    filters: Vec<(Option<Certificate>, Option<Material>)>,
    expiries: Vec<Expiry>,
}

impl Loaded {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// [`TlsError`] names the key and the file that cannot be used.
    pub fn read(config: &Config) -> Result<Self, TlsError> {
        let mut reader = Reader {
            origin: &config.origin,
            expiries: Vec::new(),
        };
        let mut both =
            |section: &str, port: Option<&TlsConfig>, workers: Option<&WorkerTlsConfig>| {
                let port = port.map(|tls| reader.port(section, tls)).transpose()?;
                let section = format!("{section}.workers");
                let workers = workers.map(|tls| reader.workers(&section, tls));
                Ok((port, workers.transpose()?))
            };
        let (edge, workers) = both("tls", config.tls.as_ref(), config.worker_tls.as_ref())?;
        let admin = config.admin.as_ref().and_then(|admin| admin.tls.as_ref());
        let (admin, _) = both("admin.tls", admin, None)?;
        let filters = config.worker_filters.iter().map(|filter| {
            let section = format!("worker_filters[{}].tls", filter.name);
            both(&section, filter.tls.as_ref(), filter.worker_tls.as_ref())
        });
        Ok(Self {
            edge,
            admin,
            workers,
            filters: filters.collect::<Result<_, _>>()?,
            expiries: reader.expiries,
        })
    }

    /// What a person should know of the certificates, such as that one ends soon.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.expiries.iter().filter_map(Expiry::warning);
        warnings.collect()
    }
}

/// What is in use.
pub struct Tls {
    /// The clients' port.
    pub edge: Option<Arc<Shown>>,
    /// The operator's port.
    pub admin: Option<Arc<Shown>>,
    /// From the edge to workers.
    pub workers: WorkerTls,
    /// The port of each worker filter, and from there to its worker.
    pub filters: Vec<(Option<Arc<Shown>>, WorkerTls)>,
}

impl Tls {
    pub fn new(loaded: Loaded) -> Self {
        let shown = |certificate: Option<Certificate>| {
            certificate.map(|certificate| Arc::new(Shown::new(certificate)))
        };
        expiry::export(&loaded.expiries);
        let filters = loaded.filters.into_iter();
        Self {
            edge: shown(loaded.edge),
            admin: shown(loaded.admin),
            workers: WorkerTls::new(loaded.workers),
            filters: filters
                .map(|(port, worker)| (shown(port), WorkerTls::new(worker)))
                .collect(),
        }
    }

    /// Uses other files for new connections. Which ports have TLS stays.
    pub fn swap(&self, loaded: Loaded) {
        let swap = |shown: &Option<Arc<Shown>>, certificate: Option<Certificate>| {
            if let (Some(shown), Some(certificate)) = (shown, certificate) {
                shown.swap(certificate);
            }
        };
        expiry::export(&loaded.expiries);
        swap(&self.edge, loaded.edge);
        swap(&self.admin, loaded.admin);
        self.workers.swap(loaded.workers);
        for ((shown, workers), (port, worker)) in self.filters.iter().zip(loaded.filters) {
            swap(shown, port);
            workers.swap(worker);
        }
    }
}
