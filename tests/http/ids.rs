//! What follows a request: its id comes back, and goes with its trace to both workers.

use kindred::simulate::worker::recorder::Recorded;

use super::*;
use crate::support::{client, eventually, h2c, seen};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const STATE: &str = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7";
const GENERATION_FIRST: &str = "schedule_style: generation_first";

fn carried(request: &Recorded) -> [Option<&str>; 3] {
    ["x-request-id", "traceparent", "tracestate"].map(|name| seen::header(request, name))
}

/// What reached both workers since the last call, one request each.
fn at_workers(fleet: &Fleet) -> Vec<Recorded> {
    let mut all = Vec::new();
    for worker in &fleet.workers {
        all.extend(worker.requests());
        worker.recorder.clear();
    }
    assert_eq!(all.len(), 2);
    all
}

#[test]
fn an_id_and_a_trace_reach_both_workers_and_the_id_comes_back() {
    let sent = [
        ("x-request-id", "mine-1"),
        ("traceparent", PARENT),
        ("tracestate", STATE),
    ];
    for more in ["", GENERATION_FIRST] {
        let (fleet, kindred) = start(more);
        for stream in [false, true] {
            let answer = raw::post(kindred.edge(), CHAT, &sent, &body(stream));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let ids = answer.headers.iter();
            let ids: Vec<_> = ids.filter(|(name, _)| name == "x-request-id").collect();
            assert_eq!(ids, [&("x-request-id".to_owned(), "mine-1".to_owned())]);
            for request in at_workers(&fleet) {
                let expected = [Some("mine-1"), Some(PARENT), Some(STATE)];
                assert_eq!(carried(&request), expected, "{more} {stream}");
            }
        }
    }
}

#[test]
fn what_is_malformed_is_replaced_or_left_out() {
    let (fleet, kindred) = start("");
    let long = "x".repeat(200);
    let mut made = std::collections::HashSet::new();
    for (id, parent) in [
        (None, None),
        (Some(long.as_str()), Some("00-0-0-0")),
        (Some("a\tb"), Some("nonsense")),
        (Some("\"quoted\""), None),
    ] {
        let mut sent = vec![("tracestate", STATE)];
        sent.extend(id.map(|id| ("x-request-id", id)));
        sent.extend(parent.map(|parent| ("traceparent", parent)));
        let answer = raw::post(kindred.edge(), CHAT, &sent, &body(false));
        let own = answer.header("x-request-id").unwrap();
        assert!(uuid::Uuid::parse_str(own).is_ok(), "{own}");
        assert!(made.insert(own.to_owned()), "a new one each time");
        for request in at_workers(&fleet) {
            assert_eq!(carried(&request), [Some(own), None, None], "{sent:?}");
        }
    }
}

