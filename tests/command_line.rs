//! The command line that runs and checks: `serve`, `check`, `demo`, help and exit codes.

mod support;

use std::{fs, path::Path, process::Stdio};

use support::{Kindred, command, fleet, raw, run};

const SECRET: &str = "a-secret-that-is-nowhere-to-be-seen-0123";

/// A file in a folder of its own.
fn file(yaml: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kindred.yaml");
    fs::write(&path, yaml).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn edge(more: &str) -> String {
    let listen = "127.0.0.1:8001".parse().unwrap();
    fleet::yaml(&[listen], &["127.0.0.1:8003".parse().unwrap()], more)
}

#[test]
fn the_shipped_examples_are_good_and_so_is_what_is_printed_of_them() {
    let mut seen = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("conf")).unwrap() {
        let path = entry.unwrap().path();
        let (code, out, err) = run(&["check", "--config", path.to_str().unwrap()], "");
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.contains("good"), "{out}");
        let (code, printed, err) = run(
            &["check", "--print", "--config", path.to_str().unwrap()],
            "",
        );
        assert_eq!(code, 0, "{err}");
        assert_loads_again(&printed);
        seen += 1;
    }
    assert!(seen >= 3, "{seen} examples");
}

#[test]
fn an_upstream_file_is_good_as_it_is() {
    let yaml = "hostname: localhost\nport: 8000\nbackend: pytorch\ncontext_servers:\n  num_instances: 1\n  \
                tensor_parallel_size: 4\n  urls:\n    - \"localhost:8001\"\ngeneration_servers:\n  num_instances: 1\n  \
                urls:\n    - \"localhost:8002\"\n";
    for option in ["--config", "-c", "--config_file"] {
        let (_folder, path) = file(yaml);
        let (code, out, err) = run(&["check", option, &path], "");
        assert_eq!(code, 0, "{out}{err}");
        assert!(
            err.contains("backend"),
            "unknown keys are listed in a warning: {err}"
        );
    }
}

#[test]
fn a_bad_file_is_refused_by_check_and_serve_with_file_line_and_key() {
    for (more, line, key) in [
        ("limits: {max_bodie: 1MiB}", 6, "limits.max_bodie"),
        ("subagent_affinity_scope: all", 6, "subagent_affinity_scope"),
        ("timeouts:\n  connect: soon", 7, "timeouts.connect"),
        (
            "conversation_affinity_header_for_subagents: X-Parent",
            6,
            "conversation_affinity_header_for_subagents",
        ),
        ("max_retries: -1", 6, "max_retries"),
        ("telemetry: {debug_headers: [", 6, ""),
    ] {
        let (_folder, path) = file(&edge(more));
        for command in ["check", "serve"] {
            let (code, out, err) = run(&[command, "--config", &path], "");
            assert_eq!(code, 2, "{more}: {out}{err}");
            assert_eq!(out, "", "{more}");
            let place = format!("{path}:{line}");
            assert!(err.contains(&place) && err.contains(key), "{more}: {err}");
            assert!(!err.contains("panicked"), "{err}");
        }
    }
}

#[test]
fn a_misspelt_key_gets_a_suggestion_and_every_problem_is_named_at_once() {
    let (_folder, path) = file(&edge("limits: {max_bodie: 1MiB}\ntimeouts: {conect: 1s}"));
    let (code, _, err) = run(&["check", "--config", &path], "");
    assert_eq!(code, 2);
    for part in ["max_bodie", "max_body", "conect", "connect"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn an_affinity_header_without_a_key_is_refused_and_says_why() {
    let (_folder, path) = file(&edge(
        "conversation_affinity_header_for_subagents: X-Parent",
    ));
    let (code, _, err) = run(&["serve", "--config", &path], "");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("internal_request_auth_key"), "{err}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    for command in ["check", "serve"] {
        let (code, out, err) = run(&[command, "--config", "/nowhere/kindred.yaml"], "");
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.contains("/nowhere/kindred.yaml"), "{err}");
    }
}

#[test]
fn an_address_in_use_is_an_error_that_names_its_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let yaml = edge("").replace("port: 0", &format!("port: {port}"));
    let (_folder, path) = file(&yaml);
    let (code, _, err) = run(&["serve", "--config", &path], "");
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("port") && err.contains(&port.to_string()),
        "{err}"
    );
}

#[test]
fn what_print_prints_hides_secrets_and_loads_again() {
    let more = format!(
        "internal_request_auth_key: {SECRET}\ngateway: {{anonymous: none}}\ntimeouts: {{connect: 1500ms}}\n\
         limits: {{max_body: 5MiB}}\nworker_filters: [{{listen: '127.0.0.1:9001', worker: '127.0.0.1:8101', \
         internal_request_auth_key: other-{SECRET}}}]"
    );
    let (_folder, path) = file(&edge(&more));
    let (code, printed, err) = run(&["check", "--config", &path, "--print"], "");
    assert_eq!(code, 0, "{err}");
    assert!(
        !printed.contains(SECRET) && !err.contains(SECRET),
        "{printed}{err}"
    );
    assert!(
        printed.contains("connect: 1s 500ms") || printed.contains("1500ms"),
        "{printed}"
    );

    assert_loads_again(&printed);
}

