//! Upstream's keys: a file that upstream serves means the same here.

use super::{KEY, bad, edge, good, key_of, pair, shipped, warned};
use crate::{
    config::{
        AffinityScope, Config, ConversationConfig, KvCacheAwareConfig, LoadBalancingConfig,
        RouterConfig,
    },
    wire::{Role, disagg::ScheduleStyle},
};

#[test]
fn the_shipped_upstream_file_is_served_as_it_is() {
    let (_, config) = shipped("trtllm-disagg.yaml");
    let edge = config.edge.expect("an edge");
    assert_eq!((edge.hostname.as_str(), edge.port), ("localhost", 8000));
    assert_eq!(pair(&edge).context.role, Role::Context);
    assert_eq!(
        pair(&edge).context.urls,
        ["localhost:8001", "localhost:8002"]
    );
    let RouterConfig::Conversation(router) = pair(&edge).context.router.clone() else {
        panic!("not the conversation router");
    };
    assert_eq!(router.tokens_per_block, 64, "from kv_cache_config");
    let header = edge.affinity.parent_header.as_deref();
    assert_eq!(header, Some("x-dynamo-parent-session-id"));
    assert!(config.gateway.is_none() && config.admin.is_none());
    let unused: Vec<_> = config
        .warnings
        .iter()
        .filter(|warning| warning.contains("no effect here"))
        .collect();
    assert_eq!(unused.len(), 1, "{:#?}", config.warnings);
    for key in ["backend", "context_servers.tensor_parallel_size"] {
        assert!(unused.iter().all(|warning| warning.contains(key)));
    }
    let trusted = |warning: &&String| warning.contains("trusted as it arrives");
    assert_eq!(config.warnings.iter().filter(trusted).count(), 1);
}

#[test]
fn defaults_are_upstreams() {
    let config = good(&edge(""));
    let edge = config.edge.expect("an edge");
    assert_eq!((edge.hostname.as_str(), edge.port), ("localhost", 8000));
    assert_eq!(edge.max_retries, 1);
    assert_eq!(pair(&edge).context.router, RouterConfig::RoundRobin);
    assert!(edge.internal_request_auth_keys.is_empty());
    assert!(edge.affinity.parent_header.is_none());
    assert_eq!(edge.affinity.scope, AffinityScope::Context);
    assert!(!edge.allow_request_chat_template);
    assert!(!edge.gen_strip_message_history && !edge.gen_tokids_ctxbytes);
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(
        edge.node_id,
        good(&self::edge("")).edge.expect("an edge").node_id
    );
}

