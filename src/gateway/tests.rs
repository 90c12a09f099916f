use std::{path::PathBuf, time::Duration};

use sha2::{Digest, Sha256};

use super::*;
use crate::{
    config::{
        AffinityConfig, AffinityScope, BodyLimits, ClientConfig, Draining, EdgeConfig, FleetConfig,
        FleetsConfig, HealthConfig, Limits, OverflowConfig, RouterConfig, TelemetryConfig,
        Timeouts,
    },
    wire::{Role, signature::SigningProfile},
};

const PARENT: &str = "x-dynamo-parent-session-id";

fn fleet(role: Role) -> FleetConfig {
    FleetConfig {
        role,
        urls: vec!["localhost:8001".to_owned()],
        announced: false,
        router: RouterConfig::RoundRobin,
        signing_profile: SigningProfile::default(),
        draining: Draining::new(),
    }
}

fn config(parent_header: Option<&str>, gateway: Option<GatewayConfig>) -> Config {
    let some_time = Duration::from_secs(1);
    Config {
        edge: Some(EdgeConfig {
            hostname: "localhost".to_owned(),
            port: 8000,
            fleets: Some(FleetsConfig::Aggregated(fleet(Role::Aggregated))),
            models: Vec::new(),
            discovery: None,
            affinity: AffinityConfig {
                parent_header: parent_header.map(str::to_owned),
                scope: AffinityScope::Context,
                nested: Default::default(),
                overflow: OverflowConfig::default(),
            },
            health: HealthConfig::default(),
            internal_request_auth_keys: vec!["secret".into()],
            max_retries: 1,
            node_id: 0,
            client_keep_alive: some_time,
            process_id: 0,
            schedule_style: Default::default(),
            allow_request_chat_template: false,
            gen_strip_message_history: false,
            gen_tokids_ctxbytes: false,
            conditional_disagg: None,
        }),
        gateway,
        cors: None,
        worker_filters: Vec::new(),
        admin: None,
        limits: Limits {
            max_in_flight: Default::default(),
            max_waiting: 1,
            max_body: BodyLimits::all(1 << 20),
            body_budget: 1 << 30,
            max_answer: 1 << 20,
            max_headers: 100,
            max_header_bytes: 1 << 15,
            max_session_id: 16,
            max_connections: 1,
            max_connections_per_address: None,
            min_body_rate: 1,
        },
        timeouts: Timeouts {
            queue: some_time,
            connect: some_time,
            read_header: some_time,
            read_body: some_time,
            context: some_time,
            first_byte: some_time,
            silence: some_time,
            answer: some_time,
            write: some_time,
            idle_upstream: some_time,
            retry_pause: some_time,
            retry_pause_max: some_time,
            drain: some_time,
        },
        tls: None,
        compatibility: Default::default(),
        http: Default::default(),
        telemetry: TelemetryConfig {
            access_log: None,
            debug_headers: false,
            internal_fields: false,
            log: "info".to_owned(),
        },
        worker_tls: None,
        warnings: Vec::new(),
        origin: PathBuf::new(),
    }
}

fn clients(policies: &[(&str, SubagentPolicy)]) -> GatewayConfig {
    let client = |(name, subagents): &(&str, SubagentPolicy)| ClientConfig {
        max_in_flight: None,
        limits: Default::default(),
        name: (*name).to_owned(),
        api_keys: vec![Sha256::digest(format!("key-of-{name}")).into()],
        subagents: *subagents,
        ..Default::default()
    };
    GatewayConfig {
        clients: policies.iter().map(client).collect(),
        prune_headers: vec!["x-team".to_owned()],
        max_sessions: 1000,
        ..Default::default()
    }
}

fn guarded() -> Gateway {
    let section = clients(&[
        ("ada", SubagentPolicy::Owned),
        ("ben", SubagentPolicy::Owned),
        ("proxy", SubagentPolicy::Declared),
        ("single", SubagentPolicy::None),
    ]);
    Gateway::new(&config(Some(PARENT), Some(section)))
}

