//! Signing profiles and the replacement of a key, over real sockets. Signatures are computed here
//! from scratch, by other code than the program's.

mod support;

use hmac::{Hmac, KeyInit, Mac};
use kindred::{simulate::worker::recorder::Recorded, wire::Role};
use serde_json::{Value, json};
use sha2::Sha256;
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    raw::{self, Answer},
};

const NEW: &str = "the-new-key-0123456789abcdef";
const OLD: &str = "the-old-key-fedcba9876543210";
const CHAT: &str = "/v1/chat/completions";
const ID: &str = "x-trtllm-subagent-affinity-id";
const AUTH: &str = "x-trtllm-subagent-affinity-auth";
const PARENT: &str = "x-dynamo-parent-session-id";
const BY_KEY: &str = "kindred_verifications_by_key_total";
const OUTCOMES: &str = "kindred_verifications_total";
const RELOADS: &str = "kindred_config_reloads_total";

fn hmac(key: &str, payload: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(payload.as_bytes());
    let digest = mac.finalize().into_bytes();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

/// Dynamo's signature over a body as a worker got it; nothing in it needs an escape.
fn dynamo(key: &str, body: &Value, parent: &str) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let payload = format!(
        r#"{{"conversation_id":"{}","model":"{}","purpose":"{ID}","request_id":"{}","request_type":"{}","subagent_affinity_id":"{parent}"}}"#,
        text(&body["conversation_params"]["conversation_id"]),
        text(&body["model"]),
        body["disaggregated_params"]["disagg_request_id"]
            .as_u64()
            .unwrap(),
        text(&body["disaggregated_params"]["request_type"]),
    );
    hmac(key, &payload)
}

/// Upstream's signature over a context body; nothing in it needs an escape.
fn trtllm(key: &str, body: &Value, parent: &str) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let payload = format!(
        r#"{{"conversation_id":"{}","disagg_request_id":{},"model":"{}","purpose":"{ID}","request_type":"context_only","role":"CONTEXT","subagent_affinity_id":"{parent}"}}"#,
        text(&body["conversation_params"]["conversation_id"]),
        body["disaggregated_params"]["disagg_request_id"]
            .as_u64()
            .unwrap(),
        text(&body["model"]),
    );
    hmac(key, &payload)
}

/// A context request as an edge sends it.
fn context_body(model: &str, child: &str) -> Value {
    json!({
        "model": model,
        "max_tokens": 1,
        "stream": false,
        "messages": [{"role": "user", "content": "hello"}],
        "conversation_params": {"conversation_id": child},
        "disaggregated_params": {
            "request_type": "context_only",
            "disagg_request_id": (1_u64 << 40) + 5,
        },
    })
}

fn header<'a>(request: &'a Recorded, name: &str) -> Option<&'a str> {
    let mut headers = request.headers.iter();
    let found = headers.find(|(own, _)| own.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

fn body(request: &Recorded) -> Value {
    serde_json::from_str(&request.body).unwrap()
}

fn only(fleet: &Fleet, role: Role) -> Recorded {
    let mut requests = fleet.requests(role);
    assert_eq!(requests.len(), 1);
    requests.remove(0)
}

/// An edge in front of one worker of each role whose context fleet signs for Dynamo.
fn dynamo_edge(fleet: &Fleet, more: &str) -> Kindred {
    let yaml = fleet.yaml(&format!(
        "internal_request_auth_keys: [{NEW}, {OLD}]\n\
         conversation_affinity_header_for_subagents: {PARENT}\n{more}"
    ));
    let profiled = yaml.replace(
        "router: {type: conversation}}",
        "router: {type: conversation}, signing_profile: dynamo}",
    );
    Kindred::serve(&profiled)
}

fn ask(kindred: &Kindred, headers: &[(&str, &str)], model: &str) -> Answer {
    let body = json!({
        "model": model,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hello"}],
    });
    raw::post(kindred.edge(), CHAT, headers, &body.to_string())
}

#[test]
fn an_edge_signs_for_dynamo() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = dynamo_edge(&fleet, "subagent_affinity_scope: both");
    let model = "m\u{e9}\u{4f1a}-\u{1f600}\u{7f}";
    let headers = [("x-session-id", "child"), (PARENT, "parent")];
    assert_eq!(ask(&kindred, &headers, model).status, 200);
    let context = only(&fleet, Role::Context);
    assert_eq!(header(&context, ID), Some("parent"));
    let expected = dynamo(NEW, &body(&context), "parent");
    assert_eq!(header(&context, AUTH), Some(&*expected));
    let generation = only(&fleet, Role::Generation);
    assert_eq!(header(&generation, ID), None, "only context is signed");
    assert_eq!(header(&generation, AUTH), None);
    assert!(header(&generation, "x-trtllm-disagg-auth").is_some());
}

