//! What goes through a filter unchecked, and what of it stays behind.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use kindred::wire::{Role, headers::DATA_PARALLEL_RANK};

use crate::support::{Kindred, PATIENCE, chat, eventually, raw};
use crate::{CHAT, Filtered, KEY, told_rank, values};

#[test]
fn other_paths_and_methods_pass() {
    let site = Filtered::open(Role::Context, ", server_role: context", |_| {});
    let direct = site.worker().address;
    for (method, path, body) in [
        ("GET", "/health", ""),
        ("GET", "/version", ""),
        ("GET", "/server_info", ""),
        ("GET", "/v1/models", ""),
        ("GET", "/no/such/path?a=b%20c", ""),
        ("GET", CHAT, ""),
        ("PUT", CHAT, "not json"),
        ("DELETE", "/v1/completions", ""),
        ("POST", "/kv_cache_events", ""),
        ("POST", "/v1/responses", "not json either"),
    ] {
        let bytes = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\nx-trtllm-subagent-affinity-id: parent\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (through, straight) = (
            raw::send(site.address(), bytes.as_bytes()),
            raw::send(direct, bytes.as_bytes()),
        );
        assert_eq!(through.status, straight.status, "{method} {path}");
        assert_eq!(through.text(), straight.text(), "{method} {path}");
    }
    assert_eq!(site.kindred.metric("kindred_verifications_total", &[]), 0.0);
}

#[test]
fn an_answer_streams_through_while_the_worker_still_writes() {
    let site = Filtered::open(Role::Aggregated, "", |config| {
        config.engine.decode_interval = Duration::from_secs(3600);
    });
    let mut body = chat("hello");
    body["stream"] = true.into();
    let mut stream = raw::connect(site.address());
    stream
        .write_all(&raw::request(CHAT, &[], body.to_string().as_bytes()))
        .unwrap();
    let mut seen = String::new();
    let mut lines = BufReader::new(stream);
    while !seen.contains("data: {") {
        assert!(lines.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    assert!(!site.last().finished, "an hour is not over yet");
    drop(lines);
    eventually("the worker's client leaves", || {
        site.last().client_left.then_some(())
    });
}

/// A filter in front of a socket that the test itself answers on.
pub fn before_a_socket() -> (TcpListener, Kindred) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let kindred = Kindred::serve(&format!(
        "internal_request_auth_key: {KEY}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n\
         - {{name: w, listen: '127.0.0.1:0', worker: '{}', enable_attention_dp: true, tensor_parallel_size: 2}}\n",
        listener.local_addr().unwrap()
    ));
    (listener, kindred)
}

fn read_until(stream: &mut TcpStream, seen: &mut String, end: &str) {
    let mut chunk = [0; 4096];
    while !seen.contains(end) {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "no {end:?} in {seen:?}");
        seen.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
    }
}

pub fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn other_paths_stream_both_ways() {
    let (listener, kindred) = before_a_socket();
    let mut client = raw::connect(kindred.filters[0].1);
    client
        .write_all(b"POST /v1/other?q=1 HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\nx-own: A b\r\n\r\n5\r\nfirst\r\n")
        .unwrap();
    let mut worker = accept(&listener);
    let (mut asked, mut answered) = (String::new(), String::new());
    // The client has not said all, and the worker has heard what it said.
    read_until(&mut worker, &mut asked, "first");
    assert!(
        asked.starts_with("POST /v1/other?q=1 HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(
        asked.to_lowercase().contains("\r\nx-own: a b\r\n"),
        "{asked}"
    );
    client.write_all(b"6\r\nsecond\r\n0\r\n\r\n").unwrap();
    read_until(&mut worker, &mut asked, "0\r\n\r\n");
    worker
        .write_all(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-its: C d\r\n\r\n3\r\none\r\n",
        )
        .unwrap();
    read_until(&mut client, &mut answered, "one");
    assert!(
        answered.to_lowercase().contains("\r\nx-its: c d\r\n"),
        "{answered}"
    );
    worker.write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    read_until(&mut client, &mut answered, "two");
}

/// The internal headers of one request that reaches the worker, names folded.
fn internal_told(
    listener: &TcpListener,
    filter: SocketAddr,
    request: &str,
) -> Vec<(String, String)> {
    let mut client = raw::connect(filter);
    client.write_all(request.as_bytes()).unwrap();
    let mut worker = accept(listener);
    let mut asked = String::new();
    read_until(&mut worker, &mut asked, "\r\n\r\n");
    let lines = asked.lines().filter_map(|line| line.split_once(':'));
    let folded = lines.map(|(name, value)| {
        (
            name.to_lowercase().replace('_', "-"),
            value.trim().to_owned(),
        )
    });
    folded
        .filter(|(name, _)| {
            name.starts_with("x-trtllm-")
                || name.starts_with("x-kindred-")
                || name == DATA_PARALLEL_RANK
        })
        .collect()
}

const INTERNAL: &str = "X-Trtllm-Subagent-Affinity-Id: parent\r\n\
    x_trtllm_subagent_affinity_auth: sha256=00\r\nx-trtllm-disagg-auth: sha256=00\r\n\
    X-TRTLLM-MSGPACK: 1\r\nx-trtllm-of-tomorrow: 1\r\nx_kindred-rank: 1\r\n\
    X-Data_Parallel-Rank: 1\r\n";

#[test]
fn nothing_internal_passes_unverified() {
    let (listener, kindred) = before_a_socket();
    let filter = kindred.filters[0].1;
    for line in [
        "GET /v1/other",
        "PUT /v1/chat/completions",
        "POST /v1/responses",
    ] {
        let request =
            format!("{line} HTTP/1.1\r\nhost: test\r\n{INTERNAL}content-length: 0\r\n\r\n");
        assert_eq!(internal_told(&listener, filter, &request), [], "{line}");
    }
    let body = chat("hello").to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: test\r\n{INTERNAL}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    // What is left is the filter's own.
    let told = internal_told(&listener, filter, &request);
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [DATA_PARALLEL_RANK]);
}

