//! From the text of a file to a [`Config`], or to everything that is wrong with it.
//!
//! Collects every problem with its line and key, so that one run names them all, and holds the
//! rules that span sections. It never puts a secret, or a value that could be one, into a message,
//! and it never lets a file with a problem through.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use secrecy::zeroize::Zeroizing;

use super::{
    Config, own,
    raw::{self, Field, Section},
    secret::{Forms, Secrets},
    upstream, worker_filter,
};

use super::report::{ConfigError, Place, Report};

/// The largest file that is read.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Reads a configuration file as text, which is wiped when it is freed: it may hold secrets.
pub(super) fn read(path: &Path) -> Result<Zeroizing<String>, ConfigError> {
    let fail = |what: &str| {
        let mut report = Report::new(path);
        report.error(&Place::file(), what);
        report.into_error()
    };
    let file = std::fs::File::open(path).map_err(|error| {
        fail(&format!(
            "cannot be opened ({error}); check the path and its permissions"
        ))
    })?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(fail("is a directory; name the YAML file inside it"));
    }
    // Of its size from the start: growing would leave copies behind.
    let size = file
        .metadata()
        .map_or(0, |metadata| metadata.len().min(MAX_FILE));
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fail(&format!("cannot be read ({error}); check the file")))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(fail("is larger than 4 MiB; a configuration needs far less"));
    }
    String::from_utf8(bytes)
        .map(Zeroizing::new)
        .map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let newlines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
            let line = error.as_bytes().get(..good).map_or(0, newlines);
            fail(&format!(
                "is not UTF-8 text from line {} on; save it as UTF-8",
                line + 1
            ))
        })
}

/// Turns the text of a configuration file into a [`Config`].
pub(super) fn resolve(
    text: &str,
    origin: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    let mut report = Report::new(origin);
    let root = match root(text) {
        Ok(root) => root,
        Err((at, what)) => {
            report.error(&at, what);
            return Err(report.into_error());
        }
    };
    let secrets = Secrets {
        folder: origin.parent().unwrap_or(Path::new("")),
        environment,
    };
    let config = build(raw::File::open(root, &mut report), &secrets, &mut report);
    if report.errors() > 0 {
        return Err(report.into_error());
    }
    Ok(Config {
        warnings: report.warnings(),
        origin: origin.to_path_buf(),
        ..config
    })
}

fn root(text: &str) -> Result<Field, (Place, String)> {
    if text.len() as u64 > MAX_FILE {
        let what = "is larger than 4 MiB; a configuration needs far less";
        return Err((Place::file(), what.to_owned()));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(line) = text.lines().position(|line| line.contains('\0')) {
        let at = Place::file().key("", Some(line as u64 + 1));
        return Err((at, "is not text; name a YAML file".to_owned()));
    }
    let node = raw::node::parse(text).map_err(|error| {
        let at = Place {
            line: error.line,
            path: error.key,
        };
        (at, error.what)
    })?;
    let root = Field::root(node);
    if root.is_null() {
        let what = "is empty; describe context_servers and generation_servers, or worker_filters";
        return Err((Place::file(), what.to_owned()));
    }
    Ok(root)
}

fn build(mut file: raw::File, secrets: &Secrets<'_>, report: &mut Report) -> Config {
    let forms = Forms {
        inline: file.internal_request_auth_key.take(),
        file: file.internal_request_auth_key_file.take(),
        list: file.internal_request_auth_keys.take(),
    };
    let key = secrets.take(forms, report);
    let others = file.worker_filters.is_some() || file.admin.is_some();
    let worker_filters = file
        .worker_filters
        .take()
        .map(|field| worker_filter::all(field, &key, secrets, report))
        .unwrap_or_default();
    let admin = file
        .admin
        .take()
        .map(|field| own::admin(field, secrets.folder, report));
    let limits = own::limits(file.limits.take(), report);
    let timeouts = own::timeouts(file.timeouts.take(), report);
    let http = own::http(file.http.take(), report);
    let telemetry = own::telemetry(file.telemetry.take(), secrets.folder, report);
    let compatibility = own::compatibility(file.compatibility.take(), report);
    let tls = own::tls(file.tls.take(), secrets.folder, report);
    let gateway = file.gateway.take();
    let gateway = gateway.map(|field| own::gateway(field, &key, secrets, report));
    let cors = file.cors.take().and_then(|field| own::cors(field, report));
    let edge = upstream::edge(file, &key, secrets, gateway.is_some(), others, report);
    Config {
        edge,
        gateway,
        cors,
        worker_filters,
        admin,
        limits,
        timeouts,
        http,
        telemetry,
        compatibility,
        tls: tls.port,
        worker_tls: tls.workers,
        warnings: Vec::new(),
        origin: PathBuf::new(),
    }
}
