//! A worker filter alone in front of a worker, with requests as an edge signs them.

#[path = "worker_filter/bodies.rs"]
mod bodies;
#[path = "worker_filter/hand_over.rs"]
mod hand_over;
#[path = "worker_filter/passage.rs"]
mod passage;
#[path = "worker_filter/placement.rs"]
mod placement;
#[path = "worker_filter/reload.rs"]
mod reload;
mod support;
#[path = "worker_filter/verdicts.rs"]
mod verdicts;

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use kindred::{
    simulate::worker::{SimulatedWorkerConfig, recorder::Recorded},
    wire::{
        Role, headers,
        signature::{AffinityClaim, SigningKey},
    },
};
use serde_json::{Value, json};
use support::{
    Kindred, eventually,
    fleet::{self, Fleet, Worker},
    raw::{self, Answer},
};

const KEY: &str = "internal-key-of-the-filter-test";
const CHAT: &str = "/v1/chat/completions";
const SMALLEST_ID: u64 = 1 << 40;

/// One filter, its worker, and a context and a generation worker beside it.
struct Filtered {
    fleet: Fleet,
    kindred: Kindred,
    role: Role,
}

impl Filtered {
    /// A filter in front of a worker of `role`, with `more` members of its section.
    fn open(role: Role, more: &str, adjust: impl Fn(&mut SimulatedWorkerConfig)) -> Self {
        Self::with_key(
            &format!("internal_request_auth_key: {KEY}"),
            role,
            more,
            adjust,
        )
    }

    fn with_key(
        key: &str,
        role: Role,
        more: &str,
        adjust: impl Fn(&mut SimulatedWorkerConfig),
    ) -> Self {
        let fleet = fleet::start(1, 1, |config| {
            if role == Role::Aggregated {
                config.role = role;
            }
            adjust(config);
        });
        let worker = filtered(&fleet, role).address;
        let kindred = Kindred::serve(&yaml(key, worker, more));
        Self {
            fleet,
            kindred,
            role,
        }
    }

    fn worker(&self) -> &Worker {
        filtered(&self.fleet, self.role)
    }

    fn address(&self) -> SocketAddr {
        self.kindred.filters[0].1
    }

    fn post(&self, headers: &[(&str, &str)], body: &Value) -> Answer {
        raw::post(self.address(), CHAT, headers, &body.to_string())
    }

    /// What the worker saw last.
    fn last(&self) -> Recorded {
        self.worker().requests().pop().unwrap()
    }

    /// Sends a request that the worker does not finish by itself; the rank that it runs on.
    fn hold(&self, headers: &[(&str, &str)], body: &Value) -> Held {
        let before = self.worker().requests().len();
        let mut stream = raw::connect(self.address());
        let bytes = raw::request(CHAT, headers, body.to_string().as_bytes());
        stream.write_all(&bytes).unwrap();
        let rank = eventually("the worker runs the request", || {
            let requests = self.worker().requests();
            requests.get(before).and_then(|request| request.rank)
        });
        Held { stream, rank }
    }

    /// How many requests run on a rank, as the filter counts.
    fn in_flight(&self, rank: u32) -> f64 {
        let rank = format!("rank=\"{rank}\"");
        self.kindred.metric("kindred_rank_in_flight", &[&rank])
    }

    /// Asserts that so many requests run on a rank once all that were answered are counted out.
    fn runs(&self, rank: u32, requests: f64) {
        let rank = format!("rank=\"{rank}\"");
        self.kindred
            .assert_metric("kindred_rank_in_flight", &[&rank], requests);
    }

    fn placed(&self, reason: &str) -> f64 {
        let reason = format!("reason=\"{reason}\"");
        let name = "kindred_adp_placements_total";
        self.kindred.metric(name, &[&reason])
    }

    fn verified(&self, check: &str, outcome: &str) -> f64 {
        let (check, outcome) = (
            format!("check=\"{check}\""),
            format!("outcome=\"{outcome}\""),
        );
        let name = "kindred_verifications_total";
        self.kindred.metric(name, &[&check, &outcome])
    }
}

/// The configuration of one filter, with `more` members of its section.
fn yaml(key: &str, worker: SocketAddr, more: &str) -> String {
    format!(
        "{key}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
         - {{name: w, listen: '127.0.0.1:0', worker: '{worker}'{more}}}\n"
    )
}

fn filtered(fleet: &Fleet, role: Role) -> &Worker {
    let generation = role == Role::Generation;
    let mut workers = fleet.workers.iter();
    workers
        .find(|worker| (worker.role == Role::Generation) == generation)
        .unwrap()
}

/// A request that runs for as long as it is held; dropping it is a client that leaves.
struct Held {
    stream: TcpStream,
    rank: u32,
}

impl Held {
    /// Leaves, and waits until the filter has given the rank back.
    fn leave(self, filtered: &Filtered) {
        let before = filtered.in_flight(self.rank);
        assert!(before >= 1.0);
        drop(self.stream);
        filtered.runs(self.rank, before - 1.0);
    }
}

/// The body of a context request.
fn context_body(session: &str) -> Value {
    json!({
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "conversation_params": {"conversation_id": session},
        "disaggregated_params": {
            "request_type": "context_only",
            "disagg_request_id": SMALLEST_ID + 7,
            "schedule_style": 0,
        },
    })
}

/// The body of an ordinary request.
fn whole_body(session: &str) -> Value {
    let mut body = context_body(session);
    body.as_object_mut().unwrap().remove("disaggregated_params");
    body
}

/// The signature that an edge with `key` gives to `body` for a parent.
fn sign(key: &str, role: Role, parent: &str, body: &Value) -> String {
    let params = &body["disaggregated_params"];
    let claim = AffinityClaim {
        role,
        model: body["model"].as_str().unwrap(),
        conversation_id: body["conversation_params"]["conversation_id"].as_str(),
        affinity_id: parent,
        request_type: params["request_type"].as_str(),
        disagg_request_id: params["disagg_request_id"].as_u64().map(Into::into),
    };
    SigningKey::new(key).unwrap().sign_affinity(&claim)
}

/// Every value that the worker saw of a header, in any spelling of its name.
fn values<'a>(seen: &'a Recorded, name: &str) -> Vec<&'a str> {
    let pairs = seen.headers.iter();
    pairs
        .filter(|(known, _)| known.to_lowercase().replace('_', "-") == name)
        .map(|(_, value)| value.as_str())
        .collect()
}

/// The rank that the worker was told.
fn told_rank(seen: &Recorded) -> Option<u32> {
    match values(seen, headers::DATA_PARALLEL_RANK)[..] {
        [] => None,
        [rank] => Some(rank.parse().unwrap()),
        ref ranks => panic!("several ranks: {ranks:?}"),
    }
}
