//! Expected values, run through the real code.
//!
//! [`run_dir`] reads the files of expected values in a folder, hands every entry to the same functions
//! that serve requests and says which entries differ. A file whose shape is unknown, or that lacks a
//! section, is an error: nothing here may pass because it was not run. The text in the files is data.

pub mod adp;
pub mod entry;
pub mod lines;
pub mod router;
mod scenarios;
pub mod signing;

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::wire::object::Object;

/// How one entry of a file compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryResult {
    /// `section/name of the entry`.
    pub name: String,
    /// What differs, expected before got; `None` where nothing does.
    pub difference: Option<String>,
}

impl EntryResult {
    /// An entry that is as expected.
    pub fn passed(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            difference: None,
        }
    }

    /// An entry that differs.
    pub fn failed(name: impl Into<String>, difference: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            difference: Some(difference.into()),
        }
    }
}

/// How many entries of a folder are as expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    pub passed: u64,
    pub failed: u64,
}

/// Why a folder could not be run: none of these is a passed or a failed entry.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a JSON object: {message}", path.display())]
    NotJson { path: PathBuf, message: String },
    #[error("{} is no file of expected values that is known here", path.display())]
    UnknownShape { path: PathBuf },
    #[error("{} {problem}", path.display())]
    BadShape { path: PathBuf, problem: String },
    #[error("{} has no *.json file of expected values", dir.display())]
    Empty { dir: PathBuf },
    #[error("cannot print the result: {0}")]
    Print(#[from] io::Error),
}

/// A kind of file: how it is recognised and how it is run.
struct Suite {
    recognises: fn(&Object) -> bool,
    run: fn(&Object) -> Result<Vec<EntryResult>, String>,
}

const SUITES: &[Suite] = &[
    Suite {
        recognises: signing::recognises,
        run: signing::run,
    },
    Suite {
        recognises: |file| scenarios::recognises(file, "ops"),
        run: |file| scenarios::run(file, router::check),
    },
    Suite {
        recognises: |file| scenarios::recognises(file, "batches"),
        run: |file| scenarios::run(file, adp::check),
    },
];

/// Runs every `*.json` file of a folder; prints each entry that differs, then
/// `N passed, M failed`.
pub fn run_dir(dir: &Path, out: &mut dyn Write) -> Result<Summary, ConformanceError> {
    let files = json_files(dir)?;
    if files.is_empty() {
        let dir = dir.to_owned();
        return Err(ConformanceError::Empty { dir });
    }
    let mut summary = Summary::default();
    for path in files {
        let results = run_file(&path)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        for result in results {
            match result.difference {
                None => summary.passed += 1,
                Some(difference) => {
                    summary.failed += 1;
                    writeln!(out, "{file} {}: {difference}", result.name)?;
                }
            }
        }
    }
    writeln!(out, "{} passed, {} failed", summary.passed, summary.failed)?;
    Ok(summary)
}

fn json_files(dir: &Path) -> Result<Vec<PathBuf>, ConformanceError> {
    let read = |source| ConformanceError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn run_file(path: &Path) -> Result<Vec<EntryResult>, ConformanceError> {
    let path = path.to_owned();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(ConformanceError::Read { path, source }),
    };
    let file = match Object::parse(&text) {
        Ok(file) => file,
        Err(error) => {
            let message = error.to_string();
            return Err(ConformanceError::NotJson { path, message });
        }
    };
    let Some(suite) = SUITES.iter().find(|suite| (suite.recognises)(&file)) else {
        return Err(ConformanceError::UnknownShape { path });
    };
    match (suite.run)(&file) {
        Ok(results) if results.is_empty() => Err(ConformanceError::BadShape {
            path,
            problem: "has no entries".to_owned(),
        }),
        Ok(results) => Ok(results),
        Err(problem) => Err(ConformanceError::BadShape { path, problem }),
    }
}

#[cfg(test)]
mod tests;
