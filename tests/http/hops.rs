//! Header fields and trailers that belong to one connection: they stay on it, in both directions.

use super::*;
use crate::support::{
    scripted::Scripted,
    seen::{body as body_of, header_names},
};

#[test]
fn nothing_of_the_clients_connection_reaches_a_worker() {
    let (fleet, kindred) = start("");
    let body = body(false);
    for fields in [
        "keep-alive: timeout=5\r\nconnection: keep-alive, x-a\r\nx-a: evil\r\n",
        "te: trailers, deflate\r\nproxy-authorization: Basic evil\r\nproxy-connection: keep-alive\r\n",
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: evil\r\n",
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: evil\r\nsec-websocket-version: 13\r\n",
        "connection: x-trtllm-subagent-affinity-id, x-session-id\r\nx-session-id: evil\r\n",
        "X_Session_Id: evil\r\nx-forwarded-for: evil\r\nforwarded: for=evil\r\nvia: 1.1 evil\r\n",
    ] {
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}content-length: {}\r\n\r\n{body}\
             GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let told = exchange(kindred.edge(), request.as_bytes());
        assert!(told.starts_with("HTTP/1.1 200 "), "{fields}: {told}");
        assert!(!told.contains(" 101 "), "{fields}: {told}");
        for role in [Role::Context, Role::Generation] {
            let seen = fleet.requests(role);
            let [request] = &seen[..] else {
                panic!("{fields}: {seen:?}");
            };
            let own = ["content-length", "content-type", "host", "x-request-id"];
            assert_eq!(header_names(request), own, "{fields}");
            assert!(
                !format!("{:?}", request.headers).contains("evil"),
                "{fields}"
            );
            assert!(body_of(request)["messages"].is_array() || role == Role::Generation);
        }
        for worker in &fleet.workers {
            worker.recorder.clear();
        }
    }
}

#[test]
fn nothing_of_the_workers_connection_reaches_a_client() {
    let kinds = [
        ("application/json", r#"{"choices":[]}"#),
        ("text/event-stream", "data: {}\n\ndata: [DONE]\n\n"),
    ];
    for (kind, body) in kinds {
        let worker = Scripted::start(move |_| {
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: keep-alive, x-hop\r\nx-hop: evil\r\n\
                 keep-alive: timeout=evil\r\nproxy-authenticate: evil\r\nupgrade: evil\r\ntrailer: x-after\r\n\
                 server: evil\r\nx-request-id: evil\r\ntransfer-encoding: chunked\r\n\r\n\
                 {:x}\r\n{body}\r\n0\r\nx-after: evil\r\n\r\n",
                body.len()
            );
            vec![answer.into_bytes()]
        });
        let kindred = Kindred::serve(&format!(
            "hostname: 127.0.0.1\nport: 0\naggregated_servers: {{urls: ['{}']}}\n",
            worker.address
        ));
        let stream = kind != "application/json";
        let request = kept(CHAT, &super::body(stream)).replacen(
            "\r\n",
            "\r\nte: trailers\r\nconnection: close\r\n",
            1,
        );
        let told = exchange(kindred.edge(), request.as_bytes());
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
        assert!(
            !told.contains("evil") && !told.contains("x-after"),
            "{told}"
        );
        assert!(told.contains(body), "{told}");
        assert!(told.to_lowercase().contains("x-request-id: "), "{told}");
    }
}

#[test]
fn a_context_answers_trailers_are_passed_over() {
    let fleet = fleet::start(1, 1, |_| ());
    let finished = r#"{"id":"a","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"done"},"disaggregated_params":{"request_type":"context_only","ctx_request_id":1}}],"prompt_token_ids":[1]}"#;
    let context = Scripted::start(move |_| {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
             {:x}\r\n{finished}\r\n0\r\nx-kindred-rank: 7\r\nx-after: evil\r\n\r\n",
            finished.len()
        );
        vec![answer.into_bytes()]
    });
    let generation = fleet.of(Role::Generation).next().unwrap().address;
    let kindred = Kindred::serve(&fleet::yaml(
        &[context.address],
        &[generation],
        "telemetry: {debug_headers: true}",
    ));
    let answer = raw::post(kindred.edge(), CHAT, &[], &body(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-kindred-rank"), None);
    assert!(!format!("{:?}{}", answer.headers, answer.text()).contains("evil"));
}
