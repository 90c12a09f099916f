//! What of a worker's own words reaches a client: no address, no opaque state, no token ids.

mod support;

use std::net::SocketAddr;

use serde_json::{Value, json};
use support::{
    Kindred, raw,
    scripted::{self, Scripted},
};

const CHAT: &str = "/v1/chat/completions";

fn serve(worker: SocketAddr) -> Kindred {
    Kindred::serve(&format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\nmax_retries: 0\n\
         aggregated_servers: {{urls: ['{worker}']}}\n"
    ))
}

/// A message with everything in it that is nobody's business.
fn words(worker: &str) -> String {
    let ids: Vec<String> = (1..=40).map(|id| id.to_string()).collect();
    format!(
        "rank 3 of {worker} lost 10.9.8.7:5000 (http://gen-7.pool.svc:8001/v1), \
         encoded_opaque_state=QUJDRA==, prompt_token_ids: [{}]; retry",
        ids.join(", ")
    )
}

const TOLD: &str =
    "rank 3 of aggregated-0 lost (address) (http://(address)/v1), (...), (...); retry";

#[test]
fn a_refusal_is_told_without_what_is_the_fleets() {
    let worker = Scripted::start(|seen| {
        let message = words(&seen.header("host").unwrap());
        let body = json!({"object": "error", "message": message, "code": 422}).to_string();
        let head = format!(
            "HTTP/1.1 422 Unprocessable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        vec![head.into_bytes(), body.into_bytes()]
    });
    let kindred = serve(worker.address);
    let answer = raw::post(kindred.edge(), CHAT, &[], &support::chat("hi").to_string());
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["message"], TOLD);
    kindred.assert_idle();
}

#[test]
fn an_error_within_a_stream_is_told_so_too_however_its_line_goes_on() {
    let worker = Scripted::start(|seen| {
        let message = words(&seen.header("host").unwrap());
        let error = json!({"error": {"message": message, "type": "server_error"}});
        let event = format!("data: {error}\n\n");
        let (one, two) = event.split_at(60);
        scripted::events(&[
            b"data: {\"choices\":[]}\n\n",
            one.as_bytes(),
            two.as_bytes(),
            b"data: [DONE]\n\n",
        ])
    });
    let kindred = serve(worker.address);
    let mut body = support::chat("hi");
    body["stream"] = true.into();
    let text = raw::post(kindred.edge(), CHAT, &[], &body.to_string()).text();
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3, "{text}");
    assert_eq!(events[0], "data: {\"choices\":[]}");
    assert_eq!(events[2], "data: [DONE]");
    let error = events[1].strip_prefix("data: ").unwrap();
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["message"], TOLD);
    assert_eq!(error["error"]["type"], "server_error");
    kindred.assert_metric(
        "kindred_requests_total",
        &["outcome=\"upstream_error\""],
        1.0,
    );
    kindred.assert_idle();
}
