//! What of a client's headers is internal: names that only Kindred and the workers may set.
//!
//! Names are compared in any case and with `_` for `-`, because some servers read both alike. All
//! copies of a name go, and names that `Connection:` nominates go from there too: the edge builds
//! its upstream requests from an allow-list, so a nomination could do nothing, but nothing internal
//! stays in sight either way. This file must never look at a value: what a header says does not
//! change whether it may stay.

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use prometheus::IntCounter;

use crate::{
    telemetry::{labels::PrunedHeader, metrics},
    wire::headers::{
        self, AFFINITY_AUTH, AFFINITY_ID, DATA_PARALLEL_RANK, DISAGG_AUTH, KINDRED_PREFIX, MSGPACK,
        PARENT_HEADERS, TRTLLM_PREFIX,
    },
};

/// What to take out of one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Headers to remove, with all their copies.
    pub remove: Vec<HeaderName>,
    /// What to set as `Connection` afterwards: the old value without the internal names. Only where
    /// there were some (then `remove` holds `Connection`) and something is left.
    pub connection: Option<HeaderValue>,
}

/// Knows every internal header name of one configuration.
#[derive(Debug)]
pub struct Pruner {
    rules: Vec<Rule>,
    trusted: Option<HeaderName>,
}

#[derive(Debug)]
struct Rule {
    name: Box<[u8]>,
    /// Whether every name that starts with `name` is meant.
    prefix: bool,
    removed: IntCounter,
}

impl Rule {
    fn configured(name: &str) -> Self {
        Self {
            name: name.as_bytes().into(),
            prefix: false,
            removed: metrics().pruned_configured_header(name),
        }
    }

    fn internal(name: &str, label: PrunedHeader) -> Self {
        Self {
            name: name.as_bytes().into(),
            prefix: name.ends_with('-'),
            removed: metrics().pruned_header(label),
        }
    }

    fn covers(&self, name: &[u8]) -> bool {
        if self.prefix {
            headers::begins_alike(name, &self.name)
        } else {
            headers::is_alike(name, &self.name)
        }
    }
}

impl Pruner {
    /// For the headers in which a parent may be named and for `prune_headers`, all lower-case.
    pub fn new<'a>(sources: impl Iterator<Item = &'a str>, configured: &[String]) -> Self {
        let internal = [
            (AFFINITY_ID, PrunedHeader::AffinityId),
            (AFFINITY_AUTH, PrunedHeader::AffinityAuth),
            (DISAGG_AUTH, PrunedHeader::DisaggAuth),
            (MSGPACK, PrunedHeader::Msgpack),
            (DATA_PARALLEL_RANK, PrunedHeader::DataParallelRank),
            (KINDRED_PREFIX, PrunedHeader::Kindred),
            (TRTLLM_PREFIX, PrunedHeader::OtherTrtllm),
        ];
        let mut parents: Vec<&str> = Vec::new();
        for name in sources.chain(PARENT_HEADERS) {
            if !parents.contains(&name) {
                parents.push(name);
            }
        }
        let internal = internal.map(|(name, label)| Rule::internal(name, label));
        let rules = internal
            .into_iter()
            .chain(parents.into_iter().map(Rule::configured))
            .chain(configured.iter().map(|name| Rule::configured(name)));
        Self {
            rules: rules.collect(),
            trusted: None,
        }
    }

    /// As it is, but the parent header is taken as it arrives: it leaves the request like the others
    /// and is not counted as pruned.
    pub fn trusting(mut self, parent_header: Option<&str>) -> Self {
        self.trusted = parent_header.and_then(|name| name.parse().ok());
        self
    }

    /// Names what must go from a request's headers, and counts it: each copy once, each nomination
    /// in `Connection:` once.
    pub fn prune(&self, headers: &HeaderMap) -> Pruned {
        let mut pruned = Pruned::default();
        for name in headers.keys() {
            if let Some(rule) = self.rule(name.as_str().as_bytes()) {
                if self.trusted.as_ref() != Some(name) {
                    rule.removed.inc_by(copies(headers, name));
                }
                pruned.remove.push(name.clone());
            }
        }
        self.prune_nominations(headers, &mut pruned);
        pruned
    }

    fn prune_nominations(&self, headers: &HeaderMap, pruned: &mut Pruned) {
        let mut kept = Vec::new();
        let mut found = false;
        let values = headers.get_all(CONNECTION).iter();
        let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        for token in tokens.map(<[u8]>::trim_ascii) {
            match self.rule(token) {
                Some(rule) => {
                    rule.removed.inc();
                    found = true;
                }
                None if token.is_empty() => {}
                None => kept.push(token),
            }
        }
        if found {
            pruned.remove.push(CONNECTION);
            let kept = kept.join(&b", "[..]);
            let left = HeaderValue::from_bytes(&kept).ok();
            pruned.connection = left.filter(|value| !value.is_empty());
        }
    }

    fn rule(&self, name: &[u8]) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.covers(name))
    }
}

fn copies(headers: &HeaderMap, name: &HeaderName) -> u64 {
    u64::try_from(headers.get_all(name).iter().count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