fn open(parent_header: Option<&str>) -> Gateway {
    Gateway::new(&config(parent_header, None))
}

fn headers(client: &str, more: &[(&str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    if !client.is_empty() {
        let key = format!("Bearer key-of-{client}");
        map.append("authorization", key.parse().expect("a header value"));
    }
    for (name, value) in more {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        map.append(
            name,
            HeaderValue::from_bytes(value).expect("a header value"),
        );
    }
    map
}

/// What a request's claim comes to: its outcome and the parent that is followed.
fn claim(
    gateway: &Gateway,
    client: &str,
    parents: &[&[u8]],
    session: Option<&str>,
) -> (ClaimOutcome, Option<String>) {
    let parents: Vec<_> = parents.iter().map(|value| (PARENT, *value)).collect();
    let admission = gateway
        .admit(&Presented::headers(&headers(client, &parents)))
        .expect("an admissible request");
    let family = decided(gateway, &admission, session);
    (family.outcome, family.parent)
}

fn decided(gateway: &Gateway, admission: &Admission, session: Option<&str>) -> Family {
    let view = BodyView::parse(b"{}").expect("a body");
    let family = gateway.authorise(admission, &view, session);
    family.expect("no id in the body")
}

#[test]
fn a_seen_session_of_the_same_client_may_be_the_parent() {
    let gateway = guarded();
    let ask = |client, parent: &str| claim(&gateway, client, &[parent.as_bytes()], Some("child"));
    assert_eq!(ask("ada", "p").0, ClaimOutcome::NotOwned);
    assert_eq!(
        claim(&gateway, "ada", &[], Some("p")),
        (ClaimOutcome::None, None)
    );
    assert_eq!(
        ask("ada", "p"),
        (ClaimOutcome::Authorised, Some("p".to_owned()))
    );
    assert_eq!(ask("ben", "p"), (ClaimOutcome::NotOwned, None));
    assert_eq!(ask("ada", "q"), (ClaimOutcome::NotOwned, None));
    // A claim is not a sighting.
    assert_eq!(ask("ada", "q"), (ClaimOutcome::NotOwned, None));
}

#[test]
fn policies_none_and_declared_need_no_sighting() {
    let gateway = guarded();
    let ask = |client| claim(&gateway, client, &[b"p"], Some("child"));
    claim(&gateway, "single", &[], Some("p"));
    assert_eq!(ask("single"), (ClaimOutcome::NotAllowed, None));
    assert_eq!(
        ask("proxy"),
        (ClaimOutcome::Authorised, Some("p".to_owned()))
    );
}

#[test]
fn equal_bytes_are_one_session_in_the_body_and_in_a_header() {
    let gateway = guarded();
    let ask = |client: &str, id: &str, parent: Option<&str>| {
        let parent = parent.map(|parent| (PARENT, parent.as_bytes()));
        let parent: Vec<_> = parent.into_iter().collect();
        let headers = headers(client, &parent);
        let admission = gateway.admit(&Presented::headers(&headers));
        let body = format!(r#"{{"conversation_params":{{"conversation_id":"{id}"}}}}"#);
        let view = BodyView::parse(body.as_bytes()).expect("a body");
        let admission = admission.expect("an admissible request");
        let family = gateway.authorise(&admission, &view, Some(id));
        family.expect("good ids").outcome
    };
    for (root, child) in [("\u{e9}lan", "\u{e0}"), ("\u{4f1a}", "\u{8bdd}")] {
        assert_eq!(ask("ada", root, Some(root)), ClaimOutcome::SelfNamed);
        assert_eq!(ask("ada", child, Some(root)), ClaimOutcome::Authorised);
        // A sub-agent is nobody's parent, in whatever words it is named.
        assert_eq!(ask("ada", "further", Some(child)), ClaimOutcome::Nested);
    }
}

#[test]
fn a_session_that_names_itself_has_no_parent() {
    for client in ["ada", "proxy"] {
        let outcome = claim(&guarded(), client, &[b" p "], Some("p"));
        assert_eq!(outcome, (ClaimOutcome::SelfNamed, None), "{client}");
    }
}

#[test]
fn copies_must_agree_behind_the_boundary() {
    let gateway = guarded();
    let ask = |parents: &[&[u8]]| claim(&gateway, "proxy", parents, None);
    assert_eq!(ask(&[b"p", b"q"]), (ClaimOutcome::Ambiguous, None));
    assert_eq!(ask(&[b"p", b""]), (ClaimOutcome::Ambiguous, None));
    assert_eq!(
        ask(&[b"p", b" p\t"]),
        (ClaimOutcome::Authorised, Some("p".to_owned()))
    );
    assert_eq!(ask(&[b" ", b"\t"]), (ClaimOutcome::None, None));
}

#[test]
fn without_a_boundary_the_last_copy_is_trusted() {
    let gateway = open(Some(PARENT));
    let ask = |parents: &[&[u8]]| claim(&gateway, "", parents, Some("p"));
    assert_eq!(
        ask(&[b"q", b"p"]),
        (ClaimOutcome::Trusted, Some("p".to_owned()))
    );
    assert_eq!(ask(&[b"p", b" "]), (ClaimOutcome::None, None));
    assert_eq!(ask(&[]), (ClaimOutcome::None, None));
}

#[test]
fn header_bytes_are_latin1_and_stripped_as_upstream_does() {
    let gateway = open(Some(PARENT));
    let (_, parent) = claim(&gateway, "", &[b"\xa0caf\xc3\xa9\x85 "], None);
    assert_eq!(parent.as_deref(), Some("caf\u{c3}\u{a9}"));
}

#[test]
fn without_a_parent_header_a_claim_is_dropped() {
    let gateway = open(None);
    assert_eq!(
        claim(&gateway, "", &[b"p"], None),
        (ClaimOutcome::Disabled, None)
    );
    assert_eq!(claim(&gateway, "", &[], None), (ClaimOutcome::None, None));
}

#[test]
fn another_spelling_of_the_parent_header_is_no_claim() {
    let gateway = guarded();
    let headers = headers("proxy", &[("x_dynamo_parent_session_id", b"p")]);
    let admission = gateway
        .admit(&Presented::headers(&headers))
        .expect("an admissible request");
    assert_eq!(admission.remove, ["x_dynamo_parent_session_id"]);
    assert_eq!(decided(&gateway, &admission, None).parent, None);
}

#[test]
fn internal_headers_go_with_and_without_a_boundary() {
    let internal: [(&str, &[u8]); 3] = [
        (PARENT, b"p"),
        ("x-trtllm-subagent-affinity-id", b"p"),
        ("X-Kindred-Anything", b"1"),
    ];
    for (gateway, client) in [
        (guarded(), "ada"),
        (open(Some(PARENT)), ""),
        (open(None), ""),
    ] {
        let admission = gateway.admit(&Presented::headers(&headers(client, &internal)));
        let mut names = admission.expect("an admissible request").remove;
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        assert_eq!(
            names,
            [
                PARENT,
                "x-kindred-anything",
                "x-trtllm-subagent-affinity-id"
            ]
        );
    }
}

#[test]
fn ids_that_are_too_long_or_unprintable_are_refused_by_name() {
    let gateway = guarded();
    let places = CONVERSATION_ID_HEADERS.into_iter().chain([PARENT]);
    for place in places {
        for id in [
            &b"seventeen bytes.."[..],
            b"a\tb",
            "\u{a0}123456789012345".as_bytes(),
        ] {
            let refusal = gateway.admit(&Presented::headers(&headers(
                "ada",
                &[(place, b"fine"), (place, id)],
            )));
            let refusal = refusal.map(|_| id).expect_err("a bad id");
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
            assert_eq!(refusal.param.as_deref(), Some(place));
            assert!(refusal.message.contains(place), "{refusal}");
        }
        for id in [
            &b"sixteen bytes..."[..],
            b"  \tsixteen bytes...  ",
            b"\xe4\xbc\x9a",
            b"",
        ] {
            assert!(
                gateway
                    .admit(&Presented::headers(&headers("ada", &[(place, id)])))
                    .is_ok(),
                "{place} {id:?}"
            );
        }
    }
    assert!(
        gateway
            .check_session_id("\u{4f1a}\u{8bdd}", "conversation_params")
            .is_ok()
    );
    assert!(
        gateway
            .check_session_id("\u{4f1a}\u{8bdd}\u{4f1a}\u{8bdd}\u{4f1a}\u{8bdd}", "c")
            .is_err()
    );
    assert!(gateway.check_session_id("a\u{7f}", "c").is_err());
}

#[test]
fn strangers_are_told_nothing_but_that_they_need_a_key() {
    let long = [("x-session-id", &b"an id that is far too long"[..])];
    let refusal = guarded().admit(&Presented::headers(&headers("nobody", &long)));
    let refusal = refusal.map(|_| ()).expect_err("a wrong key");
    assert_eq!(refusal.outcome, Outcome::Unauthenticated);
}

#[test]
fn what_was_seen_survives_a_reload_by_client_name() {
    let before = guarded();
    claim(&before, "ada", &[], Some("p"));
    let section = clients(&[
        ("ben", SubagentPolicy::Owned),
        ("ada", SubagentPolicy::Owned),
    ]);
    let after = Gateway::rebuild(&config(Some(PARENT), Some(section)), Some(&before));
    let ask = |client| claim(&after, client, &[b"p"], Some("child")).0;
    assert_eq!(ask("ada"), ClaimOutcome::Authorised);
    assert_eq!(ask("ben"), ClaimOutcome::NotOwned);
    // A request that began before the reload still counts for those after it.
    claim(&before, "ben", &[], Some("p"));
    assert_eq!(ask("ben"), ClaimOutcome::Authorised);
}

#[test]
fn no_id_of_a_client_becomes_a_label() {
    let gateway = guarded();
    let traffic = |from: usize, to: usize| {
        for id in from..to {
            let name = format!("x-kindred-{id}");
            let parent = format!("p{id}");
            let more = [(PARENT, parent.as_bytes()), (name.as_str(), b"v")];
            let admission = gateway
                .admit(&Presented::headers(&headers("ada", &more)))
                .expect("admitted");
            decided(&gateway, &admission, Some(&format!("s{id}")));
        }
    };
    let series = || metrics().render().lines().count();
    traffic(0, 10);
    let before = series();
    traffic(10, 100_000);
    // Other tests may add their few series at the same time.
    assert!(series() <= before + 40, "{before} {}", series());
    let text = metrics().render();
    assert!(!text.contains("p99999") && !text.contains("s99999"));
    assert!(!text.contains("x-kindred-99999") && !text.contains("ada"));
}

#[test]
fn a_dropped_claim_is_logged_on_one_line() {
    let lines = crate::telemetry::log::testing::capture(|| {
        let gateway = guarded();
        // Not through `admit`, which refuses such an id in a header.
        let admission = Admission {
            client: gateway
                .admit(&Presented::headers(&headers("ada", &[])))
                .expect("admitted")
                .client,
            remove: Vec::new(),
            connection: None,
            claim: Heard::named("p\n2026 ERROR forged\u{1b}[2J\u{202e}"),
            delegation: None,
        };
        decided(&gateway, &admission, Some("s\r\nforged"));
    });
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(
        lines.contains("ada") && lines.contains("not_owned"),
        "{lines}"
    );
    assert!(!lines.contains(['\r', '\u{1b}', '\u{202e}']), "{lines}");
}
