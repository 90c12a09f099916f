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
