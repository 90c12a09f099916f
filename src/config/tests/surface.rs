//! `cors`, and what `gateway` says of the edge's own routes.

use std::time::Duration;

use super::{bad, edge, good};
use crate::config::{
    AllowedHeaders, AllowedOrigins, CorsConfig, GatewayConfig, InstanceNames, OwnRoute,
};

fn cors(members: &str) -> CorsConfig {
    let config = good(&edge(&format!("cors: {{{members}}}")));
    config.cors.expect("a section")
}

fn refused(members: &str, parts: &[&str]) {
    bad(&edge(&format!("cors: {{{members}}}")), parts);
}

#[test]
fn cors_is_off_without_a_section() {
    assert_eq!(good(&edge("")).cors, None);
    assert_eq!(good(&edge("cors:")).cors, None);
}

#[test]
fn cors_has_defaults_behind_its_origins() {
    let config = cors("allow_origins: ['https://a.example', 'http://localhost:3000']");
    let origins = ["https://a.example", "http://localhost:3000"].map(str::to_owned);
    assert_eq!(config.origins, AllowedOrigins::Listed(origins.to_vec()));
    assert_eq!(config.methods, ["GET", "HEAD", "POST"]);
    assert_eq!(config.headers, AllowedHeaders::Any);
    assert_eq!(config.expose_headers, ["retry-after", "x-request-id"]);
    assert!(!config.credentials);
    assert_eq!(config.max_age, Duration::from_secs(600));
}

#[test]
fn cors_takes_what_is_said() {
    let config = cors(
        "allow_origins: ['https://[::1]:8443', 'https://[::1]:8443'], allow_methods: [post], \
         allow_headers: [X-A, authorization], expose_headers: [], allow_credentials: true, \
         max_age: 0s",
    );
    let origins = vec!["https://[::1]:8443".to_owned()];
    assert_eq!(config.origins, AllowedOrigins::Listed(origins));
    assert_eq!(config.methods, ["POST"]);
    let names = ["x-a", "authorization"].map(str::to_owned);
    assert_eq!(config.headers, AllowedHeaders::Listed(names.to_vec()));
    assert!(config.expose_headers.is_empty() && config.credentials);
    assert_eq!(config.max_age, Duration::ZERO);
    let config = cors("allow_origins: ['*'], allow_headers: [x-a, '*']");
    assert_eq!(config.origins, AllowedOrigins::Any);
    assert_eq!(config.headers, AllowedHeaders::Any);
}

#[test]
fn cors_that_opens_too_much_or_nothing_is_refused() {
    let credentials = "cors.allow_credentials: is true for every origin";
    refused(
        "allow_origins: ['*'], allow_credentials: true",
        &[credentials],
    );
    refused("max_age: 5s", &["cors.allow_origins: is missing"]);
    refused("allow_origins: []", &["cors.allow_origins: is empty"]);
    for origin in [
        "chat.example.com",
        "https://chat.example.com/",
        "https://chat.example.com/a",
        "https://Chat.example.com",
        "HTTPS://chat.example.com",
        "https://chat.example.com:443",
        "http://chat.example.com:80",
        "https://*.example.com",
        "https://",
        "null",
        "",
    ] {
        let members = format!("allow_origins: ['{origin}']");
        refused(
            &members,
            &["cors.allow_origins[0]", "write an origin as browsers do"],
        );
    }
    let with = |more: &str| format!("allow_origins: ['https://a.example'], {more}");
    refused(
        &with("allow_methods: ['P OST']"),
        &["cors.allow_methods[0]"],
    );
    refused(&with("allow_headers: ['x y']"), &["cors.allow_headers[0]"]);
    refused(
        &with("expose_headers: ['x:y']"),
        &["cors.expose_headers[0]"],
    );
    refused(
        &with("max_age: 1500ms"),
        &["cors.max_age: must be whole seconds"],
    );
    refused(&with("max_age: 2days"), &["cors.max_age"]);
    refused(
        &with("allow_origin: x"),
        &["cors.allow_origin", "allow_origins"],
    );
}

fn gateway(members: &str) -> GatewayConfig {
    let text = edge(&format!("gateway: {{anonymous: none{members}}}"));
    good(&text).gateway.expect("a section")
}

#[test]
fn the_gateway_tells_everybody_health_and_version_only() {
    let default = gateway("");
    assert_eq!(default.open_routes, [OwnRoute::Health, OwnRoute::Version]);
    assert_eq!(default.cluster_info, InstanceNames::Aliases);
    let said = gateway(", open_routes: [Models, metrics, models], cluster_info: addresses");
    assert_eq!(said.open_routes, [OwnRoute::Models, OwnRoute::Metrics]);
    assert_eq!(said.cluster_info, InstanceNames::Addresses);
    assert!(gateway(", open_routes: []").open_routes.is_empty());
    for (members, parts) in [
        (
            "open_routes: [helth]",
            ["gateway.open_routes[0]", "did you mean `health`"],
        ),
        (
            "cluster_info: names",
            ["gateway.cluster_info", "aliases, addresses"],
        ),
    ] {
        bad(
            &edge(&format!("gateway: {{anonymous: none, {members}}}")),
            &parts,
        );
    }
}
