//! Secrets: inline, from a file, or from the environment; one, or a list of them.
//!
//! Whatever goes wrong with one, its value, or a part of it, must never reach a message. Every copy that
//! is made on the way is wiped when it is freed.

use crate::config::words::shown;
use std::{io::Read, path::Path};

use secrecy::{SecretString, zeroize::Zeroizing};

use super::{
    raw::{self, Field, Section, node::Value},
    report::{Place, Report},
};
use crate::wire::signature::SigningKeys;

/// The largest file that is read as a secret.
const MAX_FILE: usize = 64 * 1024;
/// A secret shorter than this many bytes can be guessed.
const SHORT: usize = 16;
/// The masked form that `kindred check --print` writes.
pub(crate) const MASK: &str = "********";
/// How the example's keys begin.
const EXAMPLE: &str = "change-me";

/// Where secrets may come from.
pub(crate) struct Secrets<'a> {
    /// The folder of the configuration file.
    pub(crate) folder: &'a Path,
    /// A variable of the environment.
    pub(crate) environment: &'a dyn Fn(&str) -> Option<String>,
}

/// The keys of a section, read.
#[derive(Clone)]
pub(crate) enum Taken {
    /// None of the forms is there.
    Absent,
    /// One is there and cannot be used; the report says why.
    Bad,
    /// At least one key, the one that signs first.
    Given(Vec<SecretString>),
}

impl Taken {
    pub(crate) fn given(&self) -> Vec<SecretString> {
        match self {
            Self::Given(secrets) => secrets.clone(),
            Self::Absent | Self::Bad => Vec::new(),
        }
    }
}

/// The forms in which a section may give its keys, of which one may be used.
pub(crate) struct Forms {
    /// `internal_request_auth_key`.
    pub(crate) inline: Option<Field>,
    /// `internal_request_auth_key_file`.
    pub(crate) file: Option<Field>,
    /// `internal_request_auth_keys`.
    pub(crate) list: Option<Field>,
}

