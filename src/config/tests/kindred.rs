//! Kindred's own sections, the shipped examples, and the printed form.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{KEY, bad, edge, good, load, shipped, warned};
use crate::{
    config::{
        BodyLimits, Compatibility, Config, HalfClose, HttpConfig, NewConversationPlacement,
        PlacesByRole, SubagentPolicy, raw, secret::MASK,
    },
    wire::{Role, disagg::Endpoint},
};

#[test]
fn the_example_names_every_key() {
    let (path, config) = shipped("kindred.yaml");
    let text = std::fs::read_to_string(path).expect("the example");
    for key in raw::keys() {
        let named = text.lines().any(|line| {
            let line = line.trim_start_matches([' ', '#', '-']);
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        });
        assert!(named, "conf/kindred.yaml does not show {key}");
    }
    let default = good(&edge(""));
    assert_eq!(
        config.limits, default.limits,
        "the example shows the defaults"
    );
    assert_eq!(config.timeouts, default.timeouts);
    assert_eq!(config.http, default.http);
    assert_eq!(config.telemetry, default.telemetry);
    let edges = [config.edge, default.edge].map(|edge| edge.expect("an edge"));
    let [shown, default] = edges.map(|edge| (edge.health, edge.affinity.overflow));
    assert_eq!(shown, default);
    assert_eq!(
        config.warnings.len(),
        1,
        "only of the key: {:#?}",
        config.warnings
    );
    let clients = config.gateway.map(|gateway| gateway.clients);
    let keys: Vec<_> = clients
        .iter()
        .flatten()
        .flat_map(|client| client.api_keys.clone())
        .collect();
    let digest = |key: &str| <[u8; 32]>::from(Sha256::digest(key));
    assert_eq!(
        keys,
        [digest("example-agent-key"), digest("example-team-key")]
    );
}

#[test]
fn a_file_may_describe_worker_filters_alone() {
    let (_, config) = shipped("worker-filter.yaml");
    assert!(config.edge.is_none());
    let filter = config.worker_filters.first().expect("a filter");
    assert_eq!(filter.server_role, Some(Role::Context));
    assert!(!filter.internal_request_auth_keys.is_empty(), "inherited");
    let placement = filter.placement.as_ref().expect("attention DP");
    assert_eq!((placement.ranks, placement.max_active_per_rank), (8, 64));
    assert_eq!(
        placement.new_conversation,
        NewConversationPlacement::LeastTokens
    );
    assert_eq!(
        (placement.max_sessions, placement.fair_share_multiplier),
        (65_536, 2.0)
    );
}

#[test]
fn the_printed_form_loads_again_but_for_its_secrets() {
    let more = format!(
        "internal_request_auth_key: {KEY}\nconversation_affinity_header_for_subagents: X-P\n\
         hostname: '::'\nlimits: {{max_body: 1025B, body_budget: 3MiB}}\n\
         timeouts: {{context: 90500ms, drain: 0s}}\n\
         http: {{half_close: serve, heartbeat: 1500ms}}\n\
         gateway: {{clients: [{{name: 'no', api_keys_sha256: [{}]}}, {{name: '010', api_keys_sha256: [{}]}}]}}\n",
        "ab".repeat(32),
        "'".to_owned() + &"12".repeat(32) + "'"
    );
    let by_cache = edge("conditional_disagg_config: {max_local_prefill_length: 3}").replace(
        "[\"g:1\"]",
        "[\"g:1\"], router: {type: kv_cache_aware, load_cap: 0.5, tokenizer_dir: /m}",
    );
    let shipped = ["kindred.yaml", "trtllm-disagg.yaml", "worker-filter.yaml"];
    let configs = shipped.map(|name| self::shipped(name).1);
    for config in configs
        .into_iter()
        .chain([good(&edge(&more)), good(&edge("")), good(&by_cache)])
    {
        let printed = config.to_yaml_masked();
        assert!(
            !printed.contains(KEY) && !printed.contains("change-me"),
            "{printed}"
        );
        let has_key = printed.contains(MASK);
        assert_eq!(
            load(&printed).is_err(),
            has_key,
            "a mask is no secret:\n{printed}"
        );
        let again = good(&printed.replace(MASK, KEY));
        assert_eq!(again.to_yaml_masked(), printed);
        assert_eq!(again.limits, config.limits);
        assert_eq!(again.timeouts, config.timeouts);
        assert_eq!(again.http, config.http);
        let fleets = |config: Config| config.edge.and_then(|edge| edge.fleets);
        assert_eq!(fleets(again), fleets(config));
    }
}

