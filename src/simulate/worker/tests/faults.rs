//! Misbehaviour on demand.

use super::*;

async fn with_fault(worker: &Running, fault: &str, stream: bool) -> reqwest::Result<String> {
    let request = worker
        .client
        .post(worker.url("/v1/chat/completions"))
        .header("x-simulate", fault)
        .json(&with(question("hi"), json!({"stream": stream})));
    request.send().await?.text().await
}

#[tokio::test]
async fn a_planned_fault_hits_the_next_requests_only() {
    let worker = aggregated().await;
    let order = json!({"next": 2, "fault": "status=503"});
    let (_, planned) = worker.post("/simulate/fault", &order).await;
    assert_eq!(planned["planned_faults"], 2);
    for expected in [503, 503, 200] {
        let (status, _) = worker.post("/v1/chat/completions", &question("hi")).await;
        assert_eq!(status, expected);
    }
    let (status, body) = worker
        .post("/simulate/fault", &json!({"fault": "explode"}))
        .await;
    assert_eq!(status, 400);
    assert!(
        body["error"]
            .as_str()
            .is_some_and(|text| text.contains("die-after"))
    );
}

#[tokio::test]
async fn a_reset_gives_no_answer_and_a_death_half_of_one() {
    let worker = aggregated().await;
    assert!(with_fault(&worker, "reset", false).await.is_err());
    assert_eq!(worker.last().status, None);
    assert!(with_fault(&worker, "die-after=1", false).await.is_err());
    assert_eq!(worker.last().status, Some(200));
    assert!(!worker.last().finished && !worker.last().client_left);
}

#[tokio::test]
async fn a_stream_dies_after_so_many_events() {
    let worker = aggregated().await;
    let request = worker
        .client
        .post(worker.url("/v1/chat/completions"))
        .header("x-simulate", "die-after=3")
        .json(&with(question("hi"), json!({"stream": true})));
    let mut answer = request.send().await.expect("a head");
    let mut seen = Vec::new();
    let end = loop {
        match answer.chunk().await {
            Ok(Some(part)) => seen.extend_from_slice(&part),
            end => break end,
        }
    };
    assert!(end.is_err(), "no end of the body was written");
    assert_eq!(String::from_utf8_lossy(&seen).matches("data: ").count(), 3);
    let engine = worker.worker.engine();
    assert_eq!(engine.snapshot().active, [0, 0]);
}

#[tokio::test]
async fn broken_json_and_final_answers() {
    let worker = aggregated().await;
    let text = with_fault(&worker, "invalid-json", false)
        .await
        .expect("an answer");
    assert!(serde_json::from_str::<Value>(&text).is_err());
    let text = with_fault(&worker, "invalid-json", true)
        .await
        .expect("events");
    let first = text
        .split("\n\n")
        .next()
        .and_then(|event| event.strip_prefix("data: "));
    assert!(serde_json::from_str::<Value>(first.expect("an event")).is_err());
    assert!(text.ends_with("data: [DONE]\n\n"));
    let text = with_fault(&worker, "final, delay=30ms", false)
        .await
        .expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}

/// What came of a stream until its end, and whether that was a whole one.
async fn stream_of(worker: &Running, fault: &str) -> (Vec<u8>, bool) {
    let request = worker
        .client
        .post(worker.url("/v1/chat/completions"))
        .header("x-simulate", fault)
        .json(&with(
            question("hi"),
            json!({"stream": true, "max_tokens": 4}),
        ));
    let mut answer = request.send().await.expect("a head");
    let mut seen = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(part)) => seen.extend_from_slice(&part),
            Ok(None) => return (seen, true),
            Err(_) => return (seen, false),
        }
    }
}

#[tokio::test]
async fn fields_are_left_out_or_null_wherever_they_stand() {
    let worker = aggregated().await;
    let fault = "without=usage, null=finish_reason, choices=2";
    let text = with_fault(&worker, fault, false).await.expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert!(answer.get("usage").is_none());
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 2);
    assert!(
        choices
            .iter()
            .all(|choice| choice["finish_reason"].is_null())
    );
    assert!(choices[0]["message"]["content"].is_string());
}

