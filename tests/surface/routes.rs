//! Methods, heads, health, version and cluster information.

use kindred::wire::Role;

use super::*;
use crate::support::{h2c, reload};

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim())
}

#[test]
fn a_head_says_what_a_get_would_and_has_no_body() {
    let (_fleet, kindred) = start("");
    for path in READ {
        let got = ask(kindred.edge(), "GET", path, &[]);
        assert_eq!(got.status, 200, "{path}");
        let length = got.header("content-length").unwrap();
        assert_eq!(length, got.body.len().to_string(), "{path}");
        let text = exchange(kindred.edge(), &head("HEAD", path, &[], true));
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {text}");
        assert!(text.ends_with("\r\n\r\n"), "{path}: {text}");
        for name in ["content-type", "content-length"] {
            // The numbers of the metrics may have grown in between, their names not.
            if path != "/prometheus/metrics" || name == "content-type" {
                assert_eq!(value(&text, name), got.header(name), "{path} {name}");
            }
        }
        let over_two = h2c::ask(kindred.edge(), "HEAD", path, &[]);
        assert_eq!((over_two.status, over_two.body.len()), (200, 0), "{path}");
        let over_two = h2c::ask(kindred.edge(), "GET", path, &[]);
        assert_eq!(over_two.status, 200, "{path}");
    }
    let text = exchange(kindred.edge(), &head("HEAD", "/nowhere", &[], true));
    assert!(text.starts_with("HTTP/1.1 404"), "{text}");
    assert!(text.ends_with("\r\n\r\n"), "{text}");
    let over_two = h2c::ask(kindred.edge(), "HEAD", CHAT, &[]);
    assert_eq!((over_two.status, over_two.body.len()), (405, 0));
}

