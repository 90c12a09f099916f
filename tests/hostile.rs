//! A hostile client: whatever it sends, the workers see only what Kindred itself has set.
//!
//! `hostile/requests.jsonl` has a request a line. Values that only a client can have set contain
//! `evil` or are 666, so that one look at what reached a worker finds them wherever they went.

#[path = "hostile/judged.rs"]
mod judged;
#[path = "hostile/lines.rs"]
mod lines;
#[path = "hostile/straight.rs"]
mod straight;
mod support;
#[path = "hostile/unclean.rs"]
mod unclean;

use std::collections::BTreeMap;

use kindred::wire::Role;
use lines::{Line, Protocol};
use support::{clients::digest, fleet, guarded::Guarded};

const KEY: &str = "internal-key-of-the-hostile-test";
const CLIENT_KEY: &str = "key-of-a-client-that-turned-hostile";
const RANKS: u32 = 2;
const GATEWAY_PARENT: &str = "x-dynamo-parent-session-id";

/// The way of a request, with a `gateway` section or without.
struct Way {
    site: Guarded,
    gateway: bool,
}

impl Way {
    fn open(gateway: bool) -> Self {
        let fleet = fleet::start(1, 1, |config| config.engine.ranks = RANKS);
        let mut more = "conversation_affinity_header_for_subagents: X-Dynamo-Parent-Session-ID\n\
                        subagent_affinity_scope: both\n"
            .to_owned();
        if gateway {
            let digest = digest(CLIENT_KEY);
            more.push_str(&format!(
                "gateway: {{clients: [{{name: hostile, api_keys_sha256: ['{digest}']}}]}}\n"
            ));
        }
        Self {
            site: Guarded::open(fleet, KEY, RANKS, &more),
            gateway,
        }
    }

    /// What is wrong with how a request was treated.
    fn complaints(&self, line: &Line, protocol: Protocol) -> Vec<String> {
        for worker in &self.site.fleet.workers {
            worker.recorder.clear();
        }
        let before = self.pruned();
        let answer = line
            .request(CLIENT_KEY)
            .send(protocol, self.site.edge.edge());
        let after = self.pruned();
        let mut wrong = Vec::new();
        // HTTP/2 has no such header, and a stream with one may be reset.
        let names_fields = line.headers.iter().any(|(name, _)| name == "Connection");
        let refused = protocol == Protocol::H2c && names_fields && answer.status == 0;
        if !line.status.contains(&answer.status) && !refused {
            wrong.push(format!("status {}: {}", answer.status, answer.text()));
        }
        let parent = line.parent.as_deref().filter(|_| !self.gateway);
        for role in [Role::Context, Role::Generation] {
            let seen = self.site.fleet.requests(role);
            let expected = usize::from(answer.status == 200);
            if seen.len() != expected {
                wrong.push(format!(
                    "{} requests reached the {} worker",
                    seen.len(),
                    role.label()
                ));
            }
            for request in &seen {
                wrong.extend(unclean::unclean(request, role, parent));
            }
        }
        if !line.uncounted && !refused {
            let mut counted: BTreeMap<String, u64> = after;
            for (series, count) in &mut counted {
                *count -= before.get(series).copied().unwrap_or(0);
            }
            wrong.extend(self.miscounted(line, counted));
        }
        wrong
            .into_iter()
            .map(|what| format!("{}: {what}", line.name))
            .collect()
    }

    /// Every series of the two families of pruned things.
    fn pruned(&self) -> BTreeMap<String, u64> {
        let page = self.site.edge.admin("/metrics").text();
        page.lines()
            .filter(|line| line.starts_with("kindred_pruned_"))
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(series, value)| (series.to_owned(), value.parse::<f64>().unwrap() as u64))
            .collect()
    }

    fn miscounted(&self, line: &Line, mut counted: BTreeMap<String, u64>) -> Vec<String> {
        let header = |name: &str| format!("kindred_pruned_headers_total{{header=\"{name}\"}}");
        let field = |name: &str| format!("kindred_pruned_fields_total{{field=\"{name}\"}}");
        if !self.gateway {
            // There the parent header is trusted, not pruned.
            counted.remove(&header(GATEWAY_PARENT));
        }
        let headers = line.pruned_headers.iter();
        let headers = headers.filter(|(name, _)| self.gateway || *name != GATEWAY_PARENT);
        let expected: BTreeMap<String, u64> = headers
            .map(|(name, count)| (header(name), *count))
            .chain(
                line.pruned_fields
                    .iter()
                    .map(|(name, count)| (field(name), *count)),
            )
            .collect();
        counted.retain(|series, count| *count > 0 || expected.contains_key(series));
        let enough =
            |(series, count): (&String, &u64)| counted.get(series).is_some_and(|c| c >= count);
        let right = if line.nominated {
            expected.iter().all(enough)
        } else {
            counted == expected
        };
        if right {
            Vec::new()
        } else {
            vec![format!("counted {counted:?} instead of {expected:?}")]
        }
    }
}

fn nothing_gets_through(gateway: bool, protocol: Protocol) {
    let way = Way::open(gateway);
    let lines = Line::all();
    let sayable = lines
        .iter()
        .filter(|line| protocol == Protocol::Http1 || !line.http1);
    let wrong: Vec<_> = sayable
        .flat_map(|line| way.complaints(line, protocol))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    way.site.edge.assert_idle();
}

#[test]
fn case_h06_h20_nothing_internal_gets_through_the_gateway_over_http1() {
    nothing_gets_through(true, Protocol::Http1);
}

#[test]
fn nothing_internal_gets_through_the_gateway_over_h2c() {
    nothing_gets_through(true, Protocol::H2c);
}

#[test]
fn case_h06_h20_nothing_internal_gets_through_without_a_gateway_over_http1() {
    nothing_gets_through(false, Protocol::Http1);
}

#[test]
fn nothing_internal_gets_through_without_a_gateway_over_h2c() {
    nothing_gets_through(false, Protocol::H2c);
}