#[test]
fn urls_are_exactly_host_and_port() {
    for url in ["http://c:1", "c", "c:x", "'[::1]:1'", "c:1/v1", "'c:70000'"] {
        bad(
            &format!("context_servers:\n  urls: [{url}]"),
            &["k.yaml:2: context_servers.urls[0]"],
        );
    }
    let text = "context_servers:\n  urls:\n  - c: 1\n";
    bad(
        text,
        &["k.yaml:3: context_servers.urls[0]", "space after the colon"],
    );
    let message = bad(
        "context_servers: {urls: ['http://me:hunter2@c:1']}",
        &["scheme"],
    );
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn the_number_of_urls_is_num_instances() {
    let text = "context_servers:\n  urls: [\"c:1\", \"c:2\"]\n";
    bad(
        text,
        &[
            "k.yaml:2: context_servers.urls: lists 2",
            "num_instances: 2",
        ],
    );
    let text = "context_servers:\n  num_instances: 3\n  urls: [\"c:1\", \"c:2\"]\n";
    bad(text, &["k.yaml:2: context_servers.num_instances", "is 3"]);
    let text = "context_servers: {num_instances: 2, urls: [\"c:1\", \"C:1\"]}";
    bad(text, &["context_servers.urls[1]", "listed already"]);
    bad(
        "context_servers: {num_instances: -1}",
        &["context_servers.num_instances", "between 0"],
    );
}

#[test]
fn no_instances_is_legal_in_a_section_but_an_edge_needs_both() {
    let text = "context_servers: {num_instances: 0}\ngeneration_servers: {urls: [\"g:1\"]}";
    let message = bad(
        text,
        &["k.yaml:1: context_servers.urls", "at least one context url"],
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    let message = bad(
        "port: 1",
        &["context_servers.urls", "generation_servers.urls"],
    );
    assert_eq!(message.lines().count(), 2, "{message}");
    bad("backend: pytorch", &["context_servers.urls"]);
    assert!(good("admin: {}\nbackend: pytorch").edge.is_none());
    bad("admin: {}\nhostname: h", &["context_servers.urls"]);
    bad(
        "admin: {}\ngateway: {anonymous: none}",
        &["context_servers.urls"],
    );
}

#[test]
fn a_server_may_have_both_roles() {
    let both = |n, urls: &str| {
        format!(
            "context_servers: {{num_instances: {n}, urls: [{urls}]}}\n\
             generation_servers: {{num_instances: {n}, urls: [{urls}]}}\n"
        )
    };
    assert!(good(&both(2, "\"a:1\", \"b:1\"")).warnings.is_empty());
    warned(&both(1, "\"a:1\""), "it serves both legs of every request");
    let different = "context_servers: {num_instances: 2, urls: [\"a:1\", \"b:1\"], x: 1}\n\
                     generation_servers: {num_instances: 2, urls: [\"a:1\", \"b:1\"], x: 2}\n";
    warned(different, "different engine options");
}

#[test]
fn routers_and_their_arguments() {
    let router = |text: &str| {
        let text = format!(
            "context_servers: {{urls: [\"c:1\"], router: {text}}}\n\
             generation_servers: {{urls: [\"g:1\"]}}\n"
        );
        pair(&good(&text).edge.expect("an edge"))
            .context
            .router
            .clone()
    };
    assert_eq!(router("{}"), RouterConfig::RoundRobin);
    assert_eq!(router("null"), RouterConfig::RoundRobin);
    assert_eq!(router("{type: Round_Robin}"), RouterConfig::RoundRobin);
    let tokens = RouterConfig::LoadBalancing(LoadBalancingConfig { use_tokens: true });
    assert_eq!(router("{type: LOAD_BALANCING, use_tokens: true}"), tokens);
    let default = RouterConfig::Conversation(ConversationConfig::default());
    assert_eq!(router("{type: conversation, use_harmony: null}"), default);
    let set = "{type: conversation, match_threshold: 1, tokens_per_block: 32, hash_skip_count: 3, \
               max_sessions: 10}";
    let expected = RouterConfig::Conversation(ConversationConfig {
        match_threshold: 1.0,
        tokens_per_block: 32,
        hash_skip_count: 3,
        max_sessions: 10,
    });
    assert_eq!(router(set), expected);
}

/// A file whose generation router has these arguments, with `more` after it.
fn by_cache(arguments: &str, more: &str) -> String {
    let router = format!("[\"g:1\"], router: {{type: kv_cache_aware{arguments}}}");
    edge(more).replace("[\"g:1\"]", &router)
}

#[test]
fn the_router_by_cache_has_upstreams_arguments() {
    let router = |arguments: &str, more: &str| {
        let config = good(&by_cache(arguments, more));
        assert_eq!(config.warnings, Vec::<String>::new());
        let RouterConfig::KvCacheAware(router) = pair(&config.edge.expect("an edge"))
            .generation
            .router
            .clone()
        else {
            panic!("not the router by cache");
        };
        router
    };
    let default = KvCacheAwareConfig::default();
    let spelt = ", use_tokens: false, max_batch_size: 64, tokens_per_block: null, load_cap: .inf, \
                 custom_tokenizer: null, use_harmony: null, model_path: null, load_weight: 0.25";
    assert_eq!(router("", ""), default);
    assert_eq!(router(spelt, ""), default);
    let set = ", max_batch_size: 8, tokens_per_block: 16, track_routed_blocks: false, \
               load_weight: 1, load_cap: 0.5, tokenizer_dir: /models/m";
    let expected = KvCacheAwareConfig {
        max_batch_size: 8,
        tokens_per_block: Some(16),
        track_routed_blocks: false,
        load_weight: 1.0,
        load_cap: 0.5,
        tokenizer_dir: Some("/models/m".into()),
    };
    assert_eq!(router(set, ""), expected);
    let engine = "max_batch_size: 128\nkv_cache_config: {tokens_per_block: 64}";
    let inherited = router("", engine);
    assert_eq!(inherited.max_batch_size, 128);
    assert_eq!(inherited.tokens_per_block, Some(64));
    assert_eq!(router(set, engine), expected);
}

#[test]
fn the_router_by_cache_says_what_it_does_not_do() {
    for (argument, what) in [
        ("use_tokens: true", "requests in flight"),
        ("use_harmony: true", "chat template"),
        ("custom_tokenizer: mine", "no Python code"),
        ("model_path: /m", "tokenizer_dir"),
        ("match_threshold: 0.5", "no argument of this type"),
    ] {
        warned(&by_cache(&format!(", {argument}"), ""), what);
    }
    for (argument, what) in [
        ("load_cap: -1", "at least 0"),
        ("load_cap: .nan", "at least 0"),
        ("load_weight: .inf", "at least 0"),
        ("max_batch_size: 0", "between 1"),
        ("tokens_per_block: 0", "between 1"),
        ("tokenizer_dir: ''", "is empty"),
    ] {
        let name = argument.split(':').next().unwrap_or_default();
        let text = by_cache(&format!(", {argument}"), "");
        bad(&text, &[&format!("generation_servers.router.{name}"), what]);
    }
}

#[test]
fn prompts_skip_their_context_leg_only_where_the_cache_is_known() {
    let with = |value: &str| by_cache("", &format!("conditional_disagg_config: {value}"));
    let length = |value: &str| {
        let config = good(&with(value)).edge.expect("an edge").conditional_disagg;
        config.map(|config| config.max_local_prefill_length)
    };
    assert_eq!(length("{max_local_prefill_length: 100}"), Some(100));
    assert_eq!(length("{}"), Some(0));
    assert_eq!(length("null"), None);
    let at = "k.yaml:3: conditional_disagg_config";
    bad(&with("{max_local_prefil_length: 1}"), &[at, "did you mean"]);
    bad(&with("{max_local_prefill_length: -1}"), &[at, "between 0"]);
    let other = edge("conditional_disagg_config: {max_local_prefill_length: 1}");
    bad(
        &other,
        &[at, "generation_servers.router.type kv_cache_aware"],
    );
}

#[test]
fn wrong_routers_say_what_to_use() {
    let at = |router: &str| format!("context_servers:\n  urls: [\"c:1\"]\n  router: {router}\n");
    bad(
        &at("{type: random}"),
        &["round_robin, load_balancing, conversation, kv_cache_aware"],
    );
    bad(
        &at("{type: conversatoin}"),
        &["did you mean `conversation`?"],
    );
    bad(
        &at("conversation"),
        &["context_servers.router", "group of keys"],
    );
    bad(
        &at("{type: conversation, match_threshold: .nan}"),
        &["router.match_threshold"],
    );
    bad(
        &at("{type: conversation, max_sessions: 0}"),
        &["router.max_sessions", "between 1"],
    );
    bad(
        &at("{type: conversation, tokens_per_block: 010}"),
        &["tokens_per_block", "octal"],
    );
    let at = |router: &str| edge("").replace("[\"c:1\"]", &format!("[\"c:1\"], router: {router}"));
    warned(
        &at("{type: conversation, max_sesions: 3}"),
        "did you mean `max_sessions`?",
    );
    warned(
        &at("{type: round_robin, use_tokens: true}"),
        "router.use_tokens",
    );
    warned(
        &at("{type: conversation, use_token_ids: true}"),
        "no tokenizer",
    );
}

#[test]
fn engine_options_are_inherited_and_must_agree() {
    let text = edge("kv_cache_config: {tokens_per_block: 16}")
        .replace("[\"c:1\"]", "[\"c:1\"], router: {type: conversation}");
    let RouterConfig::Conversation(router) = pair(&good(&text).edge.expect("an edge"))
        .context
        .router
        .clone()
    else {
        panic!("not the conversation router");
    };
    assert_eq!(router.tokens_per_block, 16);
    let conflict = "max_batch_size: 8\ncontext_servers:\n  urls: [\"c:1\"]\n  max_batch_size: 9\n";
    bad(
        conflict,
        &[
            "k.yaml:4: context_servers.max_batch_size: Parameter max_batch_size is specified both in \
             the top-level and in the context_servers section, but with different values",
        ],
    );
    let equal = edge("opt: {a: 1, b: [x, 2.0]}")
        .replace("[\"c:1\"]", "[\"c:1\"], opt: {b: [x, 2], a: 1.0}");
    good(&equal);
}

#[test]
fn unknown_keys_make_one_warning_with_suggestions() {
    let config = good(&edge("model: m\nmax_retrys: 3\nbackend: pytorch"));
    assert_eq!(config.warnings.len(), 1, "{:#?}", config.warnings);
    for part in [
        "model",
        "backend",
        "max_retrys (did you mean `max_retries`?)",
    ] {
        assert!(
            config.warnings.iter().all(|warning| warning.contains(part)),
            "{part}"
        );
    }
    bad(
        &edge("gatway: {clients: []}"),
        &["k.yaml:3: gatway", "did you mean `gateway`?"],
    );
    good(&edge("timeout: 5"));
}

#[test]
fn keys_that_do_nothing_here_are_said() {
    for key in [
        "perf_metrics_max_requests: 5",
        "return_perf_metrics: true",
        "perf_metrics_output_dir: /tmp",
        "otlp_config: {otlp_traces_endpoint: \"http://o:1\"}",
        "num_workers: 4",
        "disagg_coordinator_url: \"http://h:1\"",
    ] {
        let name = key.split(':').next().unwrap_or_default();
        warned(&edge(key), &format!("k.yaml:3: {name}: has no effect here"));
    }
    warned(
        &edge("schedule_style: sideways"),
        "schedule_style: is sideways",
    );
    let defaults = "perf_metrics_max_requests: 0\nreturn_perf_metrics: false\nnum_workers: 1\n\
                    otlp_config:\nserver_keep_alive_timeout: 10\ndisagg_cluster: null\n\
                    schedule_style: context_first\n";
    assert!(good(&edge(defaults)).warnings.is_empty());
}

#[test]
fn clients_are_kept_as_long_as_the_file_says() {
    let of = |text: &str| {
        let config = good(&edge(text));
        let again = good(&config.to_yaml_masked());
        let read = |config: Config| config.edge.map(|edge| edge.client_keep_alive.as_secs());
        let (first, second) = (read(config), read(again));
        assert_eq!(first, second);
        first
    };
    assert_eq!(of(""), Some(75), "longer than load balancers");
    assert_eq!(of("server_keep_alive_timeout:"), Some(75));
    assert_eq!(of("server_keep_alive_timeout: 10"), Some(10));
    assert_eq!(of("server_keep_alive_timeout: 0"), Some(0));
    for wrong in ["-1", "10s", "1.5", "[]"] {
        let text = edge(&format!("server_keep_alive_timeout: {wrong}"));
        bad(&text, &["k.yaml:3: server_keep_alive_timeout"]);
    }
}

#[test]
fn either_leg_may_be_first_and_an_unknown_style_is_context_first() {
    for (style, expected) in [
        ("generation_first", ScheduleStyle::GenerationFirst),
        ("context_first", ScheduleStyle::ContextFirst),
        ("null", ScheduleStyle::ContextFirst),
        ("sideways", ScheduleStyle::ContextFirst),
    ] {
        let config = good(&edge(&format!("schedule_style: {style}")));
        let read = config.edge.as_ref().map(|edge| edge.schedule_style);
        assert_eq!(read, Some(expected), "{style}");
        let again = good(&config.to_yaml_masked());
        let read = again.edge.map(|edge| edge.schedule_style);
        assert_eq!(read, Some(expected), "{style}");
    }
    bad(&edge("schedule_style: [1]"), &["k.yaml:3: schedule_style"]);
}

#[test]
fn a_chat_template_switch_is_a_real_boolean() {
    for value in ["\"true\"", "1", "null", "[true]", "maybe"] {
        let text = edge(&format!("allow_request_chat_template: {value}"));
        bad(
            &text,
            &["k.yaml:3: allow_request_chat_template", "must be a boolean"],
        );
    }
    let config = good(&edge("allow_request_chat_template: yes"));
    assert!(
        config
            .edge
            .is_some_and(|edge| edge.allow_request_chat_template)
    );
}

#[test]
fn numbers_have_ranges() {
    for key in [
        "node_id: 256",
        "node_id: -1",
        "max_retries: -1",
        "port: 65536",
        "port: 80.5",
    ] {
        let name = key.split(':').next().unwrap_or_default();
        bad(&edge(key), &[&format!("k.yaml:3: {name}: ")]);
    }
    assert_eq!(
        good(&edge("node_id: 255")).edge.map(|edge| edge.node_id),
        Some(255)
    );
    good(&edge("node_id: null"));
    bad(&edge("hostname: http://h"), &["k.yaml:3: hostname"]);
    good(&edge("hostname: '::'"));
}

#[test]
fn sub_agent_affinity_needs_a_header_that_is_free_and_a_key() {
    let header = "conversation_affinity_header_for_subagents";
    let with = |name: &str| {
        edge(&format!(
            "internal_request_auth_key: {KEY}\n{header}: {name}"
        ))
    };
    let edge_of = |text: &str| good(text).edge.expect("an edge");
    let affinity = edge_of(&with("' X-Parent '")).affinity;
    assert_eq!(affinity.parent_header.as_deref(), Some("x-parent"));
    for off in ["''", "'  '", "null", ""] {
        assert!(
            edge_of(&with(off)).affinity.parent_header.is_none(),
            "{off}"
        );
    }
    for taken in [
        "'x parent'",
        "'x:parent'",
        "naïve",
        "x-session-id",
        "X-Correlation-ID",
        "Connection",
        "transfer-encoding",
        "authorization",
        "X-TRTLLM-Subagent-Affinity-Id",
        "x-kindred-rank",
        "X-Data-Parallel-Rank",
        "host",
    ] {
        bad(&with(taken), &[&format!("k.yaml:4: {header}: is ")]);
    }
    bad(
        &edge(&format!("{header}: X-Parent")),
        &[
            "Subagent affinity requires internal_request_auth_key",
            "set internal_request_auth_key",
        ],
    );
    bad(
        &with("x\nsubagent_affinity_scope: all"),
        &["subagent_affinity_scope", "context, both"],
    );
    let affinity = edge_of(&with("x-p\nsubagent_affinity_scope: both")).affinity;
    assert_eq!(affinity.scope, AffinityScope::Both);
    warned(&edge("subagent_affinity_scope: both"), "no effect without");
    let config = good(&with("x-p\ngateway: {anonymous: owned}"));
    let [warning] = config.warnings.as_slice() else {
        panic!("{:?}", config.warnings);
    };
    assert!(warning.contains("gateway.anonymous: lets requests in"));
}

#[test]
fn the_key_is_text_from_one_place() {
    let key = |value: &str| edge(&format!("internal_request_auth_key: {value}"));
    assert_eq!(key_of(&good(&key(KEY))), Some(KEY));
    assert_eq!(key_of(&good(&key("${KEY}"))), Some(KEY));
    assert_eq!(
        key_of(&good(&key("a-${KEY}-${KEY}"))),
        Some(format!("a-{KEY}-{KEY}").as_str())
    );
    assert_eq!(
        key_of(&good(&key("$${KEY}-and-more-text"))),
        Some("${KEY}-and-more-text")
    );
    assert_eq!(key_of(&good(&key("null"))), None);
    warned(&key("short"), "shorter than 16 bytes");
    warned(&key("change-me-please-please"), "example");
    let at = "k.yaml:3: internal_request_auth_key";
    bad(&key("''"), &[at, "is empty"]);
    bad(&key("${EMPTY}"), &[at, "is empty"]);
    bad(&key("${NOT_SET}"), &[at, "NOT_SET", "not set"]);
    bad(&key("'********'"), &[at, "mask"]);
    for wrong in [
        "1234567890123456",
        "true",
        "[hunter2hunter2]",
        "{hunter2hunter2: 1}",
        "'${hunter2'",
        "'${hunter2 x}'",
    ] {
        let message = bad(&key(wrong), &[at]);
        assert!(
            !message.contains("hunter2") && !message.contains("1234567"),
            "{message}"
        );
    }
}

#[test]
fn the_key_can_stand_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    write("good.key", format!("{KEY}\n").as_bytes());
    write("dos.key", format!("{KEY}\r\n").as_bytes());
    write("empty.key", b"\n");
    write("binary.key", b"\xff\xfe");
    write("big.key", &vec![b'x'; 70_000]);
    let load = |file: &str| {
        let text = edge(&format!("internal_request_auth_key_file: {file}"));
        let path = folder.path().join("k.yaml");
        std::fs::write(&path, text).expect("a file");
        crate::config::Config::load(&path)
    };
    for file in ["good.key", "dos.key"] {
        assert_eq!(key_of(&load(file).expect("a key")), Some(KEY));
    }
    for (file, why) in [
        ("empty.key", "is empty"),
        ("binary.key", "UTF-8"),
        ("big.key", "64 KiB"),
        ("none.key", "cannot be read"),
        (".", "directory"),
    ] {
        let message = load(file).expect_err(file).to_string();
        assert!(
            message.contains("k.yaml:3: internal_request_auth_key_file"),
            "{message}"
        );
        assert!(message.contains(why), "{message}");
    }
    let both =
        format!("internal_request_auth_key: {KEY}\ninternal_request_auth_key_file: good.key");
    bad(
        &edge(&both),
        &["k.yaml:4: internal_request_auth_key_file", "keep one"],
    );
}
