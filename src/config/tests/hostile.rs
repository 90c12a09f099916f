//! Files that are broken, or meant to break: an error with a place, soon, and never a panic.

use std::{fmt::Write, path::Path};

use super::{KEY, bad, edge, good, load};
use crate::config::Config;

#[test]
fn an_alias_bomb_is_refused() {
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (level, name) in ('a'..='k').zip('b'..='l') {
        let aliases = vec![format!("*{level}"); 10].join(", ");
        let _ = writeln!(bomb, "{name}: &{name} [{aliases}]");
    }
    bad(&bomb, &["k.yaml:", "aliases"]);
    bad("a: &a [*a]\n", &["k.yaml:1:"]);
    bad("a: &a {b: 1}\nc: {<<: *d}\n", &["k.yaml:2:", "anchor"]);
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        let deep = format!("x: {}{}", open.repeat(100_000), close.repeat(100_000));
        bad(&deep, &["k.yaml:1:"]);
    }
    let deep: String = (0..500).fold(String::new(), |mut text, depth| {
        let _ = writeln!(text, "{}a:", " ".repeat(depth));
        text
    });
    bad(&deep, &["k.yaml:33", "32 levels"]);
}

#[test]
fn many_keys_and_long_ones_are_told_in_few_words() {
    let mut text = edge("");
    for index in 0..5_000 {
        let _ = writeln!(text, "option_{index}: {index}");
    }
    let warnings = good(&text).warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings
            .iter()
            .all(|warning| warning.len() < 5_000 && warning.contains("more"))
    );
    let long = format!("limits: {{? {} : 1}}", "x".repeat(1_000_000));
    let message = bad(&edge(&long), &["limits.xxx"]);
    assert!(message.len() < 1_000);
    bad(
        &format!("a: {}", "x".repeat(5 << 20)),
        &["larger than 4 MiB"],
    );
    let many: String = (0..500).fold("limits:\n".to_owned(), |mut text, index| {
        let _ = writeln!(text, "  q{index}: 1");
        text
    });
    let message = bad(&edge(&many), &["and 450 more problems"]);
    assert_eq!(message.lines().count(), 51);
}

#[test]
fn a_key_given_twice_is_named() {
    bad(
        "port: 1\nhostname: h\nport: 2\n",
        &["k.yaml:3: port: a key is given twice"],
    );
    bad(
        "limits:\n  max_body: 1KiB\n  max_body: 2KiB\n",
        &["k.yaml:3: max_body"],
    );
    bad(
        "port: 1\n!!str port: 2\n",
        &["k.yaml:2: port: a key is given twice"],
    );
}

#[test]
fn wrong_types_are_named() {
    for (text, place) in [
        ("port: [1]", "k.yaml:3: port: must be a whole number"),
        (
            "port: '8000'",
            "k.yaml:3: port: must be a whole number, not text; remove the quotes",
        ),
        ("port: 010", "k.yaml:3: port: begins with a zero"),
        ("port: no", "k.yaml:3: port: must be a whole number"),
        ("port:", "k.yaml:3: port: has no value"),
        (
            "port: 99999999999999999999999",
            "k.yaml:3: port: must be a whole number",
        ),
        ("hostname: no", "k.yaml:3: hostname: must be text"),
        (
            "hostname: 7",
            "k.yaml:3: hostname: must be text, not a number",
        ),
        (
            "hostname: {a: b}",
            "k.yaml:3: hostname: must be text, not a group of keys",
        ),
        (
            "gen_tokids_ctxbytes: 'yes'",
            "k.yaml:3: gen_tokids_ctxbytes: must be a boolean",
        ),
        ("gateway: no", "k.yaml:3: gateway: must be a group of keys"),
        (
            "gateway: {clients: {a: b}}",
            "k.yaml:3: gateway.clients: must be a list",
        ),
        (
            "gateway: {clients: [a]}",
            "k.yaml:3: gateway.clients[0]: must be a group of keys",
        ),
        (
            "worker_filters: [5]",
            "k.yaml:3: worker_filters[0]: must be a group of keys",
        ),
    ] {
        bad(&edge(text), &[place]);
    }
    bad(
        "context_servers: [a]",
        &["k.yaml:1: context_servers: must be a group of keys"],
    );
    bad(
        "context_servers: {urls: a}",
        &["k.yaml:1: context_servers.urls: must be a list"],
    );
    bad(
        "context_servers: {urls: [8000]}",
        &["k.yaml:1: context_servers.urls[0]: must be text"],
    );
}

