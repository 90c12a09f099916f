//! The access log: one JSON line for each request that has ended.
//!
//! Lines are handed to a thread that writes them, so no request waits for a disk; where it cannot keep
//! up, lines are dropped and counted. What a client has chosen stands in it only as escaped text of
//! bounded length, and no secret ever does.

use std::{
    fmt,
    fs::OpenOptions,
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use serde::Serialize;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait to be written at most.
const WAITING: usize = 16 * 1024;
/// Characters of a client's own text at most.
const LONGEST: usize = 256;

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Stderr,
    /// A file that is written on.
    File(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// One request that has ended.
#[derive(Debug, Serialize)]
pub struct Entry<'a> {
    /// When it ended, RFC 3339 in UTC.
    pub time: String,
    pub request_id: &'a str,
    /// The client's configured name; absent where none was recognised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<&'a str>,
    pub route: &'a str,
    pub fleet: &'a str,
    /// The answer's status; absent where none went out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub outcome: &'a str,
    pub stream: bool,
    /// The conversation id, in latin-1 where it came in a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<&'a str>,
    /// The session that it followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<&'a str>,
    /// What became of its claim to a parent; absent where it did not come that far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_claim: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<&'a str>,
    /// From its head to its last byte.
    pub duration_ms: f64,
}

impl Entry<'_> {
    /// An entry of now, with nothing known but these.
    pub fn new<'a>(request_id: &'a str, outcome: &'a str, duration: Duration) -> Entry<'a> {
        Entry {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            request_id,
            client: None,
            route: "",
            fleet: "",
            status: None,
            outcome,
            stream: false,
            session: None,
            parent: None,
            parent_claim: None,
            context: None,
            generation: None,
            duration_ms: (duration.as_secs_f64() * 1e6).round() / 1e3,
        }
    }
}

/// The beginning of a client's own text, as far as it is logged.
pub fn shortened(text: &str) -> &str {
    let end = text.char_indices().nth(LONGEST).map(|(at, _)| at);
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

/// A log that is written to.
pub struct AccessLog {
    writer: NonBlocking,
    dropped: ErrorCounter,
    /// Writes what waits when the log is closed.
    _guard: WorkerGuard,
}

static LOG: LazyLock<ArcSwapOption<AccessLog>> = LazyLock::new(ArcSwapOption::empty);

impl AccessLog {
    /// Opens a log.
    ///
    /// # Errors
    /// Those of opening its file.
    pub fn open(target: &Target) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match target {
            Target::Stderr => Box::new(io::stderr()),
            Target::File(path) => {
                Box::new(OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        let builder = NonBlockingBuilder::default().lossy(true);
        let (writer, guard) = builder.buffered_lines_limit(WAITING).finish(sink);
        Ok(Self {
            dropped: writer.error_counter(),
            writer,
            _guard: guard,
        })
    }

    /// Writes an entry, or drops it where too many wait.
    pub fn write(&self, entry: &Entry<'_>) {
        if let Ok(mut line) = serde_json::to_vec(entry) {
            line.push(b'\n');
            // It takes the line or counts it as dropped.
            let _ = self.writer.clone().write_all(&line);
        }
    }

    /// Lines that were dropped since it was opened.
    pub fn dropped(&self) -> u64 {
        self.dropped.dropped_lines() as u64
    }
}

/// Opens the log that a configuration wants, if it wants one.
///
/// # Errors
/// What cannot be opened, in words.
pub fn prepare(target: Option<&Target>) -> Result<Option<AccessLog>, String> {
    let log = target.map(AccessLog::open).transpose();
    log.map_err(|error| {
        let target = target.map(Target::to_string).unwrap_or_default();
        format!("telemetry.access_log: {target} cannot be opened: {error}")
    })
}

/// The log of this process, if one is written.
pub fn current() -> Option<Arc<AccessLog>> {
    LOG.load_full()
}

/// Writes to `log` from now on, or nowhere; what waits for the old one is still written.
pub fn replace(log: Option<AccessLog>) {
    LOG.store(log.map(Arc::new));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_line_whatever_a_client_has_sent() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("access.log");
        let log = AccessLog::open(&Target::File(file.clone())).expect("a log");
        let session = "s\"\n\u{1b}[2J\u{2028}";
        let entry = Entry {
            session: Some(session),
            status: Some(200),
            ..Entry::new("id", "ok", Duration::from_micros(1500))
        };
        log.write(&entry);
        drop(log);
        let written = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(written.lines().count(), 1, "{written}");
        let read: serde_json::Value = serde_json::from_str(&written).expect("JSON");
        assert_eq!(read["session"], session);
        assert_eq!(read["status"], 200);
        assert_eq!(read["duration_ms"], 1.5);
        assert!(read.get("client").is_none());
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(1000);
        assert_eq!(shortened(&long).chars().count(), LONGEST);
        assert_eq!(shortened("short"), "short");
    }
}
