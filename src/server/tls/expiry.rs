//! When certificates end: a gauge to alert on, and a warning for whoever reads the log.

use std::{path::PathBuf, time::SystemTime};

use chrono::DateTime;

use crate::telemetry;

const DAY: i64 = 24 * 60 * 60;
/// How long before its end a certificate is warned of, in seconds.
const NOTICE: i64 = 14 * DAY;

/// When the certificates of one file end.
pub(super) struct Expiry {
    /// Dotted path of the key that names the file.
    pub(super) key: String,
    pub(super) path: PathBuf,
    /// Seconds since the epoch.
    pub(super) ends: i64,
}

impl Expiry {
    /// What is to be said of it today.
    pub(super) fn warning(&self) -> Option<String> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.map_or(0, |since| since.as_secs());
        self.warning_at(i64::try_from(now).unwrap_or(i64::MAX))
    }

    fn warning_at(&self, now: i64) -> Option<String> {
        let left = self.ends - now;
        let (key, path) = (&self.key, self.path.display());
        let ends = DateTime::from_timestamp(self.ends, 0);
        let ends = ends.map_or_else(|| self.ends.to_string(), |ends| ends.to_rfc3339());
        match left {
            NOTICE.. => None,
            1.. => {
                let days = left / DAY;
                Some(format!(
                    "{key}: {path} ends at {ends}, in {days} days; renew it and reload"
                ))
            }
            _ => Some(format!(
                "{key}: {path} has ended at {ends}, and nobody believes it any more; renew it and \
                 reload"
            )),
        }
    }
}

/// Sets `kindred_certificate_expiry_timestamp_seconds` for the files in use, and for no others.
pub(super) fn export(expiries: &[Expiry]) {
    let ends = expiries.iter().map(|expiry| (&*expiry.key, expiry.ends));
    telemetry::metrics().certificates.set(ends);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_weeks_before_its_end_a_certificate_is_warned_of() {
        let expiry = Expiry {
            key: "tls.cert_file".to_owned(),
            path: "edge.crt".into(),
            ends: 1_800_000_000,
        };
        let at = |before: i64| expiry.warning_at(expiry.ends - before);
        assert_eq!(at(NOTICE), None);
        let soon = at(3 * DAY).expect("a warning");
        let expected = "tls.cert_file: edge.crt ends at 2027-01-15T08:00:00+00:00, in 3 days";
        assert!(soon.starts_with(expected), "{soon}");
        let over = at(0).expect("a warning");
        assert!(over.contains("has ended"), "{over}");
    }
}