#[test]
fn marks_and_line_ends_of_other_systems_are_read() {
    let text = edge("port: 1\nlimits: {max_body: 1MiB}");
    good(&format!("\u{feff}{text}"));
    good(&text.replace('\n', "\r\n"));
    bad(
        &edge("port: 1\nhostname: [").replace('\n', "\r\n"),
        &["k.yaml:"],
    );
    bad(
        &text.replace("port: 1", "port: x").replace('\n', "\r\n"),
        &["k.yaml:3: port"],
    );
    good(&format!("---\n{text}"));
    bad(
        &format!("{text}---\nport: 2\n"),
        &["more than one YAML document"],
    );
    bad("context_servers:\n\turls: []\n", &["k.yaml:2", "tabs"]);
}

#[test]
fn what_is_no_configuration_is_refused() {
    for empty in ["", "\n\n", "# nothing\n", "---\n", "null", "\u{feff}"] {
        bad(empty, &["k.yaml: is empty"]);
    }
    bad("a\0b: 1", &["k.yaml:1: is not text"]);
    bad("hello", &["k.yaml: must be a group of keys"]);
    bad("- a\n", &["k.yaml: must be a group of keys"]);
    bad("5", &["k.yaml: must be a group of keys"]);
    bad("? {a: b}\n: c\n", &["k.yaml:1"]);
    bad("~: c\n", &["k.yaml:1"]);
    bad("a: !!python/object:os.system x\n", &["k.yaml:1", "tag"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let fails = |path: &Path, part: &str| {
        let message = Config::load(path)
            .expect_err("no configuration")
            .to_string();
        assert!(
            message.starts_with(&path.display().to_string()),
            "{message}"
        );
        assert!(message.contains(part), "{message}");
    };
    fails(&folder.path().join("none.yaml"), "cannot be opened");
    fails(folder.path(), "directory");
    let binary = folder.path().join("binary.yaml");
    std::fs::write(&binary, b"port: 1\n\xff\xfe\x00\x01").expect("a file");
    fails(&binary, "not UTF-8 text from line 2");
    let big = folder.path().join("big.yaml");
    std::fs::write(&big, vec![b'#'; 5 << 20]).expect("a file");
    fails(&big, "larger than 4 MiB");
}

#[test]
fn a_line_that_does_not_parse_does_not_show_its_secret() {
    for line in [
        "internal_request_auth_key: \"hunter2hunter2",
        "internal_request_auth_key: hunter2: hunter2",
        "internal_request_auth_key: [hunter2",
        "internal_request_auth_key: *hunter2hunter2",
        "internal_request_auth_key: !hunter2 x",
        "internal_request_auth_key: &hunter2hunter2",
        "internal_request_auth_key: @hunter2hunter2",
        "internal_request_auth_key: %hunter2",
        "internal_request_auth_key: \"\\qhunter2\"",
        "internal_request_auth_key: |hunter2",
        "internal_request_auth_key: {hunter2, hunter2}",
        "internal_request_auth_key: hunter2\n  - x\n b: c",
        "internal_request_auth_key hunter2hunter2",
        "internal_request_auth_key:hunter2hunter2",
        "internal_request_auth_key_file: hunter2hunter2",
        "internal_request_auth_key: !!int hunter2",
        "internal_request_auth_key: !!bool hunter2",
        "internal_request_auth_key: !!binary hunter2",
    ] {
        if let Err(error) = load(&edge(line)) {
            let message = format!("{error}\n{error:?}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

#[test]
fn an_escape_in_a_key_cannot_reach_the_terminal() {
    let message = bad(&edge("limits: {\"\\e[31mred\": 1}"), &["limits."]);
    assert!(!message.contains('\u{1b}'), "{message:?}");
    let message = bad(
        &edge("telemetry: {log: \"a=\\e[31m=\\n\"}"),
        &["telemetry.log"],
    );
    assert!(
        !message.contains('\u{1b}') && message.lines().count() == 1,
        "{message:?}"
    );
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = load(&text);
    }

    #[test]
    fn no_value_of_a_known_key_panics(
        index in 0_usize..32,
        value in "[-\\[\\]{}:,&*!|>'\"%@`0-9a-z~ .$\n]{0,40}",
    ) {
        use crate::config::raw::{File, Section};
        let key = File::KEYS.get(index % File::KEYS.len()).copied().unwrap_or_default();
        let _ = load(&edge(&format!("{key}: {value}")));
    }

    #[test]
    fn no_damage_to_a_good_file_panics_or_shows_its_key(
        at in 0_usize..400,
        byte in proptest::char::any(),
    ) {
        let mut text = edge(&format!("internal_request_auth_key: {KEY}\nlimits: {{max_body: 1MiB}}"));
        let at = at.min(text.len());
        if text.is_char_boundary(at) {
            text.insert(at, byte);
        }
        if let Err(error) = load(&text) {
            let half = KEY.get(..16).unwrap_or(KEY);
            proptest::prop_assert!(!error.to_string().contains(half), "{}", error);
        }
    }
}
