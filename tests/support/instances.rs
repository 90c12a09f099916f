//! What the operator's port says of instances, and conversations that tell where they were served.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use super::{Kindred, chat, eventually, raw};

/// One instance as `GET /instances` shows it.
pub fn instance(kindred: &Kindred, alias: &str) -> Value {
    let list = kindred.admin("/instances").json();
    let all = list["instances"].as_array().unwrap();
    let found = all.iter().find(|instance| instance["alias"] == alias);
    found
        .unwrap_or_else(|| panic!("no {alias} in {list}"))
        .clone()
}

/// Sends a bare request to the operator's port.
pub fn operate(kindred: &Kindred, method: &str, path: &str, fields: &str) -> raw::Answer {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: t\r\n{fields}content-length: 0\r\nconnection: close\r\n\r\n"
    );
    raw::send(kindred.admin.unwrap(), request.as_bytes())
}

/// Empties an instance, or ends that with `None`.
pub fn drain(kindred: &Kindred, alias: &str, mode: Option<&str>) -> Value {
    let path = format!("/instances/{alias}/drain");
    let answer = match mode {
        Some(mode) => operate(kindred, "POST", &format!("{path}?mode={mode}"), ""),
        None => operate(kindred, "DELETE", &path, ""),
    };
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Waits until an instance has a standing.
pub fn until(kindred: &Kindred, alias: &str, standing: &str) {
    eventually(&format!("{alias} is {standing}"), || {
        (instance(kindred, alias)["standing"] == standing).then_some(())
    });
}

/// Asks in a session; the status, and the instance that answered.
pub fn ask(kindred: &Kindred, session: &str) -> (u16, String) {
    let body = chat("hello").to_string();
    let headers = [("x-session-id", session)];
    let answer = raw::post(kindred.edge(), "/v1/chat/completions", &headers, &body);
    let place = answer.header("x-kindred-generation").unwrap_or_default();
    (answer.status, place.to_owned())
}

/// The name of a session that is bound to an instance; nothing may be in flight.
pub fn bound_to(kindred: &Kindred, alias: &str) -> String {
    let mut names = (0..100).map(|number| format!("{alias}-{number}"));
    let session = names.find(|session| place(kindred, session) == alias);
    kindred.assert_idle();
    session.expect("new sessions go round")
}

/// Sends a request of a session; it is open until the connection is dropped.
pub fn open(kindred: &Kindred, session: &str, stream: bool) -> TcpStream {
    let mut body = chat("hello");
    body["stream"] = stream.into();
    // Long enough to be still running whatever is done meanwhile.
    body["max_tokens"] = 200.into();
    let headers = [("x-session-id", session)];
    let bytes = raw::request(
        "/v1/chat/completions",
        &headers,
        body.to_string().as_bytes(),
    );
    let mut client = raw::connect(kindred.edge());
    client.write_all(&bytes).unwrap();
    client
}

/// Where a session that must be served is served.
pub fn place(kindred: &Kindred, session: &str) -> String {
    let (status, place) = ask(kindred, session);
    assert_eq!(status, 200, "{session}");
    place
}

/// `aggregated_servers` at these addresses, with debug headers, and `more` after it.
pub fn aggregated(addresses: &[SocketAddr], more: &str) -> String {
    let urls: Vec<_> = addresses
        .iter()
        .map(|address| format!("'{address}'"))
        .collect();
    format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n\
         telemetry: {{debug_headers: true}}\n\
         aggregated_servers:\n  num_instances: {}\n  urls: [{}]\n  router: {{type: conversation}}\n{more}\n",
        urls.len(),
        urls.join(", ")
    )
}
