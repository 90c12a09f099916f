//! `aggregated_servers` and `models`.

use std::path::Path;

use super::{bad, edge, good, warned};
use crate::{
    config::{Config, FleetsConfig, RouterConfig},
    wire::Role,
};

const MODELS: &str = "
models:
  meta/llama:
    aliases: [llama, l3]
    context_servers: {urls: ['c:2']}
    generation_servers: {urls: ['g:2'], router: {type: load_balancing}}
  qwen:
    aggregated_servers: {urls: ['a:1'], router: {type: conversation}}
";

#[test]
fn models_have_fleets_of_their_own() {
    let edge = good(MODELS).edge.expect("an edge");
    assert_eq!(edge.fleets, None, "other models are not served");
    let [llama, qwen] = &edge.models[..] else {
        panic!("{:?}", edge.models);
    };
    assert_eq!((&*llama.name, &*qwen.name), ("meta/llama", "qwen"));
    assert_eq!(llama.aliases, ["llama", "l3"]);
    let pair = llama.fleets.pair().expect("two fleets");
    assert_eq!(pair.generation.urls, ["g:2"]);
    assert!(matches!(
        pair.generation.router,
        RouterConfig::LoadBalancing(_)
    ));
    let FleetsConfig::Aggregated(fleet) = &qwen.fleets else {
        panic!("{qwen:?}");
    };
    assert_eq!(
        (fleet.role, &fleet.urls[..]),
        (Role::Aggregated, &["a:1".to_owned()][..])
    );
}

#[test]
fn the_fleets_at_the_top_serve_other_models() {
    let config = good(&edge(MODELS)).edge.expect("an edge");
    assert!(config.fleets.expect("fleets").pair().is_some());
    let whole = good(&format!("aggregated_servers: {{urls: ['a:9']}}\n{MODELS}"));
    let fleets = whole.edge.expect("an edge").fleets.expect("fleets");
    assert_eq!(fleets.all()[0].urls, ["a:9"]);
}

#[test]
fn what_is_printed_reads_the_same() {
    for text in [
        edge(MODELS),
        MODELS.to_owned(),
        "aggregated_servers: {urls: ['a:1']}".to_owned(),
    ] {
        let config = good(&text);
        let printed = config.to_yaml_masked();
        let again = Config::from_yaml(&printed, Path::new("again.yaml")).expect("good");
        let fleets = |config: Config| config.edge.map(|edge| (edge.fleets, edge.models));
        assert_eq!(fleets(again), fleets(config), "{printed}");
    }
}

#[test]
fn a_model_is_served_one_way() {
    bad(
        &edge("aggregated_servers: {urls: ['a:1']}"),
        &["k.yaml:3: aggregated_servers: ", "under models"],
    );
    bad(
        "models: {m: {context_servers: {urls: ['c:1']}}}",
        &["models.m.generation_servers.urls: names no server"],
    );
    bad(
        "models: {m: {aliases: [n]}}",
        &["models.m.context_servers.urls: names no server"],
    );
    bad(
        "aggregated_servers: {}",
        &["aggregated_servers.urls: names no server; list at least one as host:port"],
    );
    bad(
        "aggregated_servers: {urls: ['a:1'], signing_profile: trtllm}",
        &["aggregated_servers.signing_profile: ", "remove it"],
    );
}

#[test]
fn a_name_leads_to_one_model() {
    let model =
        |aliases: &str| format!("{{aliases: [{aliases}], aggregated_servers: {{urls: ['a:1']}}}}");
    let file =
        |one: &str, two: &str| format!("models:\n  m: {}\n  two: {}\n", model(one), model(two));
    bad(
        &file("x", "x"),
        &["models.two.aliases[0]: x names two models"],
    );
    bad(&file("two", ""), &["models.two: two names two models"]);
    bad(&file("m", ""), &["models.m.aliases[0]: m names two models"]);
    bad(
        &file("'a b'", ""),
        &["models.m.aliases[0]: ", "no name of a model"],
    );
    bad(
        &file("''", ""),
        &["models.m.aliases[0]: ", "no name of a model"],
    );
    bad("models: {}", &["models: names no model"]);
    bad("models: [m]", &["models: must be a group of keys"]);
    bad(
        "models: {m: {alias: [x], aggregated_servers: {urls: ['a:1']}}}",
        &["models.m.alias: ", "did you mean `aliases`?"],
    );
}

#[test]
fn engine_options_are_inherited_by_every_model() {
    bad(
        "tokens_per_block: 32\nmodels: {m: {aggregated_servers: {urls: ['a:1'], tokens_per_block: 64}}}",
        &[
            "models.m.aggregated_servers.tokens_per_block: ",
            "with different values",
        ],
    );
    let scope = "
internal_request_auth_key: 0123456789abcdef0123456789abcdef
conversation_affinity_header_for_subagents: x-parent
subagent_affinity_scope: both
gateway: {anonymous: owned}
models:
  m:
    context_servers: {urls: ['c:1']}
    generation_servers: {urls: ['g:1'], signing_profile: dynamo}
";
    warned(
        scope,
        "models.m.generation_servers.signing_profile: is dynamo",
    );
}
