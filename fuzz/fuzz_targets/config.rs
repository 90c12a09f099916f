//! The configuration loader: no text makes it panic, and no secret is printed.
#![no_main]

use std::path::Path;

use kindred::config::Config;
use libfuzzer_sys::fuzz_target;

/// The secret of the seeds.
const SECRET: &str = "a-secret-that-nobody-prints";

fuzz_target!(|text: &str| {
    // What names a file would be read from this machine.
    if text.contains("file") {
        return;
    }
    match Config::from_yaml(text, Path::new("/nowhere/kindred.yaml")) {
        Ok(config) => {
            // As a name or a path it is no secret.
            if text.matches(SECRET).count() == 1
                && text.contains(&format!("internal_request_auth_key: {SECRET}"))
            {
                assert!(!config.to_yaml_masked().contains(SECRET));
                assert!(!format!("{config:?}").contains(SECRET));
            }
        }
        Err(error) => {
            if text.contains(&format!("internal_request_auth_key: {SECRET}\n")) {
                assert!(!error.to_string().contains(SECRET));
            }
        }
    }
});
