//! The configuration loader: no text makes it panic, no secret is shown, and what is printed of a
//! configuration is that configuration.
#![no_main]

use std::path::Path;

use kindred::config::Config;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};

/// The secret of the seeds.
const SECRET: &str = "a-secret-that-nobody-prints";
const MASK: &str = "********";
/// Where secrets stand, or are put by mistake; `*` is any item of a list.
const PLACES: [&[&str]; 16] = [
    &["internal_request_auth_key"],
    &["internal_request_auth_key_file"],
    &["internal_request_auth_keys"],
    &["gateway", "delegation", "key"],
    &["gateway", "delegation", "key_file"],
    &["gateway", "delegation", "keys"],
    &["gateway", "clients", "*", "api_keys_sha256"],
    &["gateway", "clients", "*", "keys"],
    &["gateway", "clients", "*", "api_keys"],
    &["disagg_cluster", "auth_token"],
    &["disagg_cluster", "auth_token_file"],
    &["disagg_cluster", "auth_tokens"],
    &["worker_filters", "*", "internal_request_auth_key"],
    &["worker_filters", "*", "internal_request_auth_key_file"],
    &["worker_filters", "*", "internal_request_auth_keys"],
    &["worker_filters", "*", "auth_token"],
];
/// Addresses, which may have a password in them.
const ADDRESSES: [&[&str]; 5] = [
    &["disagg_cluster", "cluster_uri"],
    &["gateway", "jwt", "jwks_url"],
    &["context_servers", "urls", "*"],
    &["generation_servers", "urls", "*"],
    &["aggregated_servers", "urls", "*"],
];

fuzz_target!(|text: &str| {
    // What names a file would be read from this machine.
    if text.contains("file") {
        return;
    }
    let loaded = Config::from_yaml(text, Path::new("/nowhere/kindred.yaml"));
    let shown = match &loaded {
        Ok(config) => format!("{}\n{config:?}", config.to_yaml_masked()),
        Err(error) => format!("{error}\n{error:?}"),
    };
    assert!(!shown.contains(SECRET) || may_show(text), "{shown}");
    if let Ok(config) = loaded {
        reads_again(&config);
    }
});

/// What is printed loads again once the masks are replaced, and comes to the same.
fn reads_again(config: &Config) {
    let printed = config.to_yaml_masked();
    let unmasked = printed.replace(MASK, SECRET);
    let again = Config::from_yaml(&unmasked, Path::new("/nowhere/kindred.yaml"));
    let again = again.unwrap_or_else(|error| panic!("{error}\n--- of\n{printed}"));
    assert_eq!(
        again.to_yaml_masked().replace(SECRET, MASK),
        printed.replace(SECRET, MASK)
    );
}

/// Whether the secret stands where no secret does. A text that is no YAML is shown nothing of.
fn may_show(text: &str) -> bool {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        merge_keys: MergeKeyPolicy::Merge,
        leading_zero_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
    };
    let tree = serde_saphyr::from_str_with_options(text, options);
    tree.is_ok_and(|tree: Value| shows(&tree, &mut Vec::new()))
}

fn shows<'a>(value: &'a Value, path: &mut Vec<&'a str>) -> bool {
    if PLACES.iter().any(|place| is_at(path, place)) {
        return false;
    }
    let mut within = |name: &'a str, value: &'a Value| {
        path.push(name);
        let shows = shows(value, path);
        path.pop();
        shows
    };
    match value {
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| name.contains(SECRET) || within(name, value)),
        Value::Array(items) => items.iter().any(|item| within("*", item)),
        Value::String(text) if text.contains(SECRET) => {
            let is_password = text.contains(&format!(":{SECRET}@"));
            !(is_password && ADDRESSES.iter().any(|place| is_at(path, place)))
        }
        _ => false,
    }
}

fn is_at(path: &[&str], place: &[&str]) -> bool {
    path.len() == place.len() && path.iter().zip(place).all(|(a, b)| a == b)
}
