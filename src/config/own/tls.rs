//! `tls`: the certificate of the clients' port, and those of clients.
//!
//! Decides where the files are. Whether they can be used is found out by whoever uses them.

use std::path::{Path, PathBuf};

use crate::config::{
    ClientCertificates, TlsConfig,
    raw::{self, Field, Section},
    report::{Place, Report},
};

const AUTH: [(&str, bool); 2] = [("optional", false), ("required", true)];

/// Reads the section; relative paths begin at `folder`. An empty one is none.
pub(crate) fn tls(field: Option<Field>, folder: &Path, report: &mut Report) -> Option<TlsConfig> {
    let raw = raw::Tls::closed(field.filter(|field| !field.is_null())?, report);
    if raw.cert_file.is_none() && raw.key_file.is_none() {
        return None;
    }
    let clients = clients(raw.client_ca_file, raw.client_auth, folder, report);
    let cert_file = path(raw.cert_file, "cert_file", &raw.at, folder, report);
    let key_file = path(raw.key_file, "key_file", &raw.at, folder, report);
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
    let text = ca_file.text(report)?;
    if text.trim().is_empty() {
        report.error(&ca_file.at, "is empty; name a file in PEM");
        return None;
    }
    Some(ClientCertificates {
        ca_file: folder.join(text),
        required: required.unwrap_or(false),
    })
}

fn path(
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
    let text = field.text(report)?;
    if text.trim().is_empty() {
        report.error(&field.at, "is empty; name a file in PEM");
        return None;
    }
    Some(folder.join(text))
}