#[test]
fn nothing_prints_a_secret() {
    let text = edge(&format!("internal_request_auth_key: {KEY}"));
    assert!(!format!("{:?}", good(&text)).contains(KEY));
}

#[test]
fn a_misspelt_key_of_our_own_is_an_error_with_a_suggestion() {
    for (text, key, meant) in [
        ("gateway: {anonymus: none}", "gateway.anonymus", "anonymous"),
        (
            "gateway: {clients: [{nme: a}]}",
            "gateway.clients[0].nme",
            "name",
        ),
        ("limits: {maxbody: 1MiB}", "limits.maxbody", "max_body"),
        ("timeouts: {conect: 1s}", "timeouts.conect", "connect"),
        ("http: {hartbeat: 1s}", "http.hartbeat", "heartbeat"),
        ("telemetry: {logs: info}", "telemetry.logs", "log"),
        ("admin: {listn: 127.0.0.1:1}", "admin.listn", "listen"),
        (
            "worker_filters: [{worke: 'w:1'}]",
            "worker_filters[0].worke",
            "worker",
        ),
        (
            "worker_filters: [{attention_dp_config: {timeout_iter: 1}}]",
            "worker_filters[0].attention_dp_config.timeout_iter",
            "timeout_iters",
        ),
    ] {
        let place = format!("k.yaml:3: {key}: is no key of this section; did you mean `{meant}`?");
        bad(&edge(text), &[&place]);
    }
    bad(
        &edge("limits: {colour: 1}"),
        &["limits.colour", "max_body, body_budget"],
    );
}

#[test]
fn connections_are_cancelled_half_closed_and_silent_by_default() {
    let http = |text: &str| good(&edge(text)).http;
    for text in [
        "",
        "http:",
        "http: {}",
        "http: {half_close: cancel, heartbeat: off}",
        "http: {half_close: null, heartbeat: false}",
        "http: {heartbeat: 'OFF'}",
    ] {
        assert_eq!(http(text), HttpConfig::default(), "{text}");
    }
    let config = http("http: {half_close: Serve, heartbeat: 15s}");
    assert_eq!(config.half_close, HalfClose::Serve);
    assert_eq!(config.heartbeat, Some(Duration::from_secs(15)));
    for (text, words) in [
        ("half_close: keep", "use one of cancel, serve"),
        ("heartbeat: true", "a duration with its unit"),
        ("heartbeat: 15", "has no unit"),
        ("heartbeat: 0s", "between 50ms and 1h"),
        ("heartbeat: 2h", "between 50ms and 1h"),
    ] {
        let key = text.split(':').next().unwrap_or_default();
        let place = format!("k.yaml:3: http.{key}: ");
        bad(&edge(&format!("http: {{{text}}}")), &[&place, words]);
    }
}

#[test]
fn the_gateway_opens_no_door_by_omission() {
    let gateway = |text: &str| good(&edge(text)).gateway;
    assert!(gateway("").is_none());
    for empty in ["gateway:", "gateway: {}", "gateway: {clients: []}"] {
        let section = gateway(empty).expect("a gateway");
        assert!(section.anonymous.is_none() && section.clients.is_empty());
        warned(&edge(empty), "lets nobody in");
    }
    let digest = "AB".repeat(32);
    let text = format!(
        "gateway:\n  anonymous: none\n  clients:\n  - {{name: a, api_keys_sha256: [{digest}]}}\n  \
         prune_headers: [X-Team, x-team]\n"
    );
    let section = gateway(&text).expect("a gateway");
    assert_eq!(section.anonymous, Some(SubagentPolicy::None));
    assert_eq!(section.max_sessions, 1_000_000);
    assert_eq!(section.prune_headers, ["x-team"]);
    let client = section.clients.first().expect("a client");
    assert_eq!(client.subagents, SubagentPolicy::Owned);
    assert_eq!(client.api_keys, [[0xab; 32]]);
}

