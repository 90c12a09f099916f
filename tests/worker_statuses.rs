//! What a client is told of a worker's status, and how it is framed.

mod support;

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
};

use kindred::wire::Role;
use support::{
    Kindred, chat,
    fleet::{self, Fleet},
    raw::{self, Answer},
    scripted::{self, Scripted},
};

const CHAT: &str = "/v1/chat/completions";

fn ask(kindred: &Kindred) -> Answer {
    raw::post(kindred.edge(), CHAT, &[], &chat("hello").to_string())
}

/// A worker that answers with this status line's end, further fields and body.
fn answering(status: &str, fields: &str, body: &str) -> Scripted {
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{fields}connection: close\r\n\r\n{body}",
        body.len()
    );
    Scripted::start(move |_| vec![answer.clone().into_bytes()])
}

fn before_context(context: SocketAddr, fleet: &Fleet) -> Kindred {
    let generation = fleet.of(Role::Generation).next().unwrap().address;
    Kindred::serve(&fleet::yaml(&[context], &[generation], "max_retries: 0"))
}

fn before_generation(fleet: &Fleet, generation: SocketAddr) -> Kindred {
    let context = fleet.of(Role::Context).next().unwrap().address;
    Kindred::serve(&fleet::yaml(&[context], &[generation], "max_retries: 0"))
}

fn generation_first(fleet: &Fleet, generation: SocketAddr) -> Kindred {
    let context = fleet.of(Role::Context).next().unwrap().address;
    let more = "max_retries: 0\nschedule_style: generation_first";
    Kindred::serve(&fleet::yaml(&[context], &[generation], more))
}

/// What each kind of status becomes: the worker's, the client's, and whether the message is relayed.
const TOLD: [(&str, u16, bool); 9] = [
    ("400 Bad Request", 400, true),
    ("404 Not Found", 404, true),
    ("503 Service Unavailable", 503, true),
    ("401 Unauthorized", 502, true),
    ("403 Forbidden", 502, true),
    ("407 Proxy Authentication Required", 502, true),
    ("201 Created", 502, false),
    ("204 No Content", 502, false),
    ("302 Found", 502, false),
];

fn assert_told(kindred: &Kindred, (status, told, relayed): (&str, u16, bool)) {
    let answer = ask(kindred);
    assert_eq!(answer.status, told, "{status}: {}", answer.text());
    let error = answer.json()["error"].clone();
    let message = error["message"].as_str().unwrap();
    assert_eq!(message.contains("because"), relayed, "{status}: {message}");
    if told != status[..3].parse::<u16>().unwrap() {
        assert!(message.contains(&status[..3]), "{status}: {message}");
        assert_eq!(error["type"], "upstream_error", "{status}");
    }
    kindred.assert_idle();
}

fn refusal_body(status: &str) -> &'static str {
    if status.starts_with("204") {
        ""
    } else {
        r#"{"message":"because"}"#
    }
}

#[test]
fn a_context_workers_status_is_the_clients_only_where_it_concerns_it() {
    let fleet = fleet::start(0, 1, |_| ());
    for case in TOLD {
        let worker = answering(case.0, "", refusal_body(case.0));
        assert_told(&before_context(worker.address, &fleet), case);
    }
    assert!(fleet.requests(Role::Generation).is_empty());
}

#[test]
fn so_is_a_generation_workers() {
    let fleet = fleet::start(1, 0, |_| ());
    for case in TOLD {
        let worker = answering(case.0, "", refusal_body(case.0));
        assert_told(&before_generation(&fleet, worker.address), case);
        assert_told(&generation_first(&fleet, worker.address), case);
    }
}

#[test]
fn a_refusal_without_a_body_is_told_in_words() {
    let fleet = fleet::start(1, 0, |_| ());
    let worker = answering("503 Service Unavailable", "retry-after: 7\r\n", "");
    let kindred = before_generation(&fleet, worker.address);
    let answer = ask(&kindred);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("7"));
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("status 503"), "{message}");
    kindred.assert_idle();
}

/// A worker that answers after the head of a request, reads no more of it, and hangs up.
fn hasty(status: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            raw::read_until(&mut stream, "\r\n\r\n");
            let body = r#"{"message":"because"}"#;
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_refusal_that_comes_before_the_request_was_read_is_told() {
    let fleet = fleet::start(1, 1, |_| ());
    let hasty = hasty("413 Content Too Large");
    let mut body = chat("hello");
    body["user"] = "u".repeat(5_000_000).into();
    let body = body.to_string();
    for kindred in [
        before_context(hasty, &fleet),
        before_generation(&fleet, hasty),
        generation_first(&fleet, hasty),
    ] {
        let answer = raw::post(kindred.edge(), CHAT, &[], &body);
        assert_eq!(answer.status, 413, "{}", answer.text());
        assert_eq!(answer.json()["error"]["message"], "because");
        kindred.assert_idle();
    }
}

#[test]
fn the_client_is_told_when_to_come_again_to_either_leg() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let body = r#"{"message":"because"}"#;
        let worker = answering(status, "retry-after: 7\r\n", body);
        let fleet = fleet::start(1, 1, |_| ());
        for kindred in [
            before_context(worker.address, &fleet),
            before_generation(&fleet, worker.address),
        ] {
            let answer = ask(&kindred);
            assert_eq!(answer.status.to_string(), status[..3]);
            assert_eq!(answer.header("retry-after"), Some("7"), "{status}");
        }
    }
}

