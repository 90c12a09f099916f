//! The failures of docs/failures.md, run as they stand there against the demo.

mod support;

use std::process::Command;

use support::{Kindred, raw};

/// Runs a line in a shell.
fn run(line: &str) -> String {
    let output = Command::new("bash").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_lines_of_the_document_show_what_they_say() {
    let demo = Kindred::demo(&[]);
    let document = include_str!("../docs/failures.md");
    let mut shown = 0;
    for block in document.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let mut last = String::new();
        for line in block.lines() {
            if let Some(words) = line.strip_prefix("# ") {
                for word in words.split(' ') {
                    assert!(last.contains(word), "no {word} in {last}");
                    shown += 1;
                }
                continue;
            }
            let line = line
                .replace("127.0.0.1:8000", &demo.edge().to_string())
                .replace("127.0.0.1:9464", &demo.admin.unwrap().to_string());
            last = run(&line);
        }
    }
    assert!(shown >= 6, "{shown}");
    demo.assert_idle();
}

#[test]
fn an_order_that_makes_no_sense_is_refused_in_words() {
    let demo = Kindred::demo(&[]);
    let order = |query: &str| {
        let line =
            format!("POST /demo/faults?{query} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
        raw::send(demo.admin.unwrap(), line.as_bytes())
    };
    for (query, words) in [
        (
            "",
            "worker is one of context-0, context-1, generation-0, generation-1",
        ),
        ("worker=context-7&faults=reset", "worker is one of"),
        ("worker=context-0&faults=explode", "known are delay=250ms"),
        ("worker=context-0&count=many", "count is not a number"),
        ("worker=context-0&health=odd", "well, unwell or silent"),
        ("worker=context-0&fault=reset", "fault is not known"),
    ] {
        let answer = order(query);
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text().contains(words), "{query}: {}", answer.text());
    }
    assert_eq!(order("worker=context-0&count=3&faults=reset").status, 200);
    let told = demo.admin("/demo/faults").json();
    assert_eq!(told["pending"]["context-0"], 3);
    assert_eq!(told["pending"]["context-1"], 0);
}

#[test]
fn nothing_else_than_a_demo_takes_such_orders() {
    let fleet = support::fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    assert_eq!(kindred.admin("/demo/faults").status, 404);
}