#[test]
fn clients_are_told_apart() {
    let digest = "ab".repeat(32);
    let clients = |text: &str| edge(&format!("gateway:\n  clients:\n{text}"));
    let one = format!("  - {{name: a, api_keys_sha256: [{digest}]}}\n");
    bad(
        &clients(&one.repeat(2)),
        &[
            "k.yaml:6: gateway.clients[1].name: is the name of an earlier client",
            "gateway.clients[1].api_keys_sha256[0]: is listed twice",
        ],
    );
    bad(
        &clients("  - {name: a}"),
        &["clients[0].api_keys_sha256: is missing"],
    );
    bad(
        &clients("  - {name: a, api_keys_sha256: []}"),
        &["is empty", "sha256sum"],
    );
    bad(&clients("  - {}"), &["clients[0].name: is missing"]);
    bad(
        &clients("  - {name: no}"),
        &["clients[0].name: must be text", "quotes"],
    );
    bad(
        &clients("  - {name: 'a b'}"),
        &["clients[0].name: must be 1 to 64"],
    );
    let plain = clients("  - {name: a, api_keys_sha256: [sk-hunter2]}");
    let message = bad(&plain, &["api_keys_sha256[0]: is not a SHA-256 digest"]);
    assert!(!message.contains("hunter2"), "{message}");
    let wrong = clients("  - {name: a, subagents: ownd}");
    bad(
        &wrong,
        &[
            "subagents",
            "none, owned, declared",
            "did you mean `owned`?",
        ],
    );
    for header in ["authorization", "Content-Length", "'a b'"] {
        bad(
            &edge(&format!("gateway: {{prune_headers: [{header}]}}")),
            &["prune_headers[0]"],
        );
    }
}

fn filter(text: &str) -> String {
    format!("worker_filters:\n- listen: 127.0.0.1:9001\n  worker: w:8001\n  {text}\n")
}

#[test]
fn a_worker_filter_has_sensible_defaults() {
    let config = good(&format!("internal_request_auth_key: {KEY}\n{}", filter("")));
    let filter = config.worker_filters.first().expect("a filter");
    assert_eq!(filter.name, "worker-0");
    assert!(filter.server_role.is_none() && filter.placement.is_none());
    assert!(!filter.internal_request_auth_keys.is_empty());
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    warned(&self::filter(""), "has no internal_request_auth_key");
    let config = good(&self::filter(
        "enable_attention_dp: true\n  tensor_parallel_size: 4",
    ));
    let placement = config
        .worker_filters
        .first()
        .and_then(|filter| filter.placement.as_ref());
    let placement = placement.expect("attention DP");
    assert_eq!((placement.ranks, placement.max_active_per_rank), (4, 64));
    assert!(!placement.conversation_affinity);
    assert_eq!(
        placement.new_conversation,
        NewConversationPlacement::RoundRobin
    );
}

#[test]
fn a_worker_filter_that_cannot_work_is_refused() {
    let adp = |text: &str| {
        filter(&format!(
            "enable_attention_dp: true\n  tensor_parallel_size: 4\n  attention_dp_config: {{{text}}}"
        ))
    };
    bad(
        &filter("attention_dp_config: {kv_cache_routing_conversation_affinity: true}"),
        &[
            "k.yaml:4: worker_filters[0].attention_dp_config.kv_cache_routing_conversation_affinity",
            "enable_attention_dp",
        ],
    );
    bad(
        &filter("enable_attention_dp: true"),
        &["tensor_parallel_size: is missing"],
    );
    bad(
        &adp("kv_cache_routing_new_conv_placement: least_loaded"),
        &[
            "kv_cache_routing_new_conv_placement",
            "round_robin, least_queued, least_tokens",
        ],
    );
    bad(
        &adp("kv_cache_routing_fair_share_multiplier: 0.5"),
        &["fair_share_multiplier", "at least 1"],
    );
    bad(
        &adp("kv_cache_routing_max_sessions: 0"),
        &["kv_cache_routing_max_sessions"],
    );
    bad(
        &filter("rank_delivery: body"),
        &["rank_delivery", "come later"],
    );
    bad(
        &filter("server_role: prefill"),
        &["server_role", "context, generation, aggregated"],
    );
    bad(
        "worker_filters: [{}]",
        &["[0].listen: is missing", "[0].worker: is missing"],
    );
    bad("worker_filters: []", &["worker_filters: is empty"]);
    bad(
        "worker_filters: {listen: 'a:1'}",
        &["worker_filters: must be a list"],
    );
    bad(
        "worker_filters: [{listen: a, worker: 'http://w:1'}]",
        &["[0].listen", "[0].worker", "scheme"],
    );
    bad(
        "worker_filters: [{listen: 'a:1', worker: 'a:1'}]",
        &["filter itself"],
    );
    let one = "- {name: a, listen: '127.0.0.1:9001', worker: 'w:1'}\n";
    bad(
        &format!("worker_filters:\n{}", one.repeat(2)),
        &[
            "k.yaml:3: worker_filters[1].name: is a, the name of an earlier filter",
            "k.yaml:3: worker_filters[1].listen: worker_filters[0].listen already listens there",
        ],
    );
    good(&adp("enable_balance: true, timeout_iters: 3"));
    good(&filter("server_role: CONTEXT"));
}

