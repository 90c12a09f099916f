//! A hostile client: whatever it sends, the workers see only what Kindred itself has set.
//!
//! `hostile/requests.jsonl` has a request a line. Values that only a client can have set contain
//! `evil` or are 666, so that one look at what reached a worker finds them wherever they went.

mod support;
#[path = "hostile/unclean.rs"]
mod unclean;

use std::{collections::BTreeMap, io::Write, net::SocketAddr};

use kindred::wire::Role;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use support::{
    Kindred,
    fleet::{self, Fleet},
    h2c,
    raw::{self, Answer},
};

const KEY: &str = "internal-key-of-the-hostile-test";
const CLIENT_KEY: &str = "key-of-a-client-that-turned-hostile";
const RANKS: u32 = 2;
const GATEWAY_PARENT: &str = "x-dynamo-parent-session-id";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    #[serde(default = "chat_path")]
    path: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    trailers: Vec<(String, String)>,
    /// Members that are added in the middle of an ordinary body.
    add: Option<String>,
    /// The whole body instead.
    body: Option<String>,
    /// The parent that is trusted where there is no `gateway` section.
    parent: Option<String>,
    /// Cannot be written in HTTP/2.
    #[serde(default)]
    http1: bool,
    /// Internal names stand in `Connection:`, which HTTP/2 does not have.
    #[serde(default)]
    nominated: bool,
    /// Refused as a whole, so nothing needs to be counted.
    #[serde(default)]
    uncounted: bool,
    #[serde(default = "good")]
    status: Vec<u16>,
    #[serde(default)]
    pruned_headers: BTreeMap<String, u64>,
    #[serde(default)]
    pruned_fields: BTreeMap<String, u64>,
}

fn chat_path() -> String {
    "/v1/chat/completions".to_owned()
}

fn good() -> Vec<u16> {
    vec![200]
}

impl Line {
    fn all() -> Vec<Self> {
        let text = include_str!("hostile/requests.jsonl");
        let lines: Vec<Self> = text
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect();
        assert!(lines.len() >= 150);
        lines
    }

    fn body(&self) -> String {
        let prompt = match self.path.as_str() {
            "/v1/completions" => r#""prompt":"hello""#,
            _ => r#""messages":[{"role":"user","content":"hello"}]"#,
        };
        let add = self.add.iter().map(|add| format!("{add},"));
        self.body.clone().unwrap_or_else(|| {
            let add: String = add.collect();
            format!(r#"{{"model":"m",{add}{prompt},"max_tokens":4}}"#)
        })
    }

    fn send_http1(&self, to: SocketAddr) -> Answer {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nauthorization: Bearer {CLIENT_KEY}\r\n",
            self.path
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        // A header value is bytes: each character of the file is one.
        let mut bytes: Vec<u8> = head.chars().map(|c| c as u32 as u8).collect();
        let body = self.body();
        let rest = if self.trailers.is_empty() {
            format!("content-length: {}\r\n\r\n{body}", body.len())
        } else {
            let trailers = self.trailers.iter();
            let trailers: String = trailers.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            format!(
                "transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{trailers}\r\n",
                body.len()
            )
        };
        bytes.extend_from_slice(rest.as_bytes());
        let mut stream = raw::connect(to);
        // The server may refuse and close before it has read everything.
        let _ = stream.write_all(&bytes);
        raw::try_read_answer(&mut stream).unwrap_or_else(|cut| Answer {
            status: 0,
            headers: Vec::new(),
            body: cut,
        })
    }

    fn send_h2c(&self, to: SocketAddr) -> Answer {
        let authorization = format!("Bearer {CLIENT_KEY}");
        let mut headers = vec![("authorization", authorization.as_str())];
        let lower = |pairs: &[(String, String)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs.map(|(n, v)| (n.to_lowercase(), v.clone())).collect()
        };
        let (own, trailers) = (lower(&self.headers), lower(&self.trailers));
        headers.extend(own.iter().map(|(n, v)| (n.as_str(), v.as_str())));
        let trailers: Vec<_> = trailers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        h2c::post(to, &self.path, &headers, self.body().as_bytes(), &trailers)
    }
}

/// An edge, its filters in a process of their own, and recording workers.
struct Way {
    fleet: Fleet,
    edge: Kindred,
    _filters: Kindred,
    gateway: bool,
}

impl Way {
    fn open(gateway: bool) -> Self {
        let fleet = fleet::start(1, 1, |config| config.engine.ranks = RANKS);
        let mut yaml = format!(
            "internal_request_auth_key: {KEY}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n"
        );
        for worker in &fleet.workers {
            yaml.push_str(&format!(
                "- {{name: {}, listen: '127.0.0.1:0', worker: '{}', server_role: {}, enable_attention_dp: true, \
                 tensor_parallel_size: {RANKS}, attention_dp_config: {{kv_cache_routing_conversation_affinity: true}}}}\n",
                worker.name, worker.address, worker.role.label()
            ));
        }
        let filters = Kindred::serve(&yaml);
        let address = |name: &str| {
            let mut all = filters.filters.iter();
            all.find(|(known, _)| known == name).unwrap().1
        };
        let mut more = format!(
            "internal_request_auth_key: {KEY}\n\
             conversation_affinity_header_for_subagents: X-Dynamo-Parent-Session-ID\n\
             subagent_affinity_scope: both\n"
        );
        if gateway {
            let digest = Sha256::digest(CLIENT_KEY);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            more.push_str(&format!(
                "gateway: {{clients: [{{name: hostile, api_keys_sha256: ['{digest}']}}]}}\n"
            ));
        }
        let edge = Kindred::serve(&fleet::yaml(
            &[address("context-0")],
            &[address("generation-0")],
            &more,
        ));
        Self {
            fleet,
            edge,
            _filters: filters,
            gateway,
        }
    }

    /// What is wrong with how a request was treated.
    fn complaints(
        &self,
        line: &Line,
        send: impl Fn(&Line, SocketAddr) -> Answer,
        refusable: bool,
    ) -> Vec<String> {
        for worker in &self.fleet.workers {
            worker.recorder.clear();
        }
        let before = self.pruned();
        let answer = send(line, self.edge.edge());
        let after = self.pruned();
        let mut wrong = Vec::new();
        let refused = refusable && answer.status == 0;
        if !line.status.contains(&answer.status) && !refused {
            wrong.push(format!("status {}: {}", answer.status, answer.text()));
        }
        let parent = line.parent.as_deref().filter(|_| !self.gateway);
        for role in [Role::Context, Role::Generation] {
            let seen = self.fleet.requests(role);
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
        let page = self.edge.admin("/metrics").text();
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

fn nothing_gets_through(gateway: bool, http2: bool) {
    let way = Way::open(gateway);
    let mut wrong = Vec::new();
    for line in Line::all() {
        if !http2 {
            wrong.extend(way.complaints(&line, Line::send_http1, false));
        } else if !line.http1 {
            let refusable = line.headers.iter().any(|(name, _)| name == "Connection");
            wrong.extend(way.complaints(&line, Line::send_h2c, refusable));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    way.edge.assert_idle();
}

#[test]
fn case_h06_h20_nothing_internal_gets_through_the_gateway_over_http1() {
    nothing_gets_through(true, false);
}

#[test]
fn nothing_internal_gets_through_the_gateway_over_h2c() {
    nothing_gets_through(true, true);
}

#[test]
fn case_h06_h20_nothing_internal_gets_through_without_a_gateway_over_http1() {
    nothing_gets_through(false, false);
}

#[test]
fn nothing_internal_gets_through_without_a_gateway_over_h2c() {
    nothing_gets_through(false, true);
}