#[test]
fn every_attempt_has_the_requests_id() {
    let (fleet, kindred) = start("");
    let context = fleet.of(Role::Context).next().unwrap();
    context.fault(1, "status=503");
    let answer = raw::post(kindred.edge(), CHAT, &[], &body(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let id = answer.header("x-request-id");
    let attempts = context.requests();
    assert_eq!(attempts.len(), 2);
    for request in attempts.iter().chain(&fleet.requests(Role::Generation)) {
        assert_eq!(carried(request)[0], id);
    }
}

#[test]
fn every_answer_has_an_id_whoever_makes_it() {
    let (fleet, kindred) = start(
        "limits: {max_body: 1KiB}\ngateway: {clients: [{name: a, api_keys_sha256: \
         ['1bd55e6baf7e4e671e3078d6c4c21a42ad5b2a4167180b1ca3752381a30ff4e3']}]}\n\
         cors: {allow_origins: ['https://a.example']}",
    );
    let large = chat(&"x".repeat(2000)).to_string();
    let asked = |method: &str, path: &str, more: &str, body: &str| {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        let key = match more.starts_with("authorization") {
            true => "",
            false => "authorization: Bearer example-agent-key\r\n",
        };
        format!("{head}{key}x-request-id: mine\r\n{more}content-length: {length}\r\n\r\n{body}")
    };
    let good = body(false);
    let unknown_key = "authorization: Bearer nobody\r\n";
    let preflight = "origin: https://a.example\r\naccess-control-request-method: POST\r\n";
    for (status, request) in [
        (200, asked("GET", "/health", "", "")),
        (200, asked("HEAD", "/version", "", "")),
        (204, asked("OPTIONS", CHAT, preflight, "")),
        (400, asked("POST", CHAT, "", "{")),
        (400, asked("POST", CHAT, "content-length: 2\r\n", "{}")),
        (401, asked("POST", CHAT, unknown_key, &good)),
        (404, asked("POST", "/nowhere", "", &good)),
        (405, asked("PUT", CHAT, "", &good)),
        (405, asked("TRACE", CHAT, "", "")),
        (413, asked("POST", CHAT, "", &large)),
        (415, asked("POST", CHAT, "content-encoding: x\r\n", &good)),
        (417, asked("POST", CHAT, "expect: x\r\n", &good)),
    ] {
        let told = exchange(kindred.edge(), request.as_bytes());
        let [answer] = answers(&told)[..] else {
            panic!("{request}: {told}");
        };
        assert!(answer.starts_with(&status.to_string()), "{request}: {told}");
        let lower = answer.to_lowercase();
        assert_eq!(lower.matches("x-request-id: mine\r\n").count(), 1, "{told}");
    }
    assert_nothing_was_sent_on(&fleet);
    for fault in ["status=400", "status=500", "reset"] {
        for role in [Role::Context, Role::Generation] {
            fleet.of(role).next().unwrap().fault(5, fault);
            let key = ("authorization", "Bearer example-agent-key");
            let sent = [("x-request-id", "mine"), key];
            let answer = raw::post(kindred.edge(), CHAT, &sent, &body(false));
            assert!(answer.status >= 400, "{}", answer.text());
            let what = format!("{fault} at {role:?}: {}", answer.text());
            assert_eq!(answer.header("x-request-id"), Some("mine"), "{what}");
            fleet.of(role).next().unwrap().fault(0, fault);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_answers_have_an_id_too() {
    let (fleet, kindred) = start("");
    let two = reqwest::Client::builder()
        .http2_prior_knowledge()
        .timeout(support::PATIENCE)
        .build()
        .unwrap();
    for (path, status) in [(CHAT, 200), ("/nowhere", 404)] {
        for stream in [false, true] {
            let request = two.post(kindred.url(path)).header("x-request-id", "mine");
            let answer = request.body(body(stream)).send().await.unwrap();
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()["x-request-id"], "mine");
            answer.bytes().await.unwrap();
        }
    }
    for request in at_workers_twice(&fleet) {
        assert_eq!(carried(&request)[0], Some("mine"));
    }
    let refused = h2c::post(kindred.edge(), CHAT, &[("expect", "x")], b"{}", &[]);
    assert_eq!(refused.status, 417);
    // The same over HTTP/1.1, through a library.
    let answer = client().get(kindred.url("/version")).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap();
    assert!(uuid::Uuid::parse_str(id).is_ok(), "{id}");
}

fn at_workers_twice(fleet: &Fleet) -> Vec<Recorded> {
    let all: Vec<_> = [Role::Context, Role::Generation]
        .into_iter()
        .flat_map(|role| fleet.requests(role))
        .collect();
    assert_eq!(all.len(), 4);
    all
}

#[test]
fn ids_and_traces_pass_the_worker_filter() {
    let fleet = fleet::start_roles(&[(Role::Aggregated, 1)], |_| ());
    let worker = fleet.workers[0].address;
    let filter = Kindred::serve(&format!(
        "worker_filters:\n- {{listen: '127.0.0.1:0', worker: '{worker}', server_role: aggregated}}"
    ));
    let kindred = Kindred::serve(&format!(
        "hostname: 127.0.0.1\nport: 0\naggregated_servers: {{urls: ['{}']}}\n",
        filter.filters[0].1
    ));
    let sent = [
        ("x-request-id", "mine-2"),
        ("traceparent", PARENT),
        ("tracestate", STATE),
    ];
    let answer = raw::post(kindred.edge(), CHAT, &sent, &body(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-request-id"), Some("mine-2"));
    let [request] = &fleet.requests(Role::Aggregated)[..] else {
        panic!("one request");
    };
    assert_eq!(
        carried(request),
        [Some("mine-2"), Some(PARENT), Some(STATE)]
    );
}

#[test]
fn an_operator_may_refuse_them() {
    let (fleet, kindred) =
        start("gateway: {anonymous: none, prune_headers: [X-Request-Id, tracestate]}");
    let sent = [
        ("x-request-id", "mine-3"),
        ("traceparent", PARENT),
        ("tracestate", STATE),
    ];
    let answer = raw::post(kindred.edge(), CHAT, &sent, &body(false));
    let own = answer.header("x-request-id").unwrap();
    assert!(uuid::Uuid::parse_str(own).is_ok(), "{own}");
    for request in at_workers(&fleet) {
        assert_eq!(carried(&request), [Some(own), Some(PARENT), None]);
    }
}

#[test]
fn the_id_is_in_the_log_line_of_its_request() {
    let (_fleet, kindred) = start("telemetry: {log: 'kindred=debug'}");
    let sent = [("x-request-id", "mine-4")];
    raw::post(kindred.edge(), CHAT, &sent, &body(false));
    eventually("the line is written", || {
        let log = kindred.log();
        let mut lines = log.lines();
        lines
            .any(|line| line.contains("request ended") && line.contains("\"mine-4\""))
            .then_some(())
    });
}