impl Secrets<'_> {
    /// The keys of a section.
    pub(crate) fn take(&self, forms: Forms, report: &mut Report) -> Taken {
        let present = |field: Option<Field>| field.filter(|field| !field.is_null());
        let secret = match (
            present(forms.inline),
            present(forms.file),
            present(forms.list),
        ) {
            (None, None, None) => return Taken::Absent,
            (None, None, Some(list)) => return self.list(list, report),
            (Some(inline), None, None) => self
                .inline(&inline, report)
                .and_then(|secret| judge(secret, &inline.at, report)),
            (None, Some(file), None) => self
                .file(&file, report)
                .and_then(|secret| judge(secret, &file.at, report)),
            (Some(first), Some(second), _)
            | (Some(first), None, Some(second))
            | (None, Some(first), Some(second)) => {
                let what = format!("is given besides {}; keep one", first.at.path());
                report.error(&second.at, what);
                None
            }
        };
        secret.map_or(Taken::Bad, |secret| Taken::Given(vec![secret]))
    }

    /// A secret that is given inline or as a file.
    pub(crate) fn one(
        &self,
        inline: Option<Field>,
        file: Option<Field>,
        report: &mut Report,
    ) -> Option<SecretString> {
        let list = None;
        let forms = Forms { inline, file, list };
        self.take(forms, report).given().into_iter().next()
    }

    fn list(&self, field: Field, report: &mut Report) -> Taken {
        let at = field.at.clone();
        let before = report.errors();
        let items = field.list(report);
        if report.errors() > before {
            return Taken::Bad;
        }
        if items.is_empty() || items.len() > SigningKeys::MOST {
            let what = format!(
                "has {} keys; it takes 1 to {}, the one that signs first",
                items.len(),
                SigningKeys::MOST
            );
            report.error(&at, what);
            return Taken::Bad;
        }
        let count = items.len();
        let secrets: Vec<SecretString> = items
            .into_iter()
            .filter_map(|item| self.item(item, report))
            .collect();
        if secrets.len() < count {
            return Taken::Bad;
        }
        Taken::Given(secrets)
    }

    /// One item of a list: a key, or `{file: PATH}`.
    fn item(&self, item: Field, report: &mut Report) -> Option<SecretString> {
        let at = item.at.clone();
        let secret = if matches!(item.value, Value::Map(_)) {
            let mut entry = raw::KeyFile::open(item, report);
            let Some(file) = entry.file.take().filter(|_| entry.rest.is_empty()) else {
                // Not by name: a key with a colon in it reads as a group of keys.
                report.error(
                    &at,
                    "must be a key or {file: PATH}; put a key with a colon in it in quotes",
                );
                return None;
            };
            self.file(&file, report)?
        } else {
            self.inline(&item, report)?
        };
        judge(secret, &at, report)
    }

    fn inline(&self, field: &Field, report: &mut Report) -> Option<Zeroizing<String>> {
        let text = field.text(report)?;
        match self.expand(text) {
            Ok(secret) => Some(secret),
            Err(what) => {
                report.error(&field.at, what);
                None
            }
        }
    }

    /// Replaces every `${NAME}`; `$${` stands for `${`.
    fn expand(&self, text: &str) -> Result<Zeroizing<String>, String> {
        let mut out = Zeroizing::new(String::new());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                out = joined(&joined(&out, before), "${");
                rest = after;
                continue;
            }
            out = joined(&out, before);
            let named = after.split_once('}').filter(|(name, _)| is_variable(name));
            let Some((name, after)) = named else {
                return Err(
                    "holds a `${` that no variable's name and `}` follow; write `${NAME}`, \
                            or `$${` for the two characters themselves"
                        .to_owned(),
                );
            };
            let value = (self.environment)(name).map(Zeroizing::new).ok_or_else(|| {
                format!(
                    "names the environment variable {}, which is not set; set it or give the value \
                     another way",
                    shown(name)
                )
            })?;
            out = joined(&out, &value);
            rest = after;
        }
        Ok(joined(&out, rest))
    }

    fn file(&self, field: &Field, report: &mut Report) -> Option<Zeroizing<String>> {
        let name = field.text(report)?;
        match self.read(name) {
            Ok(secret) => Some(secret),
            Err(what) => {
                // Not by name: it may be the secret itself, under the wrong key.
                report.error(&field.at, format!("names a file that {what}"));
                None
            }
        }
    }

    fn read(&self, name: &str) -> Result<Zeroizing<String>, String> {
        let path = self.folder.join(name);
        let metadata = std::fs::metadata(&path).map_err(|error| {
            format!("cannot be read ({error}); a relative path begins at this file's folder")
        })?;
        if metadata.is_dir() {
            return Err("is a directory; name a file".to_owned());
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE + 1));
        std::fs::File::open(&path)
            .and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| format!("cannot be read ({error}); check its permissions"))?;
        if bytes.len() > MAX_FILE {
            return Err("is larger than 64 KiB; put only the secret into it".to_owned());
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| "is not UTF-8 text; put the secret into it as text".to_owned())?;
        let line = text.strip_suffix('\n');
        let line = line.map(|line| line.strip_suffix('\r').unwrap_or(line));
        Ok(line.unwrap_or(text).to_owned().into())
    }
}

fn is_variable(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(word) && name.starts_with(|first: char| !first.is_ascii_digit())
}

/// Both in one, of its size from the start: growing would leave a copy behind.
fn joined(before: &str, after: &str) -> Zeroizing<String> {
    let mut both = String::with_capacity(before.len() + after.len());
    both.push_str(before);
    both.push_str(after);
    both.into()
}

fn judge(secret: Zeroizing<String>, at: &Place, report: &mut Report) -> Option<SecretString> {
    const MAKE: &str = "make one with `openssl rand -hex 32`";
    if secret.trim().is_empty() {
        report.error(at, format!("is empty; {MAKE}, or remove the key"));
        return None;
    }
    if *secret == MASK {
        report.error(
            at,
            "is the mask of a printed configuration; put the secret there",
        );
        return None;
    }
    if secret.starts_with(EXAMPLE) {
        report.warn(
            at,
            format!("is the example's, which everybody knows; {MAKE}"),
        );
    } else if secret.len() < SHORT {
        let what = format!("is shorter than {SHORT} bytes and can be guessed; {MAKE}");
        report.warn(at, what);
    }
    Some(SecretString::from(secret.as_str()))
}
