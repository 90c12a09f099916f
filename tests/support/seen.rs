//! Reading what reached a worker.

use kindred::{
    simulate::worker::recorder::Recorded,
    wire::{
        Role,
        coerce::Integer,
        signature::{AffinityClaim, KvTransfer, SigningKey},
    },
};
use serde_json::{Value, value::RawValue};

/// The only value of a header.
pub fn header<'a>(request: &'a Recorded, name: &str) -> Option<&'a str> {
    let mut values = request
        .headers
        .iter()
        .filter(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str());
    let value = values.next();
    assert_eq!(values.next(), None, "{name} came twice");
    value
}

/// The names of all headers, lower-case and in order.
pub fn header_names(request: &Recorded) -> Vec<String> {
    let mut names: Vec<_> = request
        .headers
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    names.sort();
    names
}

/// The body, which the recorder must hold whole.
pub fn body(request: &Recorded) -> Value {
    assert_eq!(request.body.len(), request.body_length, "a cut body");
    serde_json::from_str(&request.body).unwrap()
}

pub fn conversation_id(request: &Recorded) -> Option<String> {
    let body = body(request);
    let id = body.pointer("/conversation_params/conversation_id")?;
    Some(id.as_str().unwrap().to_owned())
}

pub fn request_id(request: &Recorded) -> u64 {
    let body = body(request);
    body["disaggregated_params"]["disagg_request_id"]
        .as_u64()
        .unwrap()
}

/// The parent that the request's affinity headers name, after their signature was checked against
/// the body that came with them.
pub fn signed_parent(request: &Recorded, key: &str, role: Role) -> Option<String> {
    let Some(parent) = header(request, "x-trtllm-subagent-affinity-id") else {
        assert_eq!(header(request, "x-trtllm-subagent-affinity-auth"), None);
        return None;
    };
    let body = body(request);
    let params = &body["disaggregated_params"];
    let conversation = conversation_id(request);
    let claim = AffinityClaim {
        role,
        model: body["model"].as_str().unwrap(),
        conversation_id: conversation.as_deref(),
        affinity_id: parent,
        request_type: params["request_type"].as_str(),
        disagg_request_id: params["disagg_request_id"].as_u64().map(Integer::from),
    };
    let presented = header(request, "x-trtllm-subagent-affinity-auth").unwrap();
    let key = SigningKey::new(key).unwrap();
    assert!(key.verify_affinity(&claim, presented), "{request:?}");
    Some(parent.to_owned())
}

/// Whether `x-trtllm-disagg-auth` is there and holds for the body's hand-over.
pub fn handover_is_signed(request: &Recorded, key: &str) -> bool {
    let Some(presented) = header(request, "x-trtllm-disagg-auth") else {
        return false;
    };
    let body = body(request);
    let raw = |name: &str| body["disaggregated_params"][name].to_string();
    let (state, endpoint) = (raw("encoded_opaque_state"), raw("ctx_info_endpoint"));
    let transfer = KvTransfer::new(Some(&state), Some(&endpoint)).unwrap();
    assert!(transfer.requires_auth());
    SigningKey::new(key)
        .unwrap()
        .verify_disagg(&transfer, presented)
}

/// Names and raw values of a JSON object, in order.
pub fn members(json: &str) -> Vec<(String, String)> {
    struct Members(Vec<(String, String)>);
    impl<'de> serde::Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Members;
                fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    out.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Members, A::Error> {
                    let mut members = Vec::new();
                    while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                        members.push((name, value.get().to_owned()));
                    }
                    Ok(Members(members))
                }
            }
            deserializer.deserialize_map(Visitor)
        }
    }
    serde_json::from_str::<Members>(json).unwrap().0
}

/// The raw value of one member that an object has exactly once.
pub fn member(json: &str, name: &str) -> Option<String> {
    let mut values = members(json)
        .into_iter()
        .filter(|(known, _)| known == name)
        .map(|(_, value)| value);
    let value = values.next();
    assert_eq!(values.next(), None, "{name} stands twice in {json}");
    value
}
