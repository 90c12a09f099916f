//! What has been found in a file: problems, warnings, and keys without effect.
//!
//! Everything carries its line and the dotted path of its key. Nothing here ends a reading early:
//! one run is to name all that is wrong.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{address::Listener, words::nearest};

/// Problems and names beyond this are counted, not listed.
const MAX_LISTED: usize = 50;

/// One thing that is wrong, or that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file that holds it.
    pub file: PathBuf,
    /// Its line, from 1, where there is one.
    pub line: Option<u64>,
    /// The dotted path of the key, empty for the file as a whole.
    pub key: String,
    /// What is wrong and what to do.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Why a configuration file cannot be used. `Display` is one line for each problem:
/// `FILE:LINE: key.path: what is wrong; what to do`.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct ConfigError {
    problems: Vec<Problem>,
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

impl ConfigError {
    /// Every problem that was found, in the file's order; never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// Where a value stands: its line and the dotted path of its key.
#[derive(Clone, Default)]
pub(crate) struct Place {
    pub(super) line: Option<u64>,
    pub(super) path: String,
}

impl Place {
    /// The file as a whole.
    pub(crate) fn file() -> Self {
        Self::default()
    }

    /// A key of the section at this place.
    pub(crate) fn key(&self, name: &str, line: Option<u64>) -> Self {
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            section => format!("{section}.{name}"),
        };
        Self { line, path }
    }

    /// A key that should stand in this section and does not.
    pub(crate) fn missing(&self, name: &str) -> Self {
        self.key(name, self.line)
    }

    /// An item of the list at this place, counted from 0.
    pub(crate) fn item(&self, index: usize, line: Option<u64>) -> Self {
        Self {
            line,
            path: format!("{}[{index}]", self.path),
        }
    }

    /// The dotted path of the key.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// What has been found so far.
pub(crate) struct Report {
    file: PathBuf,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    unused: Vec<String>,
    listeners: Vec<(Place, Listener)>,
}

impl Report {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.to_path_buf(),
            problems: Vec::new(),
            warnings: Vec::new(),
            unused: Vec::new(),
            listeners: Vec::new(),
        }
    }

    fn problem(&self, at: &Place, what: String) -> Problem {
        Problem {
            file: self.file.clone(),
            line: at.line,
            key: at.path.clone(),
            what,
        }
    }

    /// The file cannot be used because of this.
    pub(crate) fn error(&mut self, at: &Place, what: impl Into<String>) {
        let problem = self.problem(at, what.into());
        self.problems.push(problem);
    }

    /// How many problems there are.
    pub(crate) fn errors(&self) -> usize {
        self.problems.len()
    }

    /// The file can be used, but a person should know this.
    pub(crate) fn warn(&mut self, at: &Place, what: impl Into<String>) {
        let warning = self.problem(at, what.into());
        self.warnings.push(warning);
    }

    /// A key that upstream (or the engine) knows and that changes nothing here. All of them make
    /// one warning. `alike` are the names it may have been meant to be.
    pub(crate) fn unused(&mut self, at: &Place, name: &str, alike: &[&'static str]) {
        let hint = nearest(name, alike.iter().copied())
            .map(|near| format!(" (did you mean `{near}`?)"))
            .unwrap_or_default();
        self.unused.push(format!("{}{hint}", at.path));
    }

    /// Something will listen there; two things cannot.
    pub(crate) fn listens(&mut self, at: &Place, listener: Listener) {
        let other = self
            .listeners
            .iter()
            .find(|(_, other)| other.clashes(&listener));
        if let Some((other, _)) = other {
            let what = format!(
                "{} already listens there; give one of them another port",
                other.path
            );
            self.error(at, what);
        }
        self.listeners.push((at.clone(), listener));
    }

    /// What a person should know, one line each.
    pub(super) fn warnings(mut self) -> Vec<String> {
        if !self.unused.is_empty() {
            let more = self.unused.len().saturating_sub(MAX_LISTED);
            self.unused.truncate(MAX_LISTED);
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let what = format!(
                "these keys have no effect here (they are the workers' engine options, or not known \
                 to Kindred): {}{more}",
                self.unused.join(", ")
            );
            self.warn(&Place::file(), what);
        }
        self.warnings.iter().map(Problem::to_string).collect()
    }

    /// Everything that is wrong.
    pub(super) fn into_error(mut self) -> ConfigError {
        self.problems.sort_by_key(|problem| problem.line);
        let more = self.problems.len().saturating_sub(MAX_LISTED);
        self.problems.truncate(MAX_LISTED);
        if more > 0 {
            self.error(&Place::file(), format!("and {more} more problems"));
        }
        ConfigError {
            problems: self.problems,
        }
    }
}
