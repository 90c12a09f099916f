//! Every test that the threat model names is there.

use std::{fs, path::Path};

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let mut named = 0;
    for line in text.lines().filter(|line| line.starts_with('|')) {
        for test in line.split('`').filter(|word| word.contains(".rs::")) {
            let (file, name) = test.split_once("::").unwrap();
            let source = fs::read_to_string(root.join(file))
                .unwrap_or_else(|error| panic!("{test}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "{test}");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} tests are named");
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let is_head = line.starts_with("| threat") || line.starts_with("| ---");
        assert!(is_head || line.contains(".rs::"), "no test shows: {line}");
    }
}
