//! What a worker must not have seen, whatever was sent.

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{
        Role,
        body::BodyView,
        headers::{self, PARENT_HEADERS},
        signature::{SigningKey, SigningProfile},
        trace,
        verify::Verifier,
        worker_body::WorkerBody,
    },
};
use serde_json::Value;

use crate::KEY;

/// What of a request may be believed.
#[derive(Debug, Clone, Copy)]
pub struct Trusted<'a> {
    pub role: Role,
    /// The parent that the signed pair names.
    pub parent: Option<&'a str>,
    /// Whether there is a hand-over to sign.
    pub handed_over: bool,
}

/// What is wrong with what came by an edge: it builds the workers' requests anew, so that nothing of
/// a client's is in them but what it may say.
pub fn unclean(request: &Recorded, role: Role, parent: Option<&str>) -> Vec<String> {
    let mut wrong = Vec::new();
    let known = [
        "host",
        "content-type",
        "content-length",
        headers::AFFINITY_ID,
        headers::AFFINITY_AUTH,
        headers::DISAGG_AUTH,
        headers::DATA_PARALLEL_RANK,
        trace::REQUEST_ID,
    ];
    for (name, value) in &request.headers {
        if !known.contains(&name.to_lowercase().as_str()) {
            wrong.push(format!(
                "{} worker saw header {name}: {value}",
                role.label()
            ));
        }
        let trusted = name.eq_ignore_ascii_case(headers::AFFINITY_ID) && parent == Some(value);
        if (value.contains("evil") && !trusted) || value == "666" {
            wrong.push(format!("{} worker saw {name}: {value}", role.label()));
        }
    }
    let trusted = Trusted {
        role,
        parent,
        handed_over: role == Role::Generation,
    };
    wrong.extend(unverified(request, trusted));
    wrong.extend(unclean_body(&request.body, role));
    wrong
}

/// What is wrong with the internal headers of what came by a filter: of each there is one copy that
/// its signature vouches for, or none.
pub fn unverified(request: &Recorded, trusted: Trusted) -> Vec<String> {
    let mut wrong = Vec::new();
    let copies = |name: &str| -> Vec<&str> {
        let all = request.headers.iter();
        let all = all.filter(|(known, _)| folded(known) == name);
        all.map(|(_, value)| value.as_str()).collect()
    };
    let told = copies(headers::DATA_PARALLEL_RANK);
    let ran = request.rank.map(|rank| rank.to_string());
    if told.len() != 1 || ran.is_some_and(|ran| told != [ran]) {
        wrong.push(format!("rank told {told:?}"));
    }
    if copies(headers::AFFINITY_ID) != Vec::from_iter(trusted.parent)
        || copies(headers::AFFINITY_AUTH).len() != usize::from(trusted.parent.is_some())
    {
        wrong.push(format!("affinity of {:?}", copies(headers::AFFINITY_ID)));
    }
    if copies(headers::DISAGG_AUTH).len() != usize::from(trusted.handed_over) {
        wrong.push(format!("signatures {:?}", copies(headers::DISAGG_AUTH)));
    }
    let own = [
        headers::AFFINITY_ID,
        headers::AFFINITY_AUTH,
        headers::DISAGG_AUTH,
        headers::DATA_PARALLEL_RANK,
    ];
    for (name, value) in &request.headers {
        if is_a_workers_secret(name) && !own.contains(&name.to_lowercase().as_str()) {
            wrong.push(format!("internal header {name}: {value}"));
        }
    }
    wrong.extend(unsigned(request, trusted));
    wrong
}

/// Whether nobody but Kindred may say this to a worker, in whatever spelling.
pub fn is_a_workers_secret(name: &str) -> bool {
    headers::is_internal(name.as_bytes()) || PARENT_HEADERS.contains(&folded(name).as_str())
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}

/// Whether the trusted copies are Kindred's own: signed with the key that clients do not have.
fn unsigned(request: &Recorded, trusted: Trusted) -> Option<String> {
    let verifier = Verifier {
        role: Some(trusted.role),
        profile: SigningProfile::Trtllm,
        keys: Some(SigningKey::new(KEY).unwrap().into()),
    };
    let body = match WorkerBody::parse(request.body.as_bytes()) {
        Ok(body) => body,
        Err(error) => return Some(format!("{error} in {}", request.body)),
    };
    let pairs = &request.headers;
    let affinity = verifier.affinity(pairs, &body.facts);
    let transfer = verifier.kv_transfer(pairs, &body.transfer);
    let found = affinity
        .clone()
        .map(|found| found.map(|found| found.affinity_id));
    let good = found == Ok(trusted.parent.map(str::to_owned)) && transfer.is_ok();
    (!good).then(|| format!("{affinity:?}, {transfer:?}"))
}

fn unclean_body(text: &str, role: Role) -> Vec<String> {
    let mut wrong = Vec::new();
    let body: Value = serde_json::from_str(text).unwrap();
    if BodyView::parse(text.as_bytes()).is_err() {
        wrong.push(format!("ambiguous body {text}"));
    }
    let known = [
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "stream",
        "prompt_token_ids",
        "disaggregated_params",
        "conversation_params",
    ];
    for (name, _) in body.as_object().unwrap() {
        if !known.contains(&name.as_str()) {
            wrong.push(format!("body field {name} in {text}"));
        }
    }
    let params = &body["disaggregated_params"];
    if params["request_type"] != role.request_type().unwrap() {
        wrong.push(format!("request type {}", params["request_type"]));
    }
    let state = params["encoded_opaque_state"].as_str().unwrap_or("none");
    if text.replace(state, "").contains("evil") || client_numbers(&body) {
        wrong.push(format!("a client's value in {text}"));
    }
    if let Some(params) = body.get("conversation_params") {
        let names: Vec<_> = params.as_object().unwrap().keys().collect();
        if names != ["conversation_id"] {
            wrong.push(format!("conversation_params {params}"));
        }
    }
    wrong
}

/// Whether the number 666 stands anywhere.
fn client_numbers(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.as_u64() == Some(666) || number.as_u64() == Some(1_099_511_628_442)
        }
        Value::Array(items) => items.iter().any(client_numbers),
        Value::Object(members) => members.values().any(client_numbers),
        _ => false,
    }
}