#[test]
fn dynamo_gets_no_id_without_a_parent_and_a_made_one_for_a_nameless_child() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = dynamo_edge(&fleet, "");
    assert_eq!(ask(&kindred, &[("x-session-id", "s")], "m").status, 200);
    let plain = only(&fleet, Role::Context);
    assert_eq!((header(&plain, ID), header(&plain, AUTH)), (None, None));
    // A parent outside ASCII: its bytes are latin-1 text, and the text is signed as UTF-8.
    assert_eq!(ask(&kindred, &[(PARENT, "caf\u{e9}")], "m").status, 200);
    let child = fleet.requests(Role::Context).remove(1);
    let sent = body(&child);
    let own = sent["conversation_params"]["conversation_id"].as_str();
    assert!(own.unwrap().starts_with("subagent:"));
    assert_eq!(header(&child, ID), Some("caf\u{c3}\u{a9}"));
    let expected = dynamo(NEW, &sent, "caf\u{c3}\u{a9}");
    assert_eq!(header(&child, AUTH), Some(&*expected));
}

/// A filter in front of one context worker, with these members in its section.
fn filter(worker: std::net::SocketAddr, members: &str) -> String {
    format!(
        "admin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n- {{name: w, listen: '127.0.0.1:0', \
         worker: '{worker}', server_role: context, {members}}}\n"
    )
}

fn context_worker(fleet: &Fleet) -> std::net::SocketAddr {
    fleet.of(Role::Context).next().unwrap().address
}

fn through(kindred: &Kindred, headers: &[(&str, &str)], body: &Value) -> Answer {
    raw::post(kindred.filters[0].1, CHAT, headers, &body.to_string())
}

fn refused(answer: &Answer, message: &str) {
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["message"], message);
    assert_eq!(answer.json()["type"], "BadRequestError");
}

#[test]
fn a_filter_verifies_dynamos_signatures() {
    let fleet = fleet::start(1, 1, |_| {});
    let keys = format!("internal_request_auth_key: {NEW}, signing_profile: dynamo");
    let kindred = Kindred::serve(&filter(context_worker(&fleet), &keys));
    let request = context_body("m\u{e9}\u{4f1a}", "child-\u{1f600}");
    let good = dynamo(NEW, &request, "parent");
    let accepted = through(&kindred, &[(ID, "parent"), (AUTH, &good)], &request);
    assert_eq!(accepted.status, 200, "{}", accepted.text());
    assert_eq!(through(&kindred, &[], &request).status, 200);
    assert_eq!(
        kindred.metric(BY_KEY, &["check=\"affinity\"", "key=\"0\""]),
        1.0
    );

    const FORGED: &str = "Invalid internal subagent affinity authentication";
    const PARENTLESS: &str =
        "Subagent affinity needs a trimmed, non-empty parent id beside its signature";
    let upstream = trtllm(NEW, &context_body("m", "child"), "parent");
    let sent: [(&[(&str, &str)], &str); 5] = [
        (&[(ID, "parent")], FORGED),
        (&[(ID, "other"), (AUTH, &good)], FORGED),
        (&[(ID, "parent"), (AUTH, &upstream)], FORGED),
        (&[(AUTH, &good)], PARENTLESS),
        (&[(ID, ""), (AUTH, &good)], PARENTLESS),
    ];
    for (headers, message) in sent {
        refused(&through(&kindred, headers, &request), message);
    }
    let mut childless = request.clone();
    childless
        .as_object_mut()
        .unwrap()
        .remove("conversation_params");
    refused(
        &through(&kindred, &[(ID, "parent"), (AUTH, &good)], &childless),
        "Subagent affinity needs a conversation id and a disagg_request_id in the body",
    );
    let mut generation = request.clone();
    generation["disaggregated_params"]["request_type"] = "generation_only".into();
    let signed = dynamo(NEW, &generation, "parent");
    refused(
        &through(&kindred, &[(ID, "parent"), (AUTH, &signed)], &generation),
        "Subagent affinity is for context requests only",
    );
    let outcome = |outcome: &str| kindred.metric(OUTCOMES, &["check=\"affinity\"", outcome]);
    assert_eq!(outcome("outcome=\"malformed\""), 4.0);
    assert_eq!(outcome("outcome=\"unsigned\""), 1.0);
    assert_eq!(outcome("outcome=\"forged\""), 2.0);
    assert_eq!(
        fleet.requests(Role::Context).len(),
        2,
        "nothing refused came through"
    );
}

