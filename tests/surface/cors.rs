//! What browsers are told about pages of other origins.

use super::*;
use crate::support::{h2c, run};

const PAGE: &str = "https://chat.example.com";
const ALLOWED: &str = "access-control-allow-origin";

fn listed() -> String {
    format!("cors: {{allow_origins: ['{PAGE}'], allow_credentials: true, max_age: 5m}}")
}

fn preflight(address: SocketAddr, path: &str, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "authorization,x-stainless-os",
        ),
    ];
    ask(address, "OPTIONS", path, &headers)
}

#[test]
fn a_preflight_is_told_what_a_page_may() {
    let (_fleet, kindred) = start(&(listed() + "\n" + &gateway("")));
    for path in [CHAT, "/v1/models", "/v1/chat/completions/"] {
        let told = preflight(kindred.edge(), path, PAGE);
        assert_eq!(told.status, 204, "no key is needed to ask: {path}");
        for (name, value) in [
            (ALLOWED, PAGE),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-methods", "GET, HEAD, POST"),
            (
                "access-control-allow-headers",
                "authorization, x-stainless-os",
            ),
            ("access-control-max-age", "300"),
            ("vary", "Origin"),
        ] {
            assert_eq!(told.header(name), Some(value), "{path} {name}");
        }
        assert!(told.header("allow").is_some());
    }
    for origin in [
        "https://evil.example.com",
        "https://chat.example.com.evil.com",
        "https://chat.example.com:444",
        "http://chat.example.com",
        "HTTPS://chat.example.com",
        "null",
        "*",
    ] {
        let told = preflight(kindred.edge(), CHAT, origin);
        assert_eq!((told.status, told.header(ALLOWED)), (204, None), "{origin}");
        assert_eq!(told.header("access-control-allow-headers"), None);
        assert_eq!(told.header("vary"), Some("Origin"), "{origin}");
    }
    let headers = [("origin", PAGE), ("access-control-request-method", "POST")];
    assert_eq!(
        h2c::ask(kindred.edge(), "OPTIONS", CHAT, &headers).status,
        204
    );
}

#[test]
fn every_answer_tells_the_page_that_it_may_read() {
    let (fleet, kindred) = start(&listed());
    let edge = kindred.edge();
    let origin = [("origin", PAGE)];
    let mut streamed = chat("hello");
    streamed["stream"] = true.into();
    let fault = |count| {
        fleet
            .workers
            .iter()
            .for_each(|worker| worker.fault(count, "reset"))
    };
    let answers = [
        ("whole", 200, raw::post(edge, CHAT, &origin, &body())),
        (
            "stream",
            200,
            raw::post(edge, CHAT, &origin, &streamed.to_string()),
        ),
        ("bad request", 400, raw::post(edge, CHAT, &origin, "{}")),
        ("no path", 404, ask(edge, "GET", "/nowhere", &origin)),
        ("bad path", 400, ask(edge, "GET", "//health", &origin)),
        ("no method", 405, ask(edge, "GET", CHAT, &origin)),
        ("own", 200, ask(edge, "GET", "/v1/models", &origin)),
        ("health", 200, ask(edge, "GET", "/health", &origin)),
        ("failure", 502, {
            fault(9);
            raw::post(edge, CHAT, &origin, &body())
        }),
    ];
    for (what, status, answer) in answers {
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        for (name, value) in [
            (ALLOWED, PAGE),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "retry-after, x-request-id"),
            ("vary", "Origin"),
        ] {
            let values = answer.headers.iter().filter(|(known, _)| known == name);
            let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
            assert_eq!(values, [value], "{what} {name}");
        }
    }
    fault(0);
    for headers in [&[][..], &[("origin", "https://evil.example")]] {
        let answer = raw::post(edge, CHAT, headers, &body());
        assert_eq!(answer.status, 200, "an origin is no credential");
        assert_eq!(
            (answer.header(ALLOWED), answer.header("vary")),
            (None, Some("Origin"))
        );
    }
}

#[test]
fn generation_first_and_http_2_say_the_same() {
    let more = listed() + "\nschedule_style: generation_first";
    let (_fleet, kindred) = start(&more);
    let mut streamed = chat("hello");
    streamed["stream"] = true.into();
    let answer = raw::post(
        kindred.edge(),
        CHAT,
        &[("origin", PAGE)],
        &streamed.to_string(),
    );
    assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some(PAGE)));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .timeout(support::PATIENCE)
            .http2_prior_knowledge()
            .build()
            .unwrap();
        let stream = client.post(kindred.url(CHAT)).header("origin", PAGE);
        let stream = stream.body(streamed.to_string()).send().await.unwrap();
        let models = client.get(kindred.url("/v1/models")).header("origin", PAGE);
        let models = models.send().await.unwrap();
        for answer in [stream, models] {
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.version(), reqwest::Version::HTTP_2);
            assert_eq!(answer.headers()[ALLOWED], PAGE);
            assert_eq!(answer.headers()["vary"], "Origin");
        }
    });
}

#[test]
fn a_star_is_for_every_page_and_nothing_is_the_default() {
    let (fleet, kindred) = start("cors: {allow_origins: ['*'], allow_headers: [x-a, X-B]}");
    let answer = ask(
        kindred.edge(),
        "GET",
        "/health",
        &[("origin", "https://x.example")],
    );
    assert_eq!(
        (answer.header(ALLOWED), answer.header("vary")),
        (Some("*"), None)
    );
    let told = preflight(kindred.edge(), CHAT, "https://x.example");
    assert_eq!(
        told.header("access-control-allow-headers"),
        Some("x-a, x-b")
    );
    assert_eq!(told.header("access-control-allow-credentials"), None);

    support::reload::reload(&kindred, &fleet.yaml(""), "applied");
    let told = preflight(kindred.edge(), CHAT, "https://x.example");
    assert_eq!(told.status, 204);
    let answer = raw::post(kindred.edge(), CHAT, &[("origin", PAGE)], &body());
    for answer in [told, answer] {
        let any = answer
            .headers
            .iter()
            .find(|(name, _)| name.starts_with("access-control"));
        assert_eq!((any, answer.header("vary")), (None, None));
    }
}

#[test]
fn a_file_that_lets_every_page_act_as_its_visitor_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kindred.yaml");
    let cors = "cors: {allow_origins: ['*'], allow_credentials: true}";
    std::fs::write(&file, fleet::yaml(&[], &[], cors)).unwrap();
    let (code, _, err) = run(&["check", "--config", file.to_str().unwrap()], "");
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("cors.allow_credentials") && err.contains("every origin"),
        "{err}"
    );
}