/// Asserts that a printed file, its masks filled in, means what it meant.
fn assert_loads_again(printed: &str) {
    let filled = printed.replace("\"********\"", SECRET);
    assert_ne!(filled, printed, "the key is shown as a mask");
    let (_folder, path) = file(&filled);
    let (code, again, err) = run(&["check", "--config", &path, "--print"], "");
    assert_eq!(code, 0, "{err}");
    assert_eq!(again, printed);
}

#[test]
fn a_mask_is_never_taken_for_a_key() {
    let (_folder, path) = file(&edge("internal_request_auth_key: '********'"));
    let (code, _, err) = run(&["check", "--config", &path], "");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("internal_request_auth_key"), "{err}");
}

#[test]
fn the_demo_prints_where_it_is_and_three_lines_to_paste() {
    let mut demo = Kindred::demo(&[]);
    let lines: Vec<&str> = demo
        .announced
        .lines()
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert_eq!(lines.len(), 3, "{}", demo.announced);
    for line in &lines {
        assert!(line.contains(&demo.url("/v1/chat/completions")), "{line}");
    }
    assert!(
        lines[1].contains("X-Dynamo-Parent-Session-ID: parent-1"),
        "{}",
        lines[1]
    );
    assert!(lines[2].contains("x-trtllm-"), "{}", lines[2]);
    assert_ne!(demo.edge().port(), 0);
    assert_eq!(demo.admin("/readyz").status, 200);
    demo.signal("INT");
    assert_eq!(demo.exit_code(), Some(0), "Ctrl-C ends it cleanly");
}

#[test]
fn serve_runs_an_upstream_file_and_says_once_that_it_trusts_the_parent_header() {
    let fleet = fleet::start(1, 1, |_| {});
    let more = format!(
        "internal_request_auth_key: {SECRET}\nconversation_affinity_header_for_subagents: X-Parent"
    );
    let yaml = fleet
        .yaml(&more)
        .replace("admin: {listen: '127.0.0.1:0'}\n", "");
    let kindred = Kindred::serve(&yaml);
    let chat = support::chat("hello").to_string();
    let headers = [("x-session-id", "a"), ("x-parent", "b")];
    let answer = raw::post(kindred.edge(), "/v1/chat/completions", &headers, &chat);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let log = kindred.log();
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(log.contains("gateway") && log.contains("trusted"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn serve_ends_cleanly_on_ctrl_c() {
    let mut kindred = Kindred::serve(&edge(""));
    assert_eq!(raw::get(kindred.edge(), "/nowhere").status, 404);
    kindred.signal("INT");
    assert_eq!(kindred.exit_code(), Some(0));
}

#[test]
fn help_is_for_people_and_wrong_usage_is_exit_code_2() {
    let (code, out, err) = run(&["--help"], "");
    assert_eq!((code, err.as_str()), (0, ""));
    for command in [
        "serve",
        "check",
        "demo",
        "sign",
        "verify",
        "replay",
        "conformance",
    ] {
        assert!(out.contains(command), "{command}: {out}");
        let (code, out, _) = run(&[command, "--help"], "");
        assert_eq!(code, 0, "{command}");
        assert!(out.contains("Usage: kindred"), "{out}");
    }
    let (code, out, _) = run(&["--version"], "");
    assert_eq!(
        (code, out.trim()),
        (0, concat!("kindred ", env!("CARGO_PKG_VERSION")))
    );
    for wrong in [
        &[][..],
        &["frobnicate"],
        &["serve"],
        &["check", "--config"],
        &["replay", "cards"],
        &["demo", "--port", "70000"],
        &["demo", "--scope", "all"],
    ] {
        let (code, out, err) = run(wrong, "");
        assert_eq!((code, out.as_str()), (2, ""), "{wrong:?}");
        assert!(err.contains("--help"), "{wrong:?}: {err}");
    }
}

#[test]
fn a_reader_that_leaves_makes_nothing_panic() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/kindred.yaml");
    let line = r#"{"name":"a","key":"k","encoded_opaque_state":"s","ctx_info_endpoint":null}"#;
    let scenarios = fs::read_to_string(format!("{vectors}/adp.json")).unwrap();
    for (arguments, input) in [
        (&["sign"][..], line.to_owned()),
        (&["sign"], format!("{line}\n").repeat(10_000)),
        (&["verify"], format!("{line}\n").repeat(10_000)),
        (&["replay", "adp"], scenarios),
        (&["conformance", vectors], String::new()),
        (&["check", "--config", good], String::new()),
        (&["check", "--print", "--config", good], String::new()),
        (&["--help"], String::new()),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = command(arguments)
            .stdin(Stdio::piped())
            .stdout(writer)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The program may end before it has read everything.
        let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(!err.contains("panicked"), "{arguments:?}: {err}");
        assert!(
            matches!(output.status.code(), Some(0..=2)),
            "{arguments:?}: {output:?}"
        );
    }
}
