//! What the router `kv_cache_aware` needs, and what becomes of a configuration that lacks it; and
//! conditional disaggregation on top of it (specification section 4.6).

mod support;

use std::path::Path;

use kindred::{
    simulate::worker::{SimulatedWorkerConfig, recorder::Recorded},
    wire::Role,
};
use serde_json::{Value, json};
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    model, raw,
};

const COMPLETIONS: &str = "/v1/completions";
const CONVERSATION: &str = "{type: conversation}";

fn small_blocks(config: &mut SimulatedWorkerConfig) {
    config.engine.block_size = 4;
}

/// A file with this generation router.
fn yaml(fleet: &Fleet, generation: &str, more: &str) -> String {
    let yaml = fleet.yaml(more);
    let (before, after) = yaml.split_once("generation_servers").unwrap();
    let after = after.replace(CONVERSATION, generation);
    format!("{before}generation_servers{after}")
}

fn with_folder(fleet: &Fleet, folder: &Path) -> String {
    let folder = folder.display();
    let router = format!("{{type: kv_cache_aware, tokenizer_dir: '{folder}'}}");
    yaml(fleet, &router, "")
}

fn body(request: &Recorded) -> Value {
    serde_json::from_str(&request.body).unwrap()
}

fn ids(first: u32, count: u32) -> Value {
    json!((first..first + count).collect::<Vec<u32>>())
}