#[test]
fn two_things_cannot_listen_in_one_place() {
    let text = edge("port: 9464\nadmin:\n  listen: 127.0.0.1:9464");
    bad(
        &text,
        &["k.yaml:3: port: admin.listen already listens there"],
    );
    bad(
        &edge("admin: {listen: '127.0.0.1:8000'}"),
        &["port: admin.listen already"],
    );
    good(&edge("port: 0\nadmin: {listen: '127.0.0.1:0'}"));
}

#[test]
fn the_operators_port_is_local_unless_said() {
    let admin = |text: &str| {
        good(&edge(text))
            .admin
            .map(|admin| admin.listen.to_string())
    };
    assert_eq!(admin(""), None);
    assert_eq!(admin("admin: {}").as_deref(), Some("127.0.0.1:9464"));
    assert_eq!(
        admin("admin:\n  listen: '[::1]:1'").as_deref(),
        Some("[::1]:1")
    );
    warned(&edge("admin: {listen: '0.0.0.0:1'}"), "operator's port");
    bad(
        &edge("admin: {listen: localhost}"),
        &["k.yaml:3: admin.listen", "IP address and a port"],
    );
}

#[test]
fn a_body_has_a_bound_on_each_path() {
    let of = |max_body: &str| {
        let config = good(&edge(&format!("limits: {{max_body: {max_body}}}")));
        let again = good(&config.to_yaml_masked()).limits.max_body;
        assert_eq!(config.limits.max_body, again, "printed and read again");
        let limits = config.limits.max_body;
        let of = |endpoint| limits.of(endpoint) >> 20;
        (of(Endpoint::ChatCompletions), of(Endpoint::Completions))
    };
    assert_eq!(good(&edge("")).limits.max_body, BodyLimits::all(32 << 20));
    for (given, limits) in [
        ("5MiB", (5, 5)),
        ("{}", (32, 32)),
        ("{default: 5MiB}", (5, 5)),
        ("{/v1/chat/completions: 64MiB}", (64, 32)),
        ("{default: 1MiB, /v1/completions: 2MiB}", (1, 2)),
    ] {
        assert_eq!(of(given), limits, "{given}");
    }
    let chat = "limits.max_body./v1/chat/completions";
    for (given, parts) in [
        ("{/v1/chat: 1MiB}", ["limits.max_body./v1/chat", "default"]),
        ("{/v1/chat/completions: 1}", [chat, "between 1KiB"]),
        ("{/v1/chat/completions: }", [chat, "no value"]),
        ("{default: many}", ["limits.max_body.default", "32MiB"]),
        (
            "{/v1/completions: 2GiB}",
            ["limits.max_body", "raise the budget"],
        ),
        ("[]", ["limits.max_body", "32MiB"]),
    ] {
        bad(&edge(&format!("limits: {{max_body: {given}}}")), &parts);
    }
}