#[tokio::test]
async fn a_stream_dies_within_an_event_and_before_its_end() {
    let worker = aggregated().await;
    let (seen, whole) = stream_of(&worker, "die-in=2").await;
    let text = String::from_utf8(seen).expect("text");
    assert!(!whole && !text.ends_with('\n'), "{text}");
    assert_eq!(text.matches("data: ").count(), 2);
    let (seen, whole) = stream_of(&worker, "die-before-done").await;
    let text = String::from_utf8(seen).expect("text");
    assert!(!whole && text.ends_with("\n\n"), "{text}");
    assert!(text.contains("\"finish_reason\":\"length\"") && !text.contains("[DONE]"));
}

#[tokio::test]
async fn a_stream_tells_of_an_error_and_ends() {
    let worker = aggregated().await;
    let (seen, _) = stream_of(&worker, "error-after=1").await;
    let text = String::from_utf8(seen).expect("text");
    let events: Vec<_> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3, "{text}");
    assert!(events[1].starts_with("data: {\"error\":"));
    assert_eq!(events[2], "data: [DONE]");
}

#[tokio::test]
async fn streams_come_compressed_with_other_line_ends_and_byte_by_byte() {
    let worker = aggregated().await;
    let (seen, _) = stream_of(&worker, "gzip").await;
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(&seen[..]);
    std::io::Read::read_to_string(&mut decoder, &mut text).expect("gzip");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let (seen, whole) = stream_of(&worker, "line-ends=crlf, line-ends=bytes").await;
    assert!(whole);
    assert!(seen.ends_with(b"data: [DONE]\r\n\r\n"));
    let (seen, whole) = stream_of(&worker, "event=300KiB").await;
    let first = seen.split(|byte| *byte == b'\n').next().expect("a line");
    assert!(whole && first.len() > 300 * 1024);
    let text = with_fault(&worker, "gzip", false).await;
    assert!(text.is_err() || !text.expect("bytes").starts_with('{'));
}

#[tokio::test]
async fn what_stalls_or_pauses_waits_for_the_client_to_leave() {
    let worker = aggregated().await;
    for (fault, stream) in [
        ("stall-after=2", true),
        ("stall-after=0", false),
        ("pause=1h", false),
    ] {
        let request = worker
            .client
            .post(worker.url("/v1/chat/completions"))
            .header("x-simulate", fault)
            .json(&with(question("hi"), json!({"stream": stream})));
        let mut answer = request.send().await.expect("a head");
        if stream {
            let mut seen = Vec::new();
            while seen.windows(2).filter(|end| end == b"\n\n").count() < 2 {
                seen.extend_from_slice(&answer.chunk().await.expect("a part").expect("more"));
            }
        }
        assert!(!worker.last().finished);
        drop(answer);
        while !worker.last().client_left {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn manners_hold_until_they_are_changed() {
    let worker = aggregated().await;
    let health = || async { worker.get("/health").await.0 };
    assert_eq!(health().await, 200);
    let (status, _) = worker
        .post("/simulate/manners", &json!({"health": "unwell"}))
        .await;
    assert_eq!(status, 200);
    assert_eq!((health().await, health().await), (503, 503));
    let (status, _) = worker
        .post("/simulate/manners", &json!({"health": "odd"}))
        .await;
    assert_eq!(status, 400);
    worker.post("/simulate/manners", &json!({})).await;
    assert_eq!(health().await, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let worker = aggregated().await;
    let order = json!({"idle": "20ms"});
    worker.post("/simulate/manners", &order).await;
    let address = worker.url("").replace("http://", "");
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    let request = b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n";
    stream.write_all(request).await.expect("written");
    // Its end comes by itself.
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.expect("an end");
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
}
