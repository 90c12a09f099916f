//! `tls`: the certificate of the clients' port.
//!
//! Decides where the files are. Whether they can be used is found out by whoever uses them.

use std::path::{Path, PathBuf};

use crate::config::{
    TlsConfig,
    raw::{self, Field, Section},
    report::{Place, Report},
};

/// Reads the section; relative paths begin at `folder`. An empty one is none.
pub(crate) fn tls(field: Option<Field>, folder: &Path, report: &mut Report) -> Option<TlsConfig> {
    let raw = raw::Tls::closed(field.filter(|field| !field.is_null())?, report);
    if raw.cert_file.is_none() && raw.key_file.is_none() {
        return None;
    }
    let cert_file = path(raw.cert_file, "cert_file", &raw.at, folder, report);
    let key_file = path(raw.key_file, "key_file", &raw.at, folder, report);
    Some(TlsConfig {
        cert_file: cert_file?,
        key_file: key_file?,
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