#[test]
fn other_methods_are_405_and_options_tell_which_there_are() {
    let (fleet, kindred) = start("");
    let read = READ.map(|path| (path, "GET, HEAD, OPTIONS"));
    let sent = [CHAT, "/v1/completions"].map(|path| (path, "OPTIONS, POST"));
    for (path, allow) in read.into_iter().chain(sent) {
        for method in ["POST", "GET", "HEAD", "PUT", "DELETE", "PATCH", "BREW"] {
            if allow.contains(method) {
                continue;
            }
            let answer = exchange(
                kindred.edge(),
                &head(method, path, &[("content-length", "0")], true),
            );
            assert!(answer.starts_with("HTTP/1.1 405"), "{method} {path}");
            assert_eq!(value(&answer, "allow"), Some(allow), "{method} {path}");
            let told = answer.contains(r#""code":"method_not_allowed""#);
            assert_eq!(told, method != "HEAD", "{answer}");
            let status = h2c::ask(kindred.edge(), method, path, &[]).status;
            assert_eq!(status, 405, "{method} {path}");
        }
        let options = exchange(kindred.edge(), &head("OPTIONS", path, &[], true));
        assert!(options.starts_with("HTTP/1.1 204"), "{path}: {options}");
        assert_eq!(value(&options, "allow"), Some(allow), "{path}");
        assert_eq!(value(&options, "content-length"), None, "{options}");
        assert_eq!(value(&options, "access-control-allow-origin"), None);
        assert_eq!(value(&options, "vary"), None);
        assert!(options.ends_with("\r\n\r\n"), "{options}");
        assert_eq!(h2c::ask(kindred.edge(), "OPTIONS", path, &[]).status, 204);
    }
    let all = ask(kindred.edge(), "OPTIONS", "*", &[]);
    assert_eq!(all.header("allow"), Some("GET, HEAD, OPTIONS, POST"));
    assert_eq!(ask(kindred.edge(), "OPTIONS", "/nowhere", &[]).status, 404);
    for role in [Role::Context, Role::Generation] {
        assert!(fleet.requests(role).is_empty());
    }
}

#[test]
fn a_body_that_nobody_reads_is_never_taken_for_a_request() {
    let (_fleet, kindred) = start("");
    let inner = "GET /inner HTTP/1.1\r\nhost: test\r\n\r\n";
    let length = inner.len().to_string();
    let chunks = format!("{length:x}\r\n{inner}\r\n0\r\n\r\n", length = inner.len());
    let long = "x".repeat(100_000);
    let sized = ("content-length", &*length, inner);
    let chunked = ("transfer-encoding", "chunked", &*chunks);
    let longer = ("content-length", "100000", &*long);
    for path in READ {
        for (name, value, body) in [sized, chunked, longer] {
            let mut bytes = head("GET", path, &[(name, value)], false);
            bytes.extend_from_slice(body.as_bytes());
            bytes.extend_from_slice(&head("GET", "/version", &[], true));
            let told = exchange(kindred.edge(), &bytes);
            assert_eq!(told.matches("HTTP/1.1 200 OK").count(), 2, "{path}: {told}");
            assert_eq!(told.matches("HTTP/1.1 ").count(), 2, "{path}: {told}");
            let version = told.rsplit("\r\n\r\n").next().unwrap();
            assert!(version.starts_with(r#"{"version":"#), "{path}: {told}");
        }
    }
    // A body that is announced and not sent is not waited for.
    let waiting = [("content-length", "5"), ("expect", "100-continue")];
    let told = exchange(kindred.edge(), &head("GET", "/version", &waiting, false));
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    kindred.assert_idle();
}

#[test]
fn health_has_an_empty_body() {
    let (_fleet, kindred) = start("");
    for method in ["GET", "HEAD"] {
        let answer = exchange(kindred.edge(), &head(method, "/health", &[], true));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{method}: {answer}");
        assert_eq!(value(&answer, "content-length"), Some("0"));
        assert_eq!(value(&answer, "content-type"), None);
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }
    assert_eq!(kindred.admin("/readyz").status, 200);
    let counted = [r#"route="status""#, r#"outcome="ok""#];
    kindred.assert_metric("kindred_requests_total", &counted, 2.0);
}

#[test]
fn the_version_is_in_upstreams_shape() {
    let (_fleet, kindred) = start("");
    let answer = ask(kindred.edge(), "GET", "/version", &[]);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = serde_json::json!({"version": env!("CARGO_PKG_VERSION")});
    assert_eq!(answer.json(), expected);
}

#[test]
fn cluster_info_is_as_upstream_prints_it() {
    let fleet = fleet::start(2, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(""));
    let list = |role| -> Vec<_> {
        let addresses = fleet.of(role).map(|worker| worker.address.to_string());
        addresses.collect()
    };
    let expected = serde_json::json!({
        "is_ready": true,
        "server_lists": {
            "context": list(Role::Context),
            "generation": list(Role::Generation),
        },
        "routing_key_configs": {},
    });
    let answer = ask(kindred.edge(), "GET", "/cluster_info", &[]);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json(), expected);

    let by_cache = fleet.yaml("").replace(
        "router: {type: conversation}",
        "router: {type: kv_cache_aware, tokens_per_block: 16}",
    );
    let kindred = Kindred::serve(&by_cache);
    let info = ask(kindred.edge(), "GET", "/cluster_info", &[]).json();
    for role in ["context", "generation"] {
        let expected =
            serde_json::json!({"tokens_per_block": 16, "kv_cache_hash_algo": "v1_block_key"});
        assert_eq!(info["routing_key_configs"][role], expected, "{info}");
    }
}

#[test]
fn a_gateway_tells_little_to_those_who_are_not_let_in() {
    let (fleet, kindred) = start(&gateway(""));
    let closed = [
        "/v1/models",
        "/v1/models/m",
        "/cluster_info",
        "/prometheus/metrics",
    ];
    for path in closed {
        for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
            for method in ["GET", "HEAD"] {
                let answer = exchange(kindred.edge(), &head(method, path, headers, true));
                assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
                assert!(answer.contains("www-authenticate") || answer.contains("WWW-Auth"));
                assert!(!answer.contains("127.0.0.1") && !answer.contains("simulated"));
            }
        }
        assert_eq!(h2c::ask(kindred.edge(), "GET", path, &[]).status, 401);
        assert_eq!(ask(kindred.edge(), "OPTIONS", path, &[]).status, 204);
    }
    for path in ["/health", "/version"] {
        assert_eq!(ask(kindred.edge(), "GET", path, &[]).status, 200, "{path}");
    }
    let bearer = bearer();
    let known = [("authorization", bearer.as_str())];
    let info = ask(kindred.edge(), "GET", "/cluster_info", &known).json();
    let expected = serde_json::json!({"context": ["context-0"], "generation": ["generation-0"]});
    assert_eq!(info["server_lists"], expected);
    for path in ["/v1/models", "/prometheus/metrics"] {
        let answer = ask(kindred.edge(), "GET", path, &known);
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text().contains("127.0.0.1"), "{path}");
    }

    let open = gateway(", open_routes: [cluster_info, metrics], cluster_info: addresses");
    reload::reload(&kindred, &fleet.yaml(&open), "applied");
    let info = ask(kindred.edge(), "GET", "/cluster_info", &[]).json();
    let context = reload::addresses(&fleet, Role::Context)[0].to_string();
    assert_eq!(info["server_lists"]["context"][0], context);
    for (path, status) in [
        ("/prometheus/metrics", 200),
        ("/health", 401),
        ("/version", 401),
        ("/v1/models", 401),
    ] {
        assert_eq!(
            ask(kindred.edge(), "GET", path, &[]).status,
            status,
            "{path}"
        );
    }
}