fn ask(kindred: &Kindred, prompt: &Value, stream: bool) -> String {
    let body = json!({"model": "m", "max_tokens": 4, "prompt": prompt, "stream": stream});
    let headers = [("x-session-id", "s")];
    let answer = raw::post(kindred.edge(), COMPLETIONS, &headers, &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

fn text(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn way(kindred: &Kindred, way: &str) -> f64 {
    let label = format!("way=\"{way}\"");
    kindred.metric("kindred_conditional_requests_total", &[&label])
}

#[test]
fn a_prompt_that_is_held_already_needs_no_context_leg() {
    let fleet = fleet::start(1, 2, small_blocks);
    let more = "conditional_disagg_config: {max_local_prefill_length: 16}";
    let kindred = Kindred::serve(&yaml(&fleet, "{type: kv_cache_aware}", more));

    let first = text(&ask(&kindred, &ids(100, 41), false));
    assert_eq!(fleet.requests(Role::Context).len(), 1, "nobody held it");
    assert_eq!(
        (way(&kindred, "local"), way(&kindred, "disaggregated")),
        (0.0, 1.0)
    );
    let holder = fleet
        .of(Role::Generation)
        .position(|worker| worker.requests().len() == 1);
    let holder = fleet.of(Role::Generation).nth(holder.unwrap()).unwrap();
    kindred.assert_idle();

    let again = text(&ask(&kindred, &ids(100, 41), false));
    let streamed = ask(&kindred, &ids(100, 41), true);
    assert_eq!(again, first, "the same words without a context leg");
    assert!(streamed.trim_end().ends_with("data: [DONE]"), "{streamed}");
    assert_eq!(fleet.requests(Role::Context).len(), 1);
    assert_eq!(
        (way(&kindred, "local"), way(&kindred, "disaggregated")),
        (2.0, 1.0)
    );
    let seen = holder.requests();
    assert_eq!(seen.len(), 3);
    for request in &seen[1..] {
        let body = body(request);
        assert_eq!(body.get("disaggregated_params"), None);
        assert_eq!(body["prompt"], ids(100, 41));
        assert_eq!(body["conversation_params"], json!({"conversation_id": "s"}));
        let internal = |(name, _): &&(String, String)| name.to_lowercase().starts_with("x-trtllm");
        assert_eq!(request.headers.iter().find(internal), None);
    }
    assert_eq!(
        body(&seen[0])["disaggregated_params"]["request_type"],
        "generation_only"
    );

    // More than 16 tokens are missing: a context leg, and then the instance that was reserved.
    ask(&kindred, &ids(100, 61), false);
    assert_eq!(fleet.requests(Role::Context).len(), 2);
    assert_eq!(holder.requests().len(), 4);
    let last = body(&holder.requests()[3]);
    assert_eq!(
        last["disaggregated_params"]["request_type"],
        "generation_only"
    );
    assert_eq!(
        (way(&kindred, "local"), way(&kindred, "disaggregated")),
        (2.0, 2.0)
    );
    kindred.assert_idle();
}

#[test]
fn a_reserved_instance_is_given_back_when_the_context_leg_ends_it_all() {
    let fleet = fleet::start(1, 1, small_blocks);
    let more = "conditional_disagg_config: {max_local_prefill_length: 16}\nmax_retries: 0";
    let kindred = Kindred::serve(&yaml(&fleet, "{type: kv_cache_aware}", more));
    fleet
        .of(Role::Context)
        .next()
        .unwrap()
        .fault(1, "status=400");
    let refused = json!({"model": "m", "prompt": ids(100, 41)}).to_string();
    assert_eq!(
        raw::post(kindred.edge(), COMPLETIONS, &[], &refused).status,
        400
    );
    kindred.assert_idle();
    // A context answer that is final.
    ask(&kindred, &json!("final: no more"), false);
    assert_eq!(fleet.requests(Role::Generation).len(), 0);
    kindred.assert_idle();
}

#[test]
fn conditional_disaggregation_needs_this_router() {
    let fleet = fleet::start(1, 1, |_| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kindred.yaml");
    let more = "conditional_disagg_config: {max_local_prefill_length: 16}";
    std::fs::write(&file, yaml(&fleet, "{type: round_robin}", more)).unwrap();
    let (code, _, stderr) = support::run(&["serve", "--config", file.to_str().unwrap()], "");
    assert_eq!(code, 2);
    assert!(
        stderr.contains(
            "conditional_disagg_config: needs generation_servers.router.type kv_cache_aware"
        ),
        "{stderr}"
    );
}

#[test]
fn a_broken_tokenizer_refuses_the_start_and_the_check() {
    let fleet = fleet::start(1, 1, |_| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kindred.yaml");
    std::fs::write(&file, with_folder(&fleet, folder.path())).unwrap();
    let refused = |what: &str| {
        for command in ["serve", "check"] {
            let (code, _, stderr) =
                support::run(&[command, "--config", file.to_str().unwrap()], "");
            assert_eq!(code, 2, "{command}");
            let key = "kindred.yaml: generation_servers.router.tokenizer_dir: ";
            assert!(stderr.contains(key) && stderr.contains(what), "{stderr}");
        }
    };
    refused("tokenizer.json: is missing");
    model::write(folder.path());
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    refused("tokenizer.json: is no tokenizer that can be read");
    model::write(folder.path());
    std::fs::write(folder.path().join("chat_template.jinja"), "{% if %}").unwrap();
    refused("chat_template.jinja: its chat template cannot be used");
}

#[test]
fn a_reload_with_a_broken_tokenizer_changes_nothing() {
    let fleet = fleet::start(1, 1, small_blocks);
    let folder = tempfile::tempdir().unwrap();
    model::write(folder.path());
    let good = with_folder(&fleet, folder.path());
    let kindred = Kindred::serve(&good);
    let reload = |result: &str| {
        let label = format!("result=\"{result}\"");
        let reloads = || kindred.metric("kindred_config_reloads_total", &[&label]);
        let before = reloads();
        kindred.signal("HUP");
        eventually("the reload is over", || (reloads() > before).then_some(()));
    };
    ask(&kindred, &json!(model::words(0, 41)), false);
    let label = ["fleet=\"generation\""];
    let known = || kindred.metric("kindred_kv_blocks", &label);
    eventually("blocks are known", || (known() > 0.0).then_some(()));

    std::fs::rename(
        folder.path().join("tokenizer.json"),
        folder.path().join("kept"),
    )
    .unwrap();
    reload("rejected");
    eventually("the log says why", || {
        let log = kindred.log();
        log.contains("tokenizer.json: is missing").then_some(())
    });
    ask(&kindred, &json!(model::words(100, 41)), false);
    let fallbacks = kindred.metric("kindred_router_fallbacks_total", &label);
    assert_eq!(fallbacks, 0.0, "the tokenizer that was read goes on");

    std::fs::rename(
        folder.path().join("kept"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    reload("applied");
    assert!(known() > 0.0, "what is known stays");
    // An instance that is removed takes its blocks along.
    let gone = good.replace(
        &fleet
            .of(Role::Generation)
            .next()
            .unwrap()
            .address
            .to_string(),
        "127.0.0.1:1",
    );
    std::fs::write(kindred.file.as_ref().unwrap(), gone).unwrap();
    reload("applied");
    kindred.assert_metric("kindred_kv_blocks", &label, 0.0);
    kindred.assert_idle();
}
