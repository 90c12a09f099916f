//! `tls`, of any port: what is shown there, and what is believed of the workers behind it.
//!
//! Decides where the files are. Whether they can be used is found out by whoever uses them.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use rustls::pki_types::ServerName;

use crate::config::{
    ClientCertificates, TlsConfig, WorkerTlsConfig, address,
    raw::{self, Field, Section},
    report::{Place, Report},
    words::shown,
};

const AUTH: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// The two sides of a process in the middle; both may be without TLS.
#[derive(Default)]
pub(crate) struct Sides {
    /// Of the port.
    pub(crate) port: Option<TlsConfig>,
    /// Of the workers behind it.
    pub(crate) workers: Option<WorkerTlsConfig>,
}

/// Reads the section; relative paths begin at `folder`. An empty one is none.
pub(crate) fn tls(field: Option<Field>, folder: &Path, report: &mut Report) -> Sides {
    let Some(field) = field.filter(|field| !field.is_null()) else {
        return Sides::default();
    };
    let mut raw = raw::Tls::closed(field, report);
    let workers = raw.workers.take().filter(|field| !field.is_null());
    Sides {
        workers: workers.and_then(|field| self::workers(field, folder, report)),
        port: port(raw, folder, report),
    }
}

/// As [`tls`], for a port without workers behind it.
pub(crate) fn port_only(
    field: Option<Field>,
    folder: &Path,
    report: &mut Report,
) -> Option<TlsConfig> {
    let mut raw = raw::Tls::closed(field.filter(|field| !field.is_null())?, report);
    if let Some(workers) = raw.workers.take() {
        let what = "has no meaning here, since no worker is behind this port; write it under tls";
        report.error(&workers.at, what);
    }
    port(raw, folder, report)
}

fn port(raw: raw::Tls, folder: &Path, report: &mut Report) -> Option<TlsConfig> {
    let clients = clients(raw.client_ca_file, raw.client_auth, folder, report);
    if raw.cert_file.is_none() && raw.key_file.is_none() && clients.is_none() {
        return None;
    }
    let cert_file = needed(raw.cert_file, "cert_file", &raw.at, folder, report);
    let key_file = needed(raw.key_file, "key_file", &raw.at, folder, report);
    Some(TlsConfig {
        cert_file: cert_file?,
        key_file: key_file?,
        clients,
    })
}

/// What clients have to show of themselves.
fn clients(
    ca_file: Option<Field>,
    auth: Option<Field>,
    folder: &Path,
    report: &mut Report,
) -> Option<ClientCertificates> {
    let auth = auth.filter(|field| !field.is_null());
    let Some(ca_file) = ca_file.filter(|field| !field.is_null()) else {
        if let Some(auth) = auth {
            report.error(
                &auth.at,
                "needs client_ca_file beside it: the roots that the clients' certificates lead to",
            );
        }
        return None;
    };
    let required = auth.and_then(|field| field.choice(report, &AUTH));
    Some(ClientCertificates {
        ca_file: path(&ca_file, folder, report)?,
        required: required.unwrap_or(false),
    })
}

/// `tls.workers`.
fn workers(field: Field, folder: &Path, report: &mut Report) -> Option<WorkerTlsConfig> {
    let raw = raw::WorkerTls::closed(field, report);
    let ca_file = raw.ca_file.filter(|field| !field.is_null());
    let ca_file = match ca_file {
        Some(field) => path(&field, folder, report),
        None => {
            let what = "is missing; name the roots that the workers' certificates lead to, in PEM";
            report.error(&raw.at.missing("ca_file"), what);
            None
        }
    };
    let shown = match (raw.cert_file, raw.key_file) {
        (None, None) => None,
        (cert_file, key_file) => {
            let cert_file = needed(cert_file, "cert_file", &raw.at, folder, report);
            let key_file = needed(key_file, "key_file", &raw.at, folder, report);
            cert_file.zip(key_file)
        }
    };
    let name = raw.server_name.filter(|field| !field.is_null());
    let plain = raw.plain.map(|field| field.list(report));
    let plain = plain.unwrap_or_default().into_iter();
    Some(WorkerTlsConfig {
        server_name: name.and_then(|field| server_name(&field, report)),
        plain: plain
            .filter_map(|field| plain_address(&field, report))
            .collect::<HashSet<_>>(),
        ca_file: ca_file?,
        shown,
    })
}

/// Never empty: without a name Pingora would verify nothing.
fn server_name(field: &Field, report: &mut Report) -> Option<String> {
    let text = field.text(report)?;
    if ServerName::try_from(text).is_err() {
        let what = format!("is {}; it must be a DNS name or an IP address", shown(text));
        report.error(&field.at, what);
        return None;
    }
    Some(text.to_owned())
}

fn plain_address(field: &Field, report: &mut Report) -> Option<String> {
    let text = field.text(report)?;
    match address::worker(text) {
        Ok(()) => Some(text.to_owned()),
        Err(what) => {
            report.error(&field.at, what);
            None
        }
    }
}

/// The path of a file that the section cannot do without.
fn needed(
    field: Option<Field>,
    name: &str,
    section: &Place,
    folder: &Path,
    report: &mut Report,
) -> Option<PathBuf> {
    let Some(field) = field else {
        report.error(
            &section.missing(name),
            "is missing; TLS needs cert_file and key_file, both in PEM",
        );
        return None;
    };
    path(&field, folder, report)
}

fn path(field: &Field, folder: &Path, report: &mut Report) -> Option<PathBuf> {
    let text = field.text(report)?;
    if text.trim().is_empty() {
        report.error(&field.at, "is empty; name a file in PEM");
        return None;
    }
    Some(folder.join(text))
}
