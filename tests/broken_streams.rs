//! An answer that does not come to its end says so: a stream with an error event, JSON with a status.

mod support;

use support::{
    Kindred, PATIENCE,
    asking::{CHAT, ask, assert_counted, before, begin, body},
    fleet,
    raw::{self, Answer},
    scripted::{self, Fed, Scripted},
    sse,
};

/// What of a stream may have come when it breaks off.
const CUTS: [&[u8]; 15] = [
    b"",
    b"d",
    b"data: {\"a\"",
    b"data: {\"a\":\"\xc3",
    b"data: {\"a\":1}",
    b"data: {\"a\":1}\n",
    b"data: {\"a\":1}\r",
    b"data: {\"a\":1}\r\n",
    b"data: {\"a\":1}\r\n\r\n",
    b"data: {\"a\":1}\n\n",
    b"data:{\"a\":1}\n\n: comment",
    b"data:{\"a\":1}\n\n: comment\n\n",
    b"data: {\"a\":1}\n\ndata: [DO",
    b"data: {\"finish_reason\":\"stop\"}\n\nevent: x\nid: 7\n",
    b"data: {\"usage\":{\"total_tokens\":7}}\n\n",
];

/// How a worker's answer ends early: a chunked body without its last chunk, with it, one that is
/// shorter than its length, and one that only the end of the connection ends.
fn endings(cut: &'static [u8]) -> [(&'static str, Vec<Vec<u8>>); 4] {
    let parts: Vec<&[u8]> = if cut.is_empty() { vec![] } else { vec![cut] };
    let head = |fields: &str| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{fields}\r\n").into_bytes()
    };
    let length = format!("content-length: {}\r\n", cut.len() + 9);
    [
        ("chunks without end", scripted::broken_events(&parts)),
        ("chunks", scripted::events(&parts)),
        ("a length", vec![head(&length), cut.to_vec()]),
        (
            "the connection",
            vec![head("connection: close\r\n"), cut.to_vec()],
        ),
    ]
}

/// Asks for a stream; the answer must be framed as a whole one.
fn ask_raw(kindred: &Kindred) -> Answer {
    let mut client = begin(kindred, true);
    let bytes = raw::read_all(&mut client);
    let shown = String::from_utf8_lossy(&bytes);
    assert!(bytes.ends_with(b"\r\n0\r\n\r\n"), "{shown}");
    raw::parse(&bytes).unwrap()
}

#[test]
fn a_stream_that_breaks_off_anywhere_ends_in_an_error_event() {
    let all: Vec<_> = CUTS
        .into_iter()
        .flat_map(|cut| endings(cut).map(|(name, answer)| (cut, name, answer)))
        .collect();
    let answers = all.iter().map(|(_, _, answer)| answer.clone());
    let worker = Scripted::one_after_the_other(answers.collect());
    let (_fleet, kindred) = before(worker.address, "");
    for (cut, name, _) in &all {
        let answer = ask_raw(&kindred);
        let what = format!("{:?}, {name}", String::from_utf8_lossy(cut));
        assert_eq!(answer.status, 200, "{what}");
        assert!(answer.body.starts_with(cut), "{what}: {}", answer.text());
        let error = sse::last_error(&answer.body);
        assert_eq!(error["code"], "stream_broken", "{what}");
    }
    assert_counted(&kindred, "stream_broken", all.len());
}

#[test]
fn a_stream_that_has_said_done_is_whole_however_its_connection_ends() {
    let whole = ["data: {}\n\ndata: [DONE]\n\n", "data:[DONE]\r\n\r\n"];
    let all: Vec<_> = whole
        .into_iter()
        .flat_map(|text| endings(text.as_bytes()).map(|(name, answer)| (text, name, answer)))
        .collect();
    let answers = all.iter().map(|(_, _, answer)| answer.clone());
    let worker = Scripted::one_after_the_other(answers.collect());
    let (_fleet, kindred) = before(worker.address, "");
    for (text, name, _) in &all {
        assert_eq!(ask_raw(&kindred).text(), *text, "{name}");
    }
    assert_counted(&kindred, "ok", all.len());
}

#[test]
fn case_h15_a_stream_that_falls_silent_ends_in_an_error_event() {
    for (cut, event) in [(&b"data: {}\n\n"[..], 1), (b"data: {}\n\ndata: {", 2)] {
        let worker = Fed::start();
        let (_fleet, kindred) = before(worker.address, "timeouts: {silence: 300ms}");
        worker.begin();
        worker.chunk(cut);
        let answer = ask(&kindred, true);
        assert_eq!(answer.status, 200);
        assert_eq!(sse::read(&answer.body).events.len(), event + 1);
        assert_eq!(sse::last_error(&answer.body)["code"], "upstream_timeout");
        assert_counted(&kindred, "timeout", 1);
        assert!(worker.is_left(PATIENCE), "the worker is left");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_over_http2_ends_in_an_error_event() {
    let worker = Scripted::start(|_| scripted::broken_events(&[b"data: {}\n\nda"]));
    let (_fleet, kindred) = before(worker.address, "");
    let client = reqwest::Client::builder().http2_prior_knowledge().build();
    let request = client.unwrap().post(kindred.url(CHAT));
    let answer = request.body(body(true)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let bytes = answer.bytes().await.expect("a stream that ends well");
    assert_eq!(sse::last_error(&bytes)["code"], "stream_broken");
    assert_counted(&kindred, "stream_broken", 1);
}

#[test]
fn a_json_answer_that_breaks_off_is_a_502() {
    let halves = [
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{\"choices\":",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nb\r\n{\"choices\":\r\n",
    ];
    let fleet = fleet::start(1, 0, |_| {});
    for half in halves {
        let worker = Scripted::start(move |_| vec![half.as_bytes().to_vec()]);
        for more in ["", "schedule_style: generation_first"] {
            let yaml = fleet::yaml(&[fleet.workers[0].address], &[worker.address], more);
            let kindred = Kindred::serve(&yaml);
            let answer = ask(&kindred, false);
            assert_eq!(answer.status, 502, "{}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "worker_unreachable");
            assert_counted(&kindred, "unreachable", 1);
        }
    }
}

#[test]
fn a_json_answer_that_is_too_large_is_a_502() {
    let worker =
        Scripted::start(|_| scripted::json(&format!("{{\"a\":\"{}\"}}", "x".repeat(4096))));
    let (_fleet, kindred) = before(worker.address, "limits: {max_answer: 2KiB}");
    let answer = ask(&kindred, false);
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(
        answer.text().contains("limits.max_answer"),
        "{}",
        answer.text()
    );
    assert_counted(&kindred, "upstream_error", 1);
}