#[test]
fn bounds_and_deadlines_have_units_and_ranges() {
    let config = good(&edge(
        "limits: {max_body: 64KiB, max_headers: 5}\ntimeouts: {connect: 250ms}",
    ));
    assert_eq!(
        (config.limits.max_body, config.limits.max_headers),
        (BodyLimits::all(65_536), 5)
    );
    assert_eq!(config.limits.body_budget, 1 << 30);
    assert_eq!(config.timeouts.connect, Duration::from_millis(250));
    assert_eq!(config.timeouts.idle_upstream, Duration::from_secs(4));
    assert_eq!(
        good(&edge("limits: {max_body: 4096}")).limits.max_body,
        BodyLimits::all(4096)
    );
    for (text, parts) in [
        ("timeouts: {connect: 5}", ["timeouts.connect", "no unit"]),
        ("timeouts: {connect: fast}", ["timeouts.connect", "250ms"]),
        (
            "timeouts: {connect: 0s}",
            ["timeouts.connect", "between 1ms"],
        ),
        (
            "timeouts: {silence: 1000years}",
            ["timeouts.silence", "between"],
        ),
        (
            "timeouts: {connect: 99999999999999999999s}",
            ["timeouts.connect", "250ms"],
        ),
        ("timeouts: {write: ~}", ["timeouts.write", "no value"]),
        ("limits: {max_body: lots}", ["limits.max_body", "32MiB"]),
        ("limits: {max_body: 1.5}", ["limits.max_body", "32MiB"]),
        (
            "limits: {max_body: -1}",
            ["limits.max_body", "between 1KiB"],
        ),
        (
            "limits: {max_body: 1B}",
            ["limits.max_body", "between 1KiB"],
        ),
        ("limits: {max_headers: 257}", ["limits.max_headers", "256"]),
        (
            "limits: {max_body: 2GiB}",
            ["limits.max_body", "raise the budget"],
        ),
        ("telemetry: {log: 'a=b=c'}", ["telemetry.log", "info"]),
        ("telemetry: {log: ''}", ["telemetry.log", "info"]),
        (
            "telemetry: {debug_headers: 1}",
            ["telemetry.debug_headers", "boolean"],
        ),
        ("limits: 5", ["limits", "group of keys"]),
    ] {
        bad(&edge(text), &parts);
    }
    warned(&edge("timeouts: {idle_upstream: 5s}"), "idle_upstream");
    good(&edge(
        "telemetry: {log: 'warn,kindred=debug'}\nlimits:\ntimeouts:",
    ));
}

#[test]
fn the_first_byte_is_waited_for_as_long_as_the_next_ones_unless_said() {
    let first_byte = |text: &str| good(&edge(text)).timeouts.first_byte;
    assert_eq!(first_byte(""), Duration::from_secs(180));
    assert_eq!(
        first_byte("timeouts: {silence: 7s}"),
        Duration::from_secs(7)
    );
    let text = "timeouts: {silence: 7s, first_byte: 9s}";
    assert_eq!(first_byte(text), Duration::from_secs(9));
}

#[test]
fn pauses_between_attempts_grow_and_never_shrink() {
    let pauses = |text: &str| {
        let timeouts = good(&edge(&format!("timeouts: {{{text}}}"))).timeouts;
        [timeouts.retry_pause, timeouts.retry_pause_max].map(|pause| pause.as_millis())
    };
    assert_eq!(pauses(""), [100, 2000]);
    assert_eq!(pauses("retry_pause: 3s"), [3000, 3000]);
    assert_eq!(pauses("retry_pause_max: 50ms"), [50, 50]);
    assert_eq!(pauses("retry_pause: 0s, retry_pause_max: 0s"), [0, 0]);
    for (text, key, words) in [
        (
            "retry_pause: 2s, retry_pause_max: 1s",
            "retry_pause_max",
            "shorter than timeouts.retry_pause",
        ),
        ("retry_pause: 2m", "retry_pause", "between 0s and 1m"),
        ("retry_pause_max: 5", "retry_pause_max", "no unit"),
        ("first_byte: 0s", "first_byte", "between 1ms"),
        ("answer: 0s", "answer", "between 1ms"),
    ] {
        let place = format!("k.yaml:3: timeouts.{key}: ");
        bad(&edge(&format!("timeouts: {{{text}}}")), &[&place, words]);
    }
}

#[test]
fn every_problem_is_named_at_once_in_order() {
    let text = edge("port: x\nmax_retries: -1\nlimits: {max_headers: 0}");
    let error = load(&text).expect_err("three problems");
    let lines: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| problem.line)
        .collect();
    assert_eq!(lines, [Some(3), Some(4), Some(5)], "{error}");
    assert!(
        Config::from_yaml(&text, std::path::Path::new("other.yaml"))
            .expect_err("as well")
            .to_string()
            .starts_with("other.yaml:3: port: ")
    );
}

