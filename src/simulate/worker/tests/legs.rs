//! The two legs of a request, as an edge sends them.

use super::*;

const ID: u64 = (1 << 40) + 7;

fn context_body(changes: Value) -> Value {
    let params = json!({"request_type": "context_only", "disagg_request_id": ID,
                        "schedule_style": 0});
    let body = with(
        question("tell me of trees"),
        json!({"disaggregated_params": params}),
    );
    with(body, changes)
}

/// What an edge makes of a context answer (specification section 4.5).
fn generation_body(context: &Value, changes: Value) -> Value {
    let params = with(
        context["choices"][0]["disaggregated_params"].clone(),
        json!({"request_type": "generation_only", "ctx_usage": context["usage"]}),
    );
    let ids = json!({
        "disaggregated_params": params,
        "prompt_token_ids": context["prompt_token_ids"],
    });
    with(with(question("tell me of trees"), ids), changes)
}

#[tokio::test]
async fn both_legs_say_what_one_worker_would_say() {
    let (context, generation) = pair().await;
    let whole = generation.chat(&question("tell me of trees")).await;
    let first = context.chat(&context_body(json!({}))).await;
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let told = &choice["disaggregated_params"];
    assert_eq!(
        (&told["disagg_request_id"], &told["ctx_request_id"]),
        (&json!(ID), &json!(ID))
    );
    assert_eq!(
        (&told["ctx_dp_rank"], &told["draft_tokens"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(told.as_object().map(Map::len), Some(14));
    assert_eq!(first["usage"]["completion_tokens"], 1);
    let second = generation.chat(&generation_body(&first, json!({}))).await;
    assert_eq!(
        second["choices"][0]["message"],
        whole["choices"][0]["message"]
    );
    assert_eq!(second["usage"]["completion_tokens"], 16);
    assert_eq!(
        second["choices"][0]["disaggregated_params"]["request_type"],
        "generation_only"
    );
}

#[tokio::test]
async fn a_generation_answer_reports_what_the_context_worker_counted() {
    let (context, generation) = pair().await;
    let mut first = context.chat(&context_body(json!({}))).await;
    first["usage"]["prompt_tokens_details"]["cached_tokens"] = json!(5);
    let asked = json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 2});
    let events = generation
        .events("/v1/chat/completions", &generation_body(&first, asked))
        .await;
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).expect("JSON");
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
    assert_eq!(usage["usage"]["total_tokens"], json!(7 + 2));
}

#[tokio::test]
async fn prompt_ids_travel_packed_and_choices_are_replayed() {
    let (context, generation) = pair().await;
    let params = json!({"request_type": "context_only", "disagg_request_id": ID,
                        "return_prompt_token_ids_b64": true});
    let asked = json!({"disaggregated_params": params, "n": 2});
    let first = context.chat(&context_body(asked)).await;
    assert_eq!(first["prompt_token_ids"], Value::Null);
    let packed = json!({"prompt_token_ids": null, "n": 2,
                        "prompt_token_ids_b64": first["prompt_token_ids_b64"]});
    let second = generation.chat(&generation_body(&first, packed)).await;
    let whole = with(question("tell me of trees"), json!({"n": 2}));
    let whole = generation.chat(&whole).await;
    assert_eq!(
        second["choices"][1]["message"],
        whole["choices"][1]["message"]
    );
}

#[tokio::test]
async fn a_final_context_answer_keeps_no_cache_for_a_second_leg() {
    let (context, _generation) = pair().await;
    let body = with(
        question("final: yes"),
        json!({"disaggregated_params": context_body(json!({}))["disaggregated_params"]}),
    );
    let first = context.chat(&body).await;
    assert_eq!(first["choices"][0]["finish_reason"], "stop");
    let told = &first["choices"][0]["disaggregated_params"];
    assert_eq!(told["encoded_opaque_state"], Value::Null);
    let state = context.get("/simulate/state").await.1;
    assert_eq!(state["transfers_waiting"], 0);
}

#[tokio::test]
async fn a_generation_request_that_does_not_fit_its_context_is_refused() {
    let (context, generation) = pair().await;
    let first = context.chat(&context_body(json!({}))).await;
    let good = generation_body(&first, json!({}));
    let params = |changes| {
        let params = with(good["disaggregated_params"].clone(), changes);
        with(good.clone(), json!({"disaggregated_params": params}))
    };
    for wrong in [
        params(json!({"disagg_request_id": ID + 1})),
        params(json!({"encoded_opaque_state": "b3BhcXVl"})),
        params(json!({"encoded_opaque_state": null})),
        params(json!({"first_gen_tokens": null})),
        params(json!({"first_gen_tokens": [1, 2]})),
        with(good.clone(), json!({"prompt_token_ids": null})),
        context_body(json!({})),
    ] {
        let (status, body) = generation.post("/v1/chat/completions", &wrong).await;
        assert_eq!(
            (status, &body["type"]),
            (400, &json!("BadRequestError")),
            "{wrong}"
        );
    }
    let (status, _) = context.post("/v1/chat/completions", &good).await;
    assert_eq!(status, 400, "a context worker serves no generation");
    let (status, _) = context
        .post(
            "/v1/chat/completions",
            &context_body(json!({"stream": true})),
        )
        .await;
    assert_eq!(status, 400, "a context answer is no stream");
    generation.chat(&good).await;
}