#[test]
fn informational_heads_are_not_the_answer() {
    let fleet = fleet::start(1, 0, |_| ());
    let worker = Scripted::start(|_| {
        let mut answer = b"HTTP/1.1 103 Early Hints\r\nx-worker: gen-1\r\n\r\n".to_vec();
        answer.extend(scripted::json(r#"{"id":"x"}"#).concat());
        vec![answer]
    });
    let kindred = before_generation(&fleet, worker.address);
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(&request).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (_, last) = text.rsplit_once("HTTP/1.1 ").unwrap();
    assert!(last.starts_with("200 "), "{text}");
    assert!(!text.contains("gen-1"), "{text}");
    let before_last = text.strip_suffix(last).unwrap();
    assert!(!before_last.contains("chunked"), "{text}");
    let counted = ["fleet=\"generation\""];
    kindred.assert_metric("kindred_leg_first_byte_seconds_count", &counted, 1.0);
    kindred.assert_idle();
}

#[test]
fn both_legs_first_bytes_are_measured() {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(""));
    assert_eq!(ask(&kindred).status, 200);
    for leg in ["context", "generation"] {
        let label = format!("fleet=\"{leg}\"");
        kindred.assert_metric("kindred_leg_first_byte_seconds_count", &[&label], 1.0);
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    let fleet = fleet::start(1, 1, |_| ());
    let refusing = answering("400 Bad Request", "", r#"{"message":"because"}"#);
    let mut body = chat("hello");
    for (kindred, stream, status) in [
        (Kindred::serve(&fleet.yaml("")), false, 200),
        (Kindred::serve(&fleet.yaml("")), true, 200),
        (
            Kindred::serve(&fleet.yaml("schedule_style: generation_first")),
            true,
            200,
        ),
        (before_generation(&fleet, refusing.address), false, 400),
    ] {
        body["stream"] = stream.into();
        let body = body.to_string();
        let request = format!(
            "POST {CHAT} HTTP/1.0\r\nhost: test\r\nconnection: keep-alive\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = raw::send(kindred.edge(), request.as_bytes());
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(answer.header("transfer-encoding"), None);
        let body = answer.text();
        if stream {
            assert!(body.starts_with("data: {"), "{body}");
            assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
        } else {
            assert_eq!(
                answer.header("content-length"),
                Some(&*body.len().to_string())
            );
            assert!(answer.json().is_object());
        }
        kindred.assert_idle();
    }
}

#[test]
fn a_worker_that_names_an_instance_names_its_alias() {
    let port = "8001";
    let message = format!(r#"{{"message":"cannot reach gen-1:{port}"}}"#);
    let worker = answering("400 Bad Request", "", &message);
    let yaml = format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
         context_servers: {{num_instances: 1, urls: ['{}']}}\n\
         generation_servers: {{num_instances: 1, urls: ['gen-1:{port}']}}\n",
        worker.address
    );
    let answer = ask(&Kindred::serve(&yaml));
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = answer.json()["error"].clone();
    assert_eq!(error["message"], "cannot reach generation-0");
}

#[test]
fn a_stream_with_a_length_that_breaks_off_ends_in_an_error_event() {
    let fleet = fleet::start(1, 0, |_| ());
    let worker = Scripted::start(|_| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 15\r\n\r\n";
        vec![format!("{head}data: {{\"a\":1}}\n\n").into_bytes()]
    });
    let kindred = before_generation(&fleet, worker.address);
    let mut body = chat("hello");
    body["stream"] = true.into();
    let answer = raw::post(kindred.edge(), CHAT, &[], &body.to_string());
    assert_eq!(answer.header("content-length"), None);
    let text = answer.text();
    let (whole, error) = text.split_once("\n\n").unwrap();
    assert_eq!(whole, "data: {\"a\":1}");
    assert!(error.starts_with("data: {\"error\":{"), "{text}");
    assert!(error.ends_with("\n\n"), "{text}");
}

#[test]
fn a_worker_of_http_1_0_is_told_in_http_1_1() {
    let fleet = fleet::start(1, 0, |_| ());
    let worker = Scripted::start(|_| {
        let head = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n";
        vec![format!("{head}{{}}").into_bytes()]
    });
    let kindred = before_generation(&fleet, worker.address);
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(&request).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    assert!(text.ends_with("\r\n\r\n{}"), "{text}");
}