#[test]
fn tls_needs_both_of_its_files() {
    let tls = |more: &str| edge(&format!("tls: {{{more}}}"));
    let config = good(&tls("cert_file: c.pem, key_file: /k.pem")).tls;
    let config = config.expect("TLS");
    assert_eq!(config.cert_file, std::path::Path::new("c.pem"));
    assert_eq!(config.key_file, std::path::Path::new("/k.pem"));
    assert!(good(&tls("")).tls.is_none());
    bad(
        &tls("cert_file: c.pem"),
        &["k.yaml:3: tls.key_file: is missing"],
    );
    bad(&tls("key_file: k.pem"), &["tls.cert_file: is missing"]);
    bad(
        &tls("cert_file: '', key_file: k.pem"),
        &["tls.cert_file: is empty"],
    );
    bad(
        &tls("cert: c.pem, key_file: k.pem"),
        &["tls.cert: ", "did you mean `cert_file`?"],
    );
    let printed = good(&tls("cert_file: c.pem, key_file: k.pem")).to_yaml_masked();
    assert!(printed.contains("cert_file: c.pem"), "{printed}");
    bad(
        &tls("client_ca_file: ca.pem"),
        &["tls.cert_file: is missing", "tls.key_file: is missing"],
    );
}

#[test]
fn tls_to_workers_needs_roots_and_a_name_that_can_be_one() {
    let workers = |more: &str| edge(&format!("tls: {{workers: {{{more}}}}}"));
    let all = "ca_file: ca.pem, cert_file: c.pem, key_file: k.pem, server_name: w.example, \
               plain: ['old:1']";
    let config = good(&workers(all));
    assert!(config.tls.is_none());
    let tls = config.worker_tls.as_ref().expect("TLS");
    assert_eq!(tls.server_name.as_deref(), Some("w.example"));
    assert!(tls.shown.is_some() && tls.plain.contains("old:1"));
    let again = good(&config.to_yaml_masked());
    assert_eq!(again.worker_tls, config.worker_tls);
    bad(
        &workers("server_name: w"),
        &["tls.workers.ca_file: is missing"],
    );
    bad(
        &workers("ca_file: ca.pem, cert_file: c.pem"),
        &["tls.workers.key_file: is missing"],
    );
    for name in ["''", "'a b'", "'w:1'"] {
        let text = workers(&format!("ca_file: ca.pem, server_name: {name}"));
        bad(&text, &["tls.workers.server_name: is "]);
    }
    bad(
        &workers("ca_file: ca.pem, plain: ['https://w:1']"),
        &["tls.workers.plain[0]: has a scheme"],
    );
    bad(
        &edge("admin: {tls: {workers: {ca_file: ca.pem}}}"),
        &["admin.tls.workers: has no meaning here"],
    );
}

#[test]
fn places_are_bounded_for_all_fleets_or_by_role() {
    let limits = |text: &str| good(&edge(&format!("limits: {{{text}}}"))).limits;
    assert_eq!(limits("").max_in_flight, PlacesByRole::default());
    assert_eq!(limits("").max_waiting, 1024);
    let all = limits("max_in_flight: 7").max_in_flight;
    assert_eq!(
        (all.context, all.generation, all.aggregated),
        (Some(7), Some(7), Some(7))
    );
    let some = limits("max_in_flight: {context: 3, generation: null}").max_in_flight;
    assert_eq!(
        (some.context, some.generation, some.aggregated),
        (Some(3), None, None)
    );
    bad(
        &edge("limits: {max_in_flight: 0}"),
        &["limits.max_in_flight: is 0"],
    );
    bad(
        &edge("limits: {max_in_flight: {prefill: 1}}"),
        &[
            "limits.max_in_flight.prefill: is no key",
            "context, generation, aggregated",
        ],
    );
    bad(&edge("timeouts: {queue: 0s}"), &["timeouts.queue"]);
}

#[test]
fn errors_look_as_openais_unless_the_file_says_otherwise() {
    let of = |text: &str| good(&edge(text)).compatibility;
    assert_eq!(of(""), Compatibility::OpenAi);
    assert_eq!(of("compatibility: openai"), Compatibility::OpenAi);
    assert_eq!(of("compatibility: TRTLLM"), Compatibility::Trtllm);
    bad(
        &edge("compatibility: trt"),
        &["k.yaml:3: compatibility: is trt; use one of openai, trtllm"],
    );
}
