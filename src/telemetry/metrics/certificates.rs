//! When the certificates of the running configuration end.

use prometheus::{IntGaugeVec, Registry};

use super::gauges;

/// `kindred_certificate_expiry_timestamp_seconds`, by the key that names the file.
pub struct Certificates(IntGaugeVec);

impl Certificates {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "When the certificates of a file end, by the key that names the file.";
        let name = "kindred_certificate_expiry_timestamp_seconds";
        gauges(registry, name, help, &["key"]).map(Self)
    }

    /// Notes the ends of the files in use, in seconds since the epoch; others are forgotten.
    pub fn set<'a>(&self, ends: impl Iterator<Item = (&'a str, i64)>) {
        self.0.reset();
        for (key, end) in ends {
            self.0.with_label_values(&[key]).set(end);
        }
    }
}