#[test]
fn a_filter_takes_the_old_key_while_it_is_in_its_list() {
    let fleet = fleet::start(1, 1, |_| {});
    let worker = context_worker(&fleet);
    let list = |keys: &str| filter(worker, &format!("internal_request_auth_keys: [{keys}]"));
    let filters = Kindred::serve(&list(&format!("{NEW}, {OLD}")));
    let generation = fleet.of(Role::Generation).next().unwrap().address;
    let edge_yaml = |key: &str| {
        let more = format!(
            "internal_request_auth_key: {key}\n\
             conversation_affinity_header_for_subagents: {PARENT}"
        );
        fleet::yaml(&[filters.filters[0].1], &[generation], &more)
    };
    let edge = Kindred::serve(&edge_yaml(OLD));
    let child = [("x-session-id", "child"), (PARENT, "parent")];
    let by = |key: &str| filters.metric(BY_KEY, &["check=\"affinity\"", key]);

    assert_eq!(
        ask(&edge, &child, "m").status,
        200,
        "signed with the old key"
    );
    assert_eq!((by("key=\"0\""), by("key=\"1\"")), (0.0, 1.0));

    reload(&edge, &edge_yaml(NEW));
    assert_eq!(
        ask(&edge, &child, "m").status,
        200,
        "signed with the new key"
    );
    assert_eq!((by("key=\"0\""), by("key=\"1\"")), (1.0, 1.0));
    let last = fleet.requests(Role::Context).pop().unwrap();
    let expected = trtllm(NEW, &body(&last), "parent");
    assert_eq!(header(&last, AUTH), Some(&*expected));

    reload(&filters, &list(NEW));
    assert_eq!(ask(&edge, &child, "m").status, 200);
    let request = context_body("m", "child");
    let old = trtllm(OLD, &request, "parent");
    refused(
        &through(&filters, &[(ID, "parent"), (AUTH, &old)], &request),
        "Invalid internal subagent affinity authentication",
    );
    assert_eq!((by("key=\"0\""), by("key=\"1\"")), (2.0, 1.0));
}

#[test]
fn a_key_of_no_list_is_refused() {
    let fleet = fleet::start(1, 1, |_| {});
    let keys = format!("internal_request_auth_keys: [{NEW}, {OLD}]");
    let kindred = Kindred::serve(&filter(context_worker(&fleet), &keys));
    let request = context_body("m", "child");
    let unknown = trtllm("some-other-key-00112233445566", &request, "parent");
    refused(
        &through(&kindred, &[(ID, "parent"), (AUTH, &unknown)], &request),
        "Invalid internal subagent affinity authentication",
    );
    assert_eq!(kindred.metric(BY_KEY, &[]), 0.0);
    assert_eq!(kindred.metric(OUTCOMES, &["outcome=\"forged\""]), 1.0);
    let log = kindred.log();
    assert!(!log.contains(NEW) && !log.contains(OLD), "{log}");
}

/// The process's number is in the id that both legs carry (specification section 4.7).
#[test]
fn an_edges_numbers_are_in_its_ids() {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml("node_id: 200\nprocess_id: 41"));
    assert_eq!(ask(&kindred, &[], "m").status, 200);
    for role in [Role::Context, Role::Generation] {
        let body = body(&only(&fleet, role));
        let id = body["disaggregated_params"]["disagg_request_id"]
            .as_u64()
            .unwrap();
        let value = id - (1 << 40);
        assert_eq!((value >> 16 & 255, value >> 10 & 63), (200, 41), "{role:?}");
    }
}

fn reload(kindred: &Kindred, yaml: &str) {
    let before = kindred.metric(RELOADS, &["result=\"applied\""]);
    std::fs::write(kindred.file.as_ref().unwrap(), yaml).unwrap();
    kindred.signal("HUP");
    kindred.assert_metric(RELOADS, &["result=\"applied\""], before + 1.0);
}

#[test]
fn a_process_that_signs_and_verifies_takes_no_new_key_outright() {
    let fleet = fleet::start(1, 1, |config| {
        config.engine.prefill_per_token = std::time::Duration::from_millis(100);
    });
    let generation = fleet.of(Role::Generation).next().unwrap().address;
    // The filter's address has to be known to the edge in front of it.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let context: Vec<_> = fleet
        .of(Role::Context)
        .map(|worker| worker.address)
        .collect();
    let yaml = |keys: &str| {
        let more = format!(
            "internal_request_auth_keys: [{keys}]\nworker_filters:\n\
             - {{name: w, listen: '{port}', worker: '{generation}', server_role: generation}}"
        );
        fleet::yaml(&context, &[port], &more)
    };
    let kindred = Kindred::serve(&yaml(OLD));
    let refused = |keys: &str| {
        let before = kindred.metric(RELOADS, &["result=\"rejected\""]);
        std::fs::write(kindred.file.as_ref().unwrap(), yaml(keys)).unwrap();
        kindred.signal("HUP");
        kindred.assert_metric(RELOADS, &["result=\"rejected\""], before + 1.0);
    };
    let on_its_way = |change: &dyn Fn()| {
        let before = fleet.requests(Role::Context).len();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| ask(&kindred, &[], "m").status);
            eventually("the context leg runs", || {
                fleet.requests(Role::Context).get(before)?.rank
            });
            change();
            assert_eq!(answer.join().unwrap(), 200);
        });
    };
    on_its_way(&|| refused(NEW));
    let log = kindred.log();
    assert!(
        log.contains("internal_request_auth_keys: [new key, old key]"),
        "{log}"
    );
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
    on_its_way(&|| reload(&kindred, &yaml(&format!("{NEW}, {OLD}"))));
    let by = |key: &str| kindred.metric(BY_KEY, &["check=\"kv_transfer\"", key]);
    assert!(by("key=\"0\"") + by("key=\"1\"") >= 2.0);
    refused(OLD);
    on_its_way(&|| reload(&kindred, &yaml(NEW)));
    assert_eq!(ask(&kindred, &[], "m").status, 200);
    kindred.assert_idle();
}