#[tokio::test]
async fn a_prompt_is_handed_over_once_and_only_as_it_was() {
    let (context, generation) = pair().await;
    let first = context.chat(&context_body(json!({}))).await;
    let good = generation_body(&first, json!({}));
    generation.chat(&good).await;
    let (status, body) = generation.post("/v1/chat/completions", &good).await;
    assert_eq!(status, 400);
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| text.contains("timed out"))
    );
    let again = context.chat(&context_body(json!({}))).await;
    let other = generation_body(&again, json!({"prompt_token_ids": [1, 2, 3]}));
    let (status, body) = generation.post("/v1/chat/completions", &other).await;
    assert_eq!(status, 400);
    assert!(
        body["message"]
            .as_str()
            .is_some_and(|text| text.contains("another prompt"))
    );
    assert_eq!(generation.worker.engine().snapshot().active, [0, 0]);
}

#[tokio::test]
async fn a_stream_whose_cache_never_comes_breaks_as_upstreams_does() {
    let (context, generation) = pair().await;
    let first = context.chat(&context_body(json!({}))).await;
    let good = generation_body(&first, json!({"stream": true}));
    generation.events("/v1/chat/completions", &good).await;
    let request = generation
        .client
        .post(generation.url("/v1/chat/completions"));
    let broken = request.json(&good).send().await.expect("a head");
    assert_eq!(broken.status(), 200);
    assert!(broken.text().await.is_err());
    let body = json!({"model": "m", "prompt": first["prompt_token_ids"], "stream": true,
                      "disaggregated_params": good["disaggregated_params"]});
    let events = generation.events("/v1/completions", &body).await;
    assert!(events[0].contains("server_error"));
    assert_eq!(events[1], "[DONE]");
}

/// Both bodies where generation comes first, the context worker's endpoint taken from it.
async fn generation_first(context: &Running) -> (Value, Value) {
    let told = context.get("/server_info").await.1["disaggregated_params"].clone();
    let params = json!({"request_type": "generation_only", "disagg_request_id": ID,
                        "ctx_request_id": ID, "schedule_style": 1,
                        "ctx_info_endpoint": told["ctx_info_endpoint"][0]});
    let generation = with(
        question("tell me of trees"),
        json!({"disaggregated_params": params}),
    );
    let params = json!({"request_type": "context_only", "disagg_request_id": ID,
                        "schedule_style": 1});
    let first = context_body(json!({"disaggregated_params": params}));
    (first, generation)
}

#[tokio::test]
async fn generation_can_come_before_its_context() {
    let (context, generation) = pair().await;
    let (first, body) = generation_first(&context).await;
    let (second, _) = tokio::join!(generation.chat(&body), context.chat(&first));
    assert_eq!(second["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn legs_that_wait_for_each_other_do_not_wait_for_ever() {
    let (context, generation) = pair().await;
    let (first, body) = generation_first(&context).await;
    let (status, said) = context.post("/v1/chat/completions", &first).await;
    assert_eq!(status, 400);
    let message = said["message"].as_str().unwrap_or_default();
    assert!(message.contains("no generation worker asked"), "{message}");
    let (status, said) = generation.post("/v1/chat/completions", &body).await;
    assert_eq!(status, 400);
    let message = said["message"].as_str().unwrap_or_default();
    assert!(message.contains("timed out"), "{message}");
}

#[tokio::test]
async fn a_generation_request_that_waits_at_the_wrong_place_is_refused() {
    let (context, generation) = pair().await;
    let (first, body) = generation_first(&context).await;
    let params = |changes| {
        let params = with(body["disaggregated_params"].clone(), changes);
        with(body.clone(), json!({"disaggregated_params": params}))
    };
    for wrong in [
        params(json!({"ctx_info_endpoint": null})),
        params(json!({"ctx_request_id": null})),
        params(json!({"ctx_endpoint_generation": "1"})),
    ] {
        let (status, _) = generation.post("/v1/chat/completions", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
    }
    let elsewhere = params(json!({"ctx_info_endpoint": "tcp://other.simulated:5000"}));
    let (refused, _) = tokio::join!(
        generation.post("/v1/chat/completions", &elsewhere),
        context.chat(&first)
    );
    assert_eq!(refused.0, 400);
}

#[tokio::test]
async fn without_an_exchange_the_state_is_enough() {
    let context = start(config(Role::Context)).await;
    let generation = start(config(Role::Generation)).await;
    let first = context.chat(&context_body(json!({}))).await;
    generation.chat(&generation_body(&first, json!({}))).await;
}
