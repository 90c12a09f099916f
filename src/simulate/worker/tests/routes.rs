//! Whole requests and the operational routes.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::routing::kv_hash::v1_block_keys;

fn long_text() -> String {
    "alder amber birch ".repeat(100)
}

#[tokio::test]
async fn an_answer_has_the_openai_shape_and_follows_from_the_prompt() {
    let worker = aggregated().await;
    let first = worker.chat(&question("who are you")).await;
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["message"]["role"], "assistant");
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    assert_eq!(first["usage"]["completion_tokens"], 16);
    assert_eq!(first["usage"]["prompt_tokens"], 6);
    assert_eq!(first["prompt_token_ids"], Value::Null);
    let again = worker.chat(&question("who are you")).await;
    assert_eq!(first["choices"], again["choices"]);
    let other = worker.chat(&question("who is she")).await;
    assert_ne!(first["choices"], other["choices"]);
}

#[tokio::test]
async fn lengths_and_choices_are_honoured() {
    let worker = aggregated().await;
    let two = with(question("hi"), json!({"max_tokens": 3, "n": 2}));
    let answer = worker.chat(&two).await;
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_ne!(
        answer["choices"][0]["message"],
        answer["choices"][1]["message"]
    );
    let on = with(
        question("hi"),
        json!({"max_tokens": 40, "ignore_eos": true}),
    );
    assert_eq!(worker.chat(&on).await["usage"]["completion_tokens"], 40);
    let last = worker.chat(&question("final: yes")).await;
    assert_eq!(last["usage"]["completion_tokens"], 1);
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_demanded_tool_is_called() {
    let worker = aggregated().await;
    let tools = json!({
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
        "tool_choice": "required",
    });
    let answer = worker.chat(&with(question("hi"), tools)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["name"],
        "look"
    );
}

#[tokio::test]
async fn the_told_rank_is_used_and_cached_tokens_are_its_own() {
    let worker = aggregated().await;
    let ask = async |rank: &str| {
        let request = worker
            .client
            .post(worker.url("/v1/completions"))
            .header("x-data-parallel-rank", rank)
            .json(&json!({"model": "m", "prompt": long_text()}));
        let answer = request.send().await.expect("an answer");
        let shown = answer.headers().get("x-simulated-rank").cloned();
        let body: Value = answer.json().await.expect("JSON");
        let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        (
            shown.map(|rank| rank.to_str().expect("text").to_owned()),
            cached,
        )
    };
    let one = Some("1".to_owned());
    assert_eq!(ask("1").await, (one.clone(), json!(0)));
    assert_eq!(ask("1").await, (one, json!(288)));
    assert_eq!(ask("0").await, (Some("0".to_owned()), json!(0)));
    assert_eq!(ask("2").await.0, None, "there are two ranks");
    assert_eq!(ask("first").await.0, None);
    assert_eq!(worker.last().status, Some(400));
}

#[tokio::test]
async fn a_refusal_has_upstreams_shape() {
    let worker = aggregated().await;
    let (status, body) = worker
        .post(
            "/v1/chat/completions",
            &with(question("hi"), json!({"colour": 1})),
        )
        .await;
    assert_eq!(status, 400);
    assert!(
        body["error"]
            .as_str()
            .is_some_and(|text| text.contains("colour"))
    );
    let params = json!({"disaggregated_params": {"request_type": "context_only"}});
    let (status, body) = worker
        .post("/v1/chat/completions", &with(question("hi"), params))
        .await;
    assert_eq!((status, &body["type"]), (400, &json!("BadRequestError")));
    assert_eq!(body["code"], 400);
    let raw = worker
        .client
        .post(worker.url("/v1/completions"))
        .body("{\"model\":");
    assert_eq!(answer(raw).await.0, 400);
    assert_eq!(worker.get("/v1/completions").await.0, 405);
    assert_eq!(worker.get("/nowhere").await.0, 404);
    assert_eq!(worker.worker.engine().snapshot().completed, 0);
}

#[tokio::test]
async fn a_worker_with_a_key_checks_for_itself() {
    let mut config = config(Role::Aggregated);
    config.verify = Some(Arc::new(|presented| {
        let signed = presented.headers.contains_key("x-signed");
        assert!(presented.body.starts_with(b"{\"model\":\"m\""));
        signed.then_some(()).ok_or_else(|| "not signed".to_owned())
    }));
    let worker = start(config).await;
    let (status, body) = worker.post("/v1/chat/completions", &question("hi")).await;
    assert_eq!((status, &body["message"]), (400, &json!("not signed")));
}

#[tokio::test]
async fn what_came_can_be_looked_at() {
    let worker = aggregated().await;
    let body = question(&long_text().repeat(60));
    let request = worker
        .client
        .post(worker.url("/v1/chat/completions?q=1"))
        .header(
            "X-Mixed-Case",
            http::HeaderValue::from_bytes(b"caf\xc3\xa9").expect("bytes"),
        )
        .json(&body);
    assert_eq!(answer(request).await.0, 200);
    let (_, seen) = worker.get("/simulate/requests?since=0").await;
    let seen = &seen["requests"][0];
    assert_eq!(seen["arrival"], 1);
    assert_eq!(seen["path"], "/v1/chat/completions?q=1");
    assert_eq!(seen["body_length"], body.to_string().len());
    assert!(seen["body_length"].as_u64() > Some(64 * 1024));
    assert_eq!(seen["body_sha256"].as_str().map(str::len), Some(64));
    assert_eq!(
        (&seen["finished"], &seen["rank"]),
        (&json!(true), &json!(0))
    );
    let headers = seen["headers"].as_array().expect("pairs");
    assert!(
        headers.contains(&json!(["x-mixed-case", "caf\u{c3}\u{a9}"])),
        "{headers:?}"
    );
    assert_eq!(
        worker.get("/simulate/requests?since=1").await.1["requests"],
        json!([])
    );
    let cleared = answer(worker.client.delete(worker.url("/simulate/requests"))).await;
    assert_eq!(cleared.1["last"], 1);
    assert!(worker.worker.config.recorder.since(0).is_empty());
}

#[tokio::test]
async fn operational_routes_answer_as_upstreams() {
    let worker = aggregated().await;
    assert_eq!(worker.get("/health").await, (200, Value::Null));
    assert_eq!(worker.get("/version").await.1["version"], "1.4.0-simulated");
    assert_eq!(
        worker.get("/v1/models").await.1["data"][0]["id"],
        "simulated"
    );
    let info = worker.get("/server_info").await.1;
    assert_eq!(info["tokens_per_block"], 32);
    assert_eq!(info["kv_cache_hash_algo"], "v1_block_key");
    worker
        .post(
            "/v1/completions",
            &json!({"model": "m", "prompt": long_text()}),
        )
        .await;
    let (_, rows) = worker.get("/metrics").await;
    assert_eq!(rows[1]["attentionDpRank"], 1);
    assert_eq!(worker.get("/metrics").await.1, json!([]));
    let (_, events) = worker.post("/kv_cache_events", &Value::Null).await;
    assert_eq!(events[0]["data"]["type"], "stored");
    let asked = json!({"prompt": long_text()});
    let (_, told) = worker.post("/_internal/tokenize", &asked).await;
    let tokens: Vec<u32> = serde_json::from_value(told["tokens"].clone()).unwrap();
    assert_eq!(told["count"], tokens.len());
    let hashes = v1_block_keys(&tokens, 32, None);
    assert_eq!(events[0]["data"]["blocks"][0]["block_hash"], hashes[0]);
    assert_eq!(worker.post("/_internal/tokenize", &json!({})).await.0, 400);
    assert_eq!(
        worker.post("/kv_cache_events", &Value::Null).await.1,
        json!([])
    );
    let (_, clock) = worker.get("/steady_clock_offset").await;
    assert!(clock["transmit_ts"].as_f64() > clock["receive_ts"].as_f64());
    assert_eq!(
        worker
            .post("/steady_clock_offset", &json!({"offset": 0.5}))
            .await
            .0,
        200
    );
    assert_eq!(worker.post("/steady_clock_offset", &json!({})).await.0, 400);
    let state = worker.get("/simulate/state").await.1;
    assert_eq!(
        (&state["active"], &state["completed"]),
        (&json!([0, 0]), &json!(1))
    );
    assert_eq!(state["role"], "AGGREGATED");
}

#[tokio::test]
async fn bodies_of_any_framing_and_http2_are_read() {
    let worker = aggregated().await;
    let http2 = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("a client");
    let body = json!({"model": "m", "prompt": long_text().repeat(400)}).to_string();
    for client in [&worker.client, &http2] {
        let (status, _) = answer(
            client
                .post(worker.url("/v1/completions"))
                .body(body.clone()),
        )
        .await;
        assert_eq!(status, 200);
        assert_eq!(worker.last().body_length, body.len());
    }
}

#[tokio::test]
async fn a_chunked_body_is_read_after_100_continue() {
    let worker = aggregated().await;
    let mut connection = TcpStream::connect(worker.address)
        .await
        .expect("a connection");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\
                Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
    connection.write_all(head.as_bytes()).await.expect("sent");
    let mut seen = [0; 256];
    let read = connection.read(&mut seen).await.expect("an answer");
    assert!(seen[..read].starts_with(b"HTTP/1.1 100"));
    let chunks = "10\r\n{\"model\":\"m\",\"pr\r\nc\r\nompt\":\"hey\"}\r\n0\r\n\r\n";
    connection.write_all(chunks.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    connection
        .read_to_string(&mut answer)
        .await
        .expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(worker.last().body, "{\"model\":\"m\",\"prompt\":\"hey\"}");
}

#[test]
fn a_server_takes_the_service() {
    fn takes(_: &impl pingora::services::ServiceWithDependents) {}
    let mut service = service(config(Role::Context));
    service.add_tcp("127.0.0.1:0");
    takes(&service);
}

#[tokio::test]
async fn a_prompt_of_forty_thousand_tokens_is_no_trouble() {
    let worker = start(config(Role::Context)).await;
    let params = json!({
        "prompt": (0..40_000).collect::<Vec<u32>>(),
        "disaggregated_params": {"request_type": "context_only", "disagg_request_id": 1_u64 << 40},
    });
    let start = Instant::now();
    let (status, answer) = worker
        .post("/v1/completions", &with(json!({"model": "m"}), params))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        answer["prompt_token_ids"].as_array().map(Vec::len),
        Some(40_000)
    );
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