#[test]
fn other_spellings_of_a_checked_path_are_refused_by_name() {
    let site = Filtered::open(Role::Context, ", server_role: context", |_| {});
    let body = chat("hello").to_string();
    for (target, path) in [
        ("/v1/chat/completions/", CHAT),
        ("//v1/chat/completions", CHAT),
        ("/v1//chat/completions?a=b", CHAT),
        ("/v1/ch%61t/completions", CHAT),
        ("/v1/ch%2561t/completions", CHAT),
        ("/x/../v1/chat/completions", CHAT),
        ("/x/%2e%2e/v1/chat/completions", CHAT),
        ("/v1/chat/completions;a=b", CHAT),
        ("http://test/v1/chat/completions/", CHAT),
        ("foo:bar://test/v1/chat/completions", CHAT),
        ("/v1/./completions", "/v1/completions"),
    ] {
        let answer = raw::post(site.address(), target, &[], &body);
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        let told = answer.text();
        // Pingora refuses some of them itself, before anything is asked.
        assert!(
            told.contains(&format!("POST {path};")) || target.starts_with("foo:"),
            "{target}: {told}"
        );
    }
    assert!(site.worker().requests().is_empty());
    let literal = raw::post(
        site.address(),
        "http://test/v1/chat/completions?a=b",
        &[],
        &body,
    );
    assert_eq!(literal.status, 200, "{}", literal.text());
    assert_eq!(site.verified("affinity", "absent"), 1.0, "it was checked");
    site.kindred.assert_idle();
}

#[test]
fn a_client_that_leaves_is_no_error_and_its_host_is_not_logged() {
    let site = Filtered::open(Role::Aggregated, "", |config| {
        config.engine.decode_interval = Duration::from_secs(3600);
    });
    let mut body = chat("hello");
    for stream in [true, false] {
        body["stream"] = stream.into();
        let before = site.worker().requests().len();
        let mut client = raw::connect(site.address());
        let text = body.to_string();
        let request = format!(
            "POST {CHAT}?secret-query HTTP/1.1\r\nhost: secret-host\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        client.write_all(request.as_bytes()).unwrap();
        eventually("the worker runs the request", || {
            site.worker().requests().get(before)?.rank
        });
        drop(client);
        eventually("the worker's client leaves", || {
            site.last().client_left.then_some(())
        });
        site.kindred.assert_idle();
    }
    // One that is to be logged comes last, so that everything before it has been written.
    site.worker().fault(1, "reset");
    let answer = raw::post(
        site.address(),
        &format!("{CHAT}?secret-query"),
        &[],
        &body.to_string(),
    );
    assert_eq!(answer.status, 502);
    eventually("the failure is logged", || {
        site.kindred.log().contains("ERROR").then_some(())
    });
    let log = site.kindred.log();
    assert_eq!(log.matches("ERROR").count(), 1, "{log}");
    assert!(log.contains(&format!("POST {CHAT}")), "{log}");
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn no_path_tells_the_worker_a_clients_rank() {
    let (listener, kindred) = before_a_socket();
    for path in ["/v1/other", "/health", CHAT] {
        for name in [
            "x-data-parallel-rank",
            "X-Data-Parallel-Rank",
            "x_data_parallel_rank",
        ] {
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: test\r\n{name}: 1\r\n{name}: 1\r\n\r\n");
            let told = internal_told(&listener, kindred.filters[0].1, &request);
            assert!(told.is_empty(), "{path} {name}: {told:?}");
        }
    }
}

#[test]
fn the_rank_is_the_filters_own() {
    let adp = ", enable_attention_dp: true, tensor_parallel_size: 2, attention_dp_config: {kv_cache_routing_conversation_affinity: true}";
    let spellings = [
        "x-data-parallel-rank",
        "X-DATA-PARALLEL-RANK",
        "x_data_parallel_rank",
    ];
    let placing = Filtered::open(Role::Aggregated, adp, |config| config.engine.ranks = 4);
    let plain = Filtered::open(Role::Aggregated, "", |config| config.engine.ranks = 4);
    for name in spellings {
        for headers in [
            &[(name, "3")][..],
            &[(name, "3"), (name, "2")],
            &[(name, "3, 2")],
        ] {
            let answer = placing.post(headers, &chat("hello"));
            assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
            let seen = placing.last();
            assert!(told_rank(&seen).unwrap() < 2, "{headers:?}");
            assert_eq!(seen.rank, told_rank(&seen), "{headers:?}");
            let answer = plain.post(headers, &chat("hello"));
            assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
            assert!(
                values(&plain.last(), DATA_PARALLEL_RANK).is_empty(),
                "{headers:?}"
            );
        }
    }
}

#[test]
fn nobody_but_the_filter_says_on_which_rank_an_answer_was_made() {
    let (listener, kindred) = before_a_socket();
    let mut client = raw::connect(kindred.filters[0].1);
    client
        .write_all(b"GET /v1/other HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut worker = accept(&listener);
    read_until(&mut worker, &mut String::new(), "\r\n\r\n");
    worker
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-kindred-rank: 9\r\n\r\nok")
        .unwrap();
    let answer = raw::read_answer(&mut client);
    assert_eq!(
        (answer.status, answer.header("x-kindred-rank")),
        (200, None)
    );
}
