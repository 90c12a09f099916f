//! SIGHUP replaces the configuration, all of it or nothing.

mod support;

use std::{fs, io::Write};

use kindred::wire::Role;
use support::{
    Kindred, chat,
    clients::digest,
    eventually,
    fleet::{self, Fleet, Worker},
    raw,
    reload::{addresses, ask, begin_request, reload, reloads},
};

const CHAT: &str = "/v1/chat/completions";

fn worker(fleet: &Fleet, role: Role, number: usize) -> &Worker {
    fleet.of(role).nth(number).unwrap()
}

#[test]
fn clients_come_and_go() {
    let fleet = fleet::start(1, 1, |_| ());
    let gateway = |keys: &[&str]| {
        let digests: Vec<String> = keys.iter().map(|key| digest(key)).collect();
        fleet.yaml(&format!(
            "gateway: {{clients: [{{name: a, api_keys_sha256: ['{}']}}]}}",
            digests.join("', '")
        ))
    };
    let kindred = Kindred::serve(&gateway(&["one"]));
    let status = |key: &str| ask(&kindred, &[("authorization", &format!("Bearer {key}"))]).status;
    assert_eq!((status("one"), status("two")), (200, 401));
    reload(&kindred, &gateway(&["one", "two"]), "applied");
    assert_eq!((status("one"), status("two")), (200, 200));
    let (mut begun, last) = begin_request(&kindred, &[("authorization", "Bearer one")]);
    reload(&kindred, &gateway(&["two"]), "applied");
    assert_eq!((status("one"), status("two")), (401, 200));
    begun.write_all(&[last]).unwrap();
    assert_eq!(
        raw::read_answer(&mut begun).status,
        200,
        "it had been let in"
    );
    reload(&kindred, &fleet.yaml(""), "applied");
    assert_eq!(ask(&kindred, &[]).status, 200, "no gateway, no keys");
    kindred.assert_idle();
}

#[test]
fn the_affinity_scope_and_header_change_at_once() {
    const KEY: &str = "internal_request_auth_key: 0123456789abcdef0123456789abcdef\n";
    let fleet = fleet::start(1, 1, |_| ());
    let with = |header: &str, scope: &str| {
        fleet.yaml(&format!(
            "{KEY}conversation_affinity_header_for_subagents: {header}\nsubagent_affinity_scope: {scope}"
        ))
    };
    let kindred = Kindred::serve(&with("x-parent", "context"));
    let told = |parent_header: &str| {
        let headers = [("x-session-id", "child"), (parent_header, "parent")];
        assert_eq!(ask(&kindred, &headers).status, 200);
        [Role::Context, Role::Generation].map(|role| {
            let request = fleet.requests(role).pop().unwrap();
            let told = |(name, _): &&(String, String)| {
                name.eq_ignore_ascii_case("x-trtllm-subagent-affinity-id")
            };
            request
                .headers
                .iter()
                .find(told)
                .map(|(_, value)| value.clone())
        })
    };
    let parent = Some("parent".to_owned());
    assert_eq!(told("x-parent"), [parent.clone(), None]);
    reload(&kindred, &with("x-parent", "both"), "applied");
    assert_eq!(told("x-parent"), [parent.clone(), parent.clone()]);
    reload(&kindred, &with("x-mother", "both"), "applied");
    assert_eq!(told("x-parent"), [None, None]);
    assert_eq!(told("x-mother"), [parent.clone(), parent]);
    reload(&kindred, &fleet.yaml(""), "applied");
    assert_eq!(told("x-mother"), [None, None]);
}

#[test]
fn limits_and_deadlines_change_at_once() {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml(""));
    let mut body = chat("hello");
    body["user"] = "u".repeat(4000).into();
    let request = raw::request(CHAT, &[], body.to_string().as_bytes());
    let status = || raw::send(kindred.edge(), &request).status;
    assert_eq!(status(), 200);
    reload(&kindred, &fleet.yaml("limits: {max_body: 2KiB}"), "applied");
    assert_eq!(status(), 413);
    let short = "timeouts: {context: 200ms}";
    reload(&kindred, &fleet.yaml(short), "applied");
    worker(&fleet, Role::Context, 0).fault(1, "delay=1h");
    assert_eq!(status(), 504);
    assert_eq!(status(), 200);
}

#[test]
fn case_h12_a_bad_file_changes_nothing_and_says_why() {
    let fleet = fleet::start(1, 1, |_| ());
    let good = fleet.yaml("limits: {max_body: 2KiB}");
    let kindred = Kindred::serve(&good);
    let applied = reloads(&kindred, "applied");
    let listening = |port: u16| good.replace("port: 0", &format!("port: {port}"));
    let admin = |listen: &str| good.replace("admin: {listen: '127.0.0.1:0'}", listen);
    for (file, reason) in [
        ("{".to_owned(), "kindred.yaml:1"),
        (String::new(), "kindred.yaml"),
        (fleet.yaml("limits: {max_bodi: 1GiB}"), "max_bodi"),
        (fleet.yaml("limits: {max_body: much}"), "limits.max_body"),
        (
            fleet.yaml("subagent_affinity_scope: generation"),
            "subagent_affinity_scope",
        ),
        (
            fleet.yaml("conversation_affinity_header_for_subagents: x-p"),
            "internal_request_auth_key",
        ),
        (
            fleet::yaml(&[], &addresses(&fleet, Role::Generation), ""),
            "context_servers",
        ),
        // What needs a restart is named, and what else the file changes does not happen.
        (listening(1).replace("2KiB", "9MiB"), "hostname, port"),
        (
            good.replace("hostname: 127.0.0.1", "hostname: localhost"),
            "hostname, port",
        ),
        (admin("admin: {listen: '127.0.0.1:1'}"), "admin.listen"),
        (admin(""), "admin"),
        (good.clone() + "timeouts: {drain: 1s}\n", "timeouts.drain"),
        (
            good.clone() + "worker_filters: [{listen: '127.0.0.1:0', worker: '127.0.0.1:1'}]\n",
            "worker_filters",
        ),
    ] {
        let logged = kindred.log().len();
        reload(&kindred, &file, "rejected");
        eventually(&format!("the log says {reason}"), || {
            let log = &kindred.log()[logged..];
            let why = log.split_once("not reloaded")?.1;
            why.contains(reason).then_some(())
        });
        assert_eq!(reloads(&kindred, "applied"), applied, "{reason}");
        assert_eq!(ask(&kindred, &[]).status, 200, "{reason}");
        let mut large = chat("hello");
        large["user"] = "u".repeat(4000).into();
        let large = raw::post(kindred.edge(), CHAT, &[], &large.to_string());
        assert_eq!(large.status, 413, "{reason}: the old limit holds");
        assert_eq!(kindred.admin("/readyz").status, 200, "{reason}");
    }
    fs::remove_file(kindred.file.as_ref().unwrap()).unwrap();
    let rejected = reloads(&kindred, "rejected");
    kindred.signal("HUP");
    eventually("a file that is gone is rejected", || {
        (reloads(&kindred, "rejected") == rejected + 1.0).then_some(())
    });
    reload(&kindred, &good.replace("2KiB", "1KiB"), "applied");
    kindred.assert_idle();
}
