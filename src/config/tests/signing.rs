//! Keys, lists of keys, signing profiles, and the numbers in request ids.

use secrecy::ExposeSecret;

use super::{KEY, bad, edge, good, pair, warned};
use crate::{
    config::{Config, ConfigError, check, secret::MASK},
    wire::signature::SigningProfile,
};

const OLD: &str = "fedcba9876543210fedcba9876543210";

fn keys_of(config: &Config) -> Vec<&str> {
    let edge = config.edge.as_ref().expect("an edge");
    let keys = edge.internal_request_auth_keys.iter();
    keys.map(ExposeSecret::expose_secret).collect()
}

fn filter(more: &str) -> String {
    format!("worker_filters: [{{listen: 127.0.0.1:9001, worker: 'w:8001', {more}}}]")
}

#[test]
fn a_list_of_keys_keeps_its_order() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("old.key"), format!("{OLD}\n")).expect("a file");
    let text =
        edge("internal_request_auth_keys: ['${KEY}', {file: old.key}, third-key-of-the-list]");
    let origin = folder.path().join("k.yaml");
    let environment = |name: &str| (name == "KEY").then(|| KEY.to_owned());
    let config =
        check::resolve(&text, &origin, &environment).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(keys_of(&config), [KEY, OLD, "third-key-of-the-list"]);
    assert_eq!(config.warnings, Vec::<String>::new());
    let printed = config.to_yaml_masked();
    assert_eq!(printed.matches(MASK).count(), 3, "{printed}");
    assert!(!printed.contains(KEY) && !printed.contains(OLD) && !printed.contains("third"));
    assert!(!format!("{config:?}").contains("third"));
    let again = good(&printed.replace(MASK, KEY));
    assert_eq!(again.to_yaml_masked(), printed);
}

#[test]
fn a_filter_takes_the_files_list_or_its_own() {
    let list = format!("internal_request_auth_keys: [{KEY}, {OLD}]");
    let count = |text: &str| {
        let config = good(text);
        let filter = config.worker_filters.into_iter().next().expect("a filter");
        filter.internal_request_auth_keys.len()
    };
    assert_eq!(count(&format!("{list}\n{}", filter(""))), 2);
    let own = filter(&format!("internal_request_auth_key: {KEY}"));
    assert_eq!(count(&format!("{list}\n{own}")), 1);
    assert_eq!(count(&filter(&list)), 2);
    assert_eq!(count(&filter("internal_request_auth_keys: null")), 0);
}

#[test]
fn the_forms_exclude_each_other() {
    for (first, second) in [
        (
            "internal_request_auth_key: a",
            "internal_request_auth_keys: [b]",
        ),
        (
            "internal_request_auth_key_file: a",
            "internal_request_auth_keys: [b]",
        ),
        (
            "internal_request_auth_key: a",
            "internal_request_auth_key_file: b",
        ),
    ] {
        let name = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        let what = format!("{}: is given besides ", name(second));
        bad(&edge(&format!("{first}\n{second}")), &[&what, &name(first)]);
        bad(&filter(&format!("{first}, {second}")), &[&what]);
    }
}

#[test]
fn a_bad_list_is_refused_without_showing_it() {
    let nine = [KEY; 9].join(", ");
    for (list, what) in [
        ("[]".to_owned(), "has 0 keys; it takes 1 to 8"),
        (format!("[{nine}]"), "has 9 keys; it takes 1 to 8"),
        (KEY.to_owned(), "must be a list"),
        (format!("[{KEY}, '']"), "keys[1]: is empty"),
        (format!("[{KEY}, null]"), "keys[1]: has no value"),
        (format!("['{MASK}']"), "keys[0]: is the mask"),
        (
            format!("[{KEY}: {OLD}]"),
            "keys[0]: must be a key or {file: PATH}",
        ),
        (
            format!("[{{file: a, {KEY}: b}}]"),
            "keys[0]: must be a key or {file: PATH}",
        ),
        (
            format!("[{{file: {KEY}}}]"),
            "keys[0].file: names a file that cannot be read",
        ),
        (format!("[[{KEY}]]"), "keys[0]: must be text, not a list"),
        ("['${NOT_SET}']".to_owned(), "NOT_SET"),
    ] {
        let message = bad(
            &edge(&format!("internal_request_auth_keys: {list}")),
            &[what],
        );
        assert!(
            !message.contains(KEY) && !message.contains(OLD),
            "{message}"
        );
    }
    warned(
        &edge("internal_request_auth_keys: [short]"),
        "keys[0]: is shorter",
    );
}

