//! Server-sent events and clients that leave.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;

fn parse(events: &[String]) -> Vec<Value> {
    events
        .iter()
        .filter(|event| *event != "[DONE]")
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect()
}

#[tokio::test]
async fn a_chat_stream_says_what_the_whole_answer_says() {
    let worker = aggregated().await;
    let whole = worker.chat(&question("hi")).await;
    let asked = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = worker
        .events("/v1/chat/completions", &with(question("hi"), asked))
        .await;
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let chunks = parse(&events);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(content, whole["choices"][0]["message"]["content"]);
    assert_eq!(chunks.len(), 1 + 16 + 1 + 1);
    assert_eq!(chunks[17]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[18]["choices"], json!([]));
    assert_eq!(chunks[18]["usage"], whole["usage"]);
}

#[tokio::test]
async fn a_completions_stream_with_two_choices() {
    let worker = aggregated().await;
    let body = json!({"model": "m", "prompt": "hi", "max_tokens": 2, "n": 2, "stream": true});
    let chunks = parse(&worker.events("/v1/completions", &body).await);
    assert_eq!(chunks.len(), 6);
    assert_eq!(chunks[1]["choices"][0]["index"], 1);
    assert_eq!(chunks[5]["choices"][0]["finish_reason"], "length");
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn a_streamed_tool_call_comes_in_one_delta() {
    let worker = aggregated().await;
    let asked = json!({
        "stream": true,
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    });
    let events = worker
        .events("/v1/chat/completions", &with(question("hi"), asked))
        .await;
    let chunks = parse(&events);
    let call = &chunks[1]["choices"][0]["delta"]["tool_calls"][0];
    assert_eq!(
        (&call["index"], &call["function"]["name"]),
        (&json!(0), &json!("look"))
    );
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "tool_calls");
}

/// Sends a request by hand and returns the connection.
async fn ask_by_hand(worker: &Running, body: &Value) -> TcpStream {
    let mut connection = TcpStream::connect(worker.address)
        .await
        .expect("a connection");
    let body = body.to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection
        .write_all(request.as_bytes())
        .await
        .expect("sent");
    connection
}

async fn slow(prefill: Duration, decode: Duration) -> Running {
    let mut config = config(Role::Aggregated);
    config.engine.prefill_per_token = prefill;
    config.engine.decode_interval = decode;
    start(config).await
}

async fn leaves_and_is_noticed(worker: &Running, connection: TcpStream) {
    let snapshot = worker.worker.engine().snapshot();
    assert_eq!(snapshot.active, [1, 0]);
    drop(connection);
    let engine = worker.worker.engine();
    soon("cancelled", || engine.snapshot().cancelled == 1).await;
    assert_eq!(engine.snapshot().active, [0, 0]);
    let recorder = &worker.worker.config.recorder;
    soon("noted", || {
        recorder.since(0).iter().all(|seen| seen.client_left)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_is_noticed() {
    for stream in [false, true] {
        let worker = slow(Duration::from_secs(60), Duration::ZERO).await;
        let body = with(question("hi"), json!({"stream": stream}));
        let connection = ask_by_hand(&worker, &body).await;
        let engine = worker.worker.engine();
        soon("running", || engine.snapshot().active == [1, 0]).await;
        leaves_and_is_noticed(&worker, connection).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_is_noticed() {
    let worker = slow(Duration::ZERO, Duration::from_secs(60)).await;
    let mut connection = ask_by_hand(&worker, &with(question("hi"), json!({"stream": true}))).await;
    let mut head = [0; 512];
    let read = connection.read(&mut head).await.expect("a head");
    assert!(head[..read].starts_with(b"HTTP/1.1 200 OK\r\n"));
    leaves_and_is_noticed(&worker, connection).await;
}

#[tokio::test]
async fn an_http2_client_that_leaves_is_noticed() {
    let worker = slow(Duration::from_secs(60), Duration::ZERO).await;
    let http2 = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let request = http2
        .post(worker.url("/v1/chat/completions"))
        .json(&question("hi"));
    let asking = tokio::spawn(request.send());
    let engine = worker.worker.engine();
    soon("running", || engine.snapshot().active == [1, 0]).await;
    asking.abort();
    soon("cancelled", || engine.snapshot().cancelled == 1).await;
}

#[tokio::test]
async fn tokens_are_written_as_they_are_made() {
    let worker = slow(Duration::ZERO, Duration::from_millis(20)).await;
    let begin = Instant::now();
    let body = with(question("hi"), json!({"stream": true}));
    let mut connection = ask_by_hand(&worker, &body).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("content\":\" ") {
        let mut part = [0; 256];
        let read = connection.read(&mut part).await.expect("events");
        assert_ne!(read, 0);
        seen.extend_from_slice(&part[..read]);
    }
    assert!(
        begin.elapsed() < Duration::from_millis(250),
        "the second of 16 tokens"
    );
}

#[tokio::test]
async fn one_connection_serves_request_after_request() {
    let worker = aggregated().await;
    let mut connection = ask_by_hand(&worker, &question("one")).await;
    for _ in 0..2 {
        let mut seen = Vec::new();
        while !seen.ends_with(b"null}") {
            let mut part = [0; 4096];
            let read = connection.read(&mut part).await.expect("an answer");
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&part[..read]);
        }
        let body = question("two").to_string();
        let again = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(again.as_bytes()).await.expect("sent");
    }
    soon("three answers", || {
        worker.worker.engine().snapshot().completed == 3
    })
    .await;
}
