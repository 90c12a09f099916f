//! Simulated workers as processes of their own.

mod support;

use kindred::wire::Role;
use support::{Kindred, fleet, process::WorkerProcess, raw};

#[test]
fn a_fleet_of_processes_serves_a_conversation_and_comes_back_after_a_crash() {
    let mut context = WorkerProcess::start(Role::Context, &["--ranks", "2"]);
    let generation = WorkerProcess::start(Role::Generation, &[]);
    let yaml = fleet::yaml(&[context.address], &[generation.address], "");
    let kindred = Kindred::serve(&yaml);
    let chat = || {
        let body = support::chat("hello").to_string();
        raw::post(kindred.edge(), "/v1/chat/completions", &[], &body)
    };
    let before = chat();
    assert_eq!(before.status, 200, "{}", before.text());
    context.kill();
    assert!(chat().status >= 500, "there is nobody to ask");
    let address = context.address;
    context.restart();
    assert_eq!(context.address, address);
    support::eventually("the worker is back", || {
        (chat().status == 200).then_some(())
    });
    context.freeze();
    context.thaw();
    assert_eq!(chat().status, 200);
    kindred.assert_idle();
}

#[test]
fn an_option_that_makes_no_sense_is_refused() {
    for options in [
        ["--role", "parent"],
        ["--ranks", "0"],
        ["--decode-interval", "fast"],
    ] {
        let mut args = vec!["simulate", "--role", "context"];
        args.extend(options);
        let (code, _, error) = support::run(&args, "");
        assert_eq!(code, 2, "{error}");
    }
}