#[test]
fn a_profile_belongs_to_a_fleet_or_a_filter() {
    let profiles = |text: &str| {
        let edge = good(text).edge.expect("an edge");
        [
            pair(&edge).context.signing_profile,
            pair(&edge).generation.signing_profile,
        ]
    };
    assert_eq!(profiles(&edge("")), [SigningProfile::Trtllm; 2]);
    let dynamo = edge("").replace("\"c:1\"]", "\"c:1\"], signing_profile: Dynamo");
    assert_eq!(
        profiles(&dynamo),
        [SigningProfile::Dynamo, SigningProfile::Trtllm]
    );
    assert!(good(&dynamo).warnings.is_empty());
    let filters = |more: &str| {
        let config = good(&format!(
            "internal_request_auth_key: {KEY}\n{}",
            filter(more)
        ));
        config
            .worker_filters
            .first()
            .map(|filter| filter.signing_profile)
    };
    assert_eq!(
        filters("signing_profile: dynamo"),
        Some(SigningProfile::Dynamo)
    );
    assert_eq!(filters(""), Some(SigningProfile::Trtllm));
    let misspelt = edge("").replace("\"c:1\"]", "\"c:1\"], signing_profile: dinamo");
    bad(
        &misspelt,
        &["context_servers.signing_profile", "did you mean `dynamo`?"],
    );
    bad(
        &edge("signing_profile: dynamo"),
        &["signing_profile: is a key of a fleet"],
    );
}

#[test]
fn what_dynamo_does_not_sign_is_said() {
    let text = edge(&format!(
        "internal_request_auth_key: {KEY}\nsubagent_affinity_scope: both\n\
         conversation_affinity_header_for_subagents: x-p\n"
    ));
    let dynamo = text.replace("\"g:1\"]", "\"g:1\"], signing_profile: dynamo");
    warned(&dynamo, "generation_servers.signing_profile: is dynamo");
    let generation = filter("server_role: generation, signing_profile: dynamo");
    warned(
        &generation,
        "this filter will refuse every request that names a parent",
    );
}

fn with_process(more: &str, variable: Option<&str>) -> Result<Config, ConfigError> {
    let environment = |name: &str| {
        variable
            .filter(|_| name == "TRTLLM_DISAGG_WORKER_PROCESS_ID")
            .map(str::to_owned)
    };
    check::resolve(more, std::path::Path::new("k.yaml"), &environment)
}

#[test]
fn the_process_id_is_the_files_or_the_environments() {
    for (more, variable, expected) in [
        ("", None, 0),
        ("", Some("63"), 63),
        ("process_id: 5", Some("63"), 5),
        ("process_id: 5", Some("64"), 5),
        ("process_id: null", Some(" 7 "), 7),
    ] {
        let config = with_process(&edge(more), variable).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            config.edge.map(|edge| edge.process_id),
            Some(expected),
            "{more} {variable:?}"
        );
    }
    for variable in ["64", "-1", "", "x", "1.0"] {
        let error = with_process(&edge(""), Some(variable))
            .expect_err(variable)
            .to_string();
        assert!(
            error.contains("TRTLLM_DISAGG_WORKER_PROCESS_ID is"),
            "{error}"
        );
    }
    assert!(
        with_process(&filter(""), Some("x")).is_ok(),
        "only an edge gives out ids"
    );
    bad(&edge("process_id: 64"), &["k.yaml:3: process_id: "]);
}
