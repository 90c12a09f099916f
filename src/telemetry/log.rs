//! Log lines: one compact line each, to stderr, at the levels that the configuration asks for.
//!
//! Pingora logs through the `log` crate; those records are bridged into the same lines. The filter
//! can be replaced while the program runs. Nothing here decides what is logged: rooms never pass a
//! secret, and pass text that a client chose as a field (which is quoted and escaped), never as part
//! of the message.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not in the form of `info` or `kindred=debug,pingora=warn`.
    #[error(
        "the log filter {filter:?} is not usable: {reason}; write it as `info` or `info,kindred=debug`"
    )]
    Filter { filter: String, reason: String },
    /// Something else in the process has already taken the log over.
    #[error("logging is already set up: {0}")]
    Taken(String),
}

/// The running log, whose filter can be replaced.
#[derive(Debug, Clone)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Replaces the filter.
    ///
    /// # Errors
    /// [`LogError::Filter`] when `filter` cannot be read; the old one stays.
    pub fn set_filter(&self, filter: &str) -> Result<(), LogError> {
        let parsed = parse(filter)?;
        self.filter
            .reload(parsed)
            .map_err(|error| LogError::Taken(error.to_string()))?;
        // The bridge from `log` has a level of its own, which it sets only once.
        log::set_max_level(bridged(LevelFilter::current()));
        Ok(())
    }
}

/// Starts logging to stderr; once in a process.
///
/// # Errors
/// [`LogError::Filter`] when `filter` cannot be read, [`LogError::Taken`] on a second call.
pub fn init(filter: &str) -> Result<Log, LogError> {
    let (layer, handle) = reload::Layer::new(parse(filter)?);
    let lines = fmt::layer()
        .compact()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry()
        .with(layer)
        .with(lines)
        .try_init()
        .map_err(|error| LogError::Taken(error.to_string()))?;
    Ok(Log { filter: handle })
}

/// Reads a filter; also for checking one before a reload takes effect. Words alone must be levels:
/// the library would take `verbose` for the name of a module and log nothing else.
///
/// # Errors
/// [`LogError::Filter`] with the reason.
pub fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let unusable = |reason: String| LogError::Filter {
        filter: filter.to_owned(),
        reason,
    };
    let parts: Vec<_> = filter.split(',').map(str::trim).collect();
    for part in &parts {
        let level = !part.is_empty() && part.parse::<LevelFilter>().is_ok();
        if !level && !part.contains(['=', '[']) {
            return Err(unusable(format!("{part:?} is not a level")));
        }
        if part.starts_with(PROXY) && level_of(part) > LevelFilter::INFO {
            return Err(unusable(format!(
                "{part:?} would write whole request heads, keys included"
            )));
        }
    }
    // Below this level Pingora writes request heads with their credentials. The cap comes first: what
    // the filter says of a crate of Pingora's own is below it, and holds for that crate alone.
    let cap = level_of(filter).min(LevelFilter::INFO);
    let capped = format!("{PROXY}={cap},{}", parts.join(","));
    EnvFilter::try_new(capped).map_err(|error| unusable(error.to_string()))
}

/// Where Pingora's own lines come from.
const PROXY: &str = "pingora";

/// The most talkative level that a filter, or a part of one, names.
fn level_of(filter: &str) -> LevelFilter {
    let words = filter.split([',', '=']).map(str::trim);
    let levels = words.filter_map(|word| word.parse().ok());
    levels.max().unwrap_or(LevelFilter::TRACE)
}

fn bridged(level: LevelFilter) -> log::LevelFilter {
    match level {
        LevelFilter::OFF => log::LevelFilter::Off,
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
    }
}

/// For tests of other rooms.
#[cfg(test)]
pub(crate) mod testing {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic while writing").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// What `act` logs on this thread, as the program writes it.
    pub(crate) fn capture(act: impl FnOnce()) -> String {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .compact()
            .with_ansi(false)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let bytes = lines.0.lock().expect("no panic while writing").clone();
        String::from_utf8(bytes).expect("log lines are UTF-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_never_writes_what_holds_keys() {
        for filter in [
            "trace",
            "debug",
            "warn,kindred=trace",
            "trace,pingora_proxy=info",
            "trace,pingora=warn",
        ] {
            let parsed = parse(filter).expect("a filter").to_string();
            assert!(
                parsed.contains("pingora=info") || parsed.contains("pingora=warn"),
                "{parsed}"
            );
        }
        assert!(
            parse("warn")
                .expect("a filter")
                .to_string()
                .contains("pingora=warn")
        );
        for filter in ["pingora=debug", "info,pingora_proxy=trace", "pingora"] {
            assert!(parse(filter).is_err(), "{filter}");
        }
    }

    #[test]
    fn a_wrong_filter_is_told_with_its_text() {
        for filter in ["kindred=loud", "verbose", "info,kindred", "info,,warn", ""] {
            let error = parse(filter).expect_err("not a filter");
            assert!(error.to_string().contains(filter), "{error}");
        }
        for filter in [
            "info",
            "WARN",
            "off",
            "info, kindred=debug",
            "warn,kindred[s]=trace",
        ] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
    }

    #[test]
    fn starts_once_and_takes_a_new_filter() {
        // Quiet, because it is the whole test process that logs so.
        let log = init("off").expect("first start");
        assert!(matches!(init("info"), Err(LogError::Taken(_))));
        log.set_filter("kindred::telemetry=info")
            .expect("a good filter");
        assert!(tracing::enabled!(tracing::Level::INFO));
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        assert!(log::max_level() >= log::LevelFilter::Info);
        assert!(log.set_filter("kindred=loud").is_err());
        assert!(tracing::enabled!(tracing::Level::INFO));
        log.set_filter("off").expect("a good filter");
        assert!(!tracing::enabled!(tracing::Level::ERROR));
    }
}
