//! Body fields that only Kindred may set.
//!
//! They carry the hand-over between the legs and the parent's id (specification section 5.9), so a
//! client's own copies are removed before anything reads the body. Names are compared decoded, which
//! leaves no spelling to hide in.

use super::{
    body::BodyView,
    conversation::{PARAMS, PARENT},
    object::Object,
};

/// The hand-over between the legs.
pub const DISAGGREGATED_PARAMS: &str = "disaggregated_params";
/// Prompt ids as the context leg hands them to the generation leg.
pub const PROMPT_TOKEN_IDS_B64: &str = "prompt_token_ids_b64";
/// The parent's id inside `conversation_params`, as logs and metrics name it.
pub const CONVERSATION_PARENT: &str = "conversation_params.subagent_affinity_id";
/// Top-level fields that a client may not set: the hand-over, and those by which engines let a
/// request choose its own place.
pub const TOP_LEVEL: [&str; 10] = [
    DISAGGREGATED_PARAMS,
    PROMPT_TOKEN_IDS_B64,
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    KV_TRANSFER,
    EC_TRANSFER,
];
const KV_TRANSFER: &str = "kv_transfer_params";
/// The same for the caches of encoders (vLLM).
const EC_TRANSFER: &str = "ec_transfer_params";
/// Where vLLM takes further arguments of its engine from, the transfer's among them.
pub const ENGINE_ARGUMENTS: &str = "vllm_xargs";
/// Fields within groups: the group, the field, and both as logs and metrics name them.
pub const WITHIN: [(&str, &str, &str); 3] = [
    (PARAMS, PARENT, CONVERSATION_PARENT),
    (
        ENGINE_ARGUMENTS,
        KV_TRANSFER,
        "vllm_xargs.kv_transfer_params",
    ),
    (
        ENGINE_ARGUMENTS,
        EC_TRANSFER,
        "vllm_xargs.ec_transfer_params",
    ),
];

/// A body without the fields that a client may not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pruned {
    /// The bytes that go on.
    pub body: Vec<u8>,
    /// Which fields were removed, in the words of this file's constants.
    pub fields: Vec<&'static str>,
}

/// Removes what a client may not set; `None` where there is nothing to remove.
pub fn prune(body: &BodyView) -> Option<Pruned> {
    let mut fields = Vec::new();
    let mut changes: Vec<(&str, Option<&str>)> = Vec::new();
    for field in TOP_LEVEL {
        if body.get(field).is_some() {
            fields.push(field);
            changes.push((field, None));
        }
    }
    let groups = [PARAMS, ENGINE_ARGUMENTS].map(|group| {
        let object = body
            .get(group)
            .and_then(|raw| Object::parse(raw.get()).ok())?;
        let within = WITHIN.iter().filter(|(outer, _, _)| *outer == group);
        let found: Vec<_> = within
            .filter(|(_, name, _)| object.get(name).is_some())
            .collect();
        let gone: Vec<_> = found.iter().map(|(_, name, _)| (*name, None)).collect();
        if gone.is_empty() {
            return None;
        }
        fields.extend(found.iter().map(|(_, _, label)| *label));
        let left = String::from_utf8(object.splice(&gone)).ok()?;
        Some((group, left))
    });
    let left = groups.iter().flatten();
    changes.extend(left.map(|(group, left)| (*group, Some(left.as_str()))));
    (!fields.is_empty()).then(|| Pruned {
        body: body.splice(&changes),
        fields,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pruned(body: &str) -> Option<(String, Vec<&'static str>)> {
        let view = BodyView::parse(body.as_bytes()).expect("a body");
        let pruned = prune(&view)?;
        Some((
            String::from_utf8(pruned.body).expect("UTF-8"),
            pruned.fields,
        ))
    }

    #[test]
    fn leaves_an_honest_body_alone() {
        assert_eq!(
            pruned(r#"{"model":"m","conversation_params":{"conversation_id":"a"}}"#),
            None
        );
        assert_eq!(
            pruned(r#"{"conversation_params":"disaggregated_params"}"#),
            None
        );
    }

    #[test]
    fn removes_every_spelling() {
        let body = r#"{"model":"m", "disaggregated\u005fparams":null, "x":1,
            "conversation_params":{"conversation_id":"a", "subagent_\u0061ffinity_id":"p"},
            "prompt_token_ids_b64":"AA=="}"#;
        let (body, fields) = pruned(body).expect("something to remove");
        assert_eq!(
            body,
            "{\"model\":\"m\", \"x\":1,\n            \"conversation_params\":{\"conversation_id\":\"a\"}}"
        );
        assert_eq!(
            fields,
            [
                DISAGGREGATED_PARAMS,
                PROMPT_TOKEN_IDS_B64,
                CONVERSATION_PARENT
            ]
        );
    }

    #[test]
    fn removes_what_an_engine_takes_from_its_further_arguments() {
        let body = r#"{"vllm_xargs":{"kv_transfer_params":"x", "top":1, "ec_transfer_para\u006ds":[2]},
            "ec_transfer_params":{}}"#;
        let (body, fields) = pruned(body).expect("something to remove");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body, serde_json::json!({"vllm_xargs": {"top": 1}}));
        assert_eq!(
            fields,
            [
                EC_TRANSFER,
                "vllm_xargs.kv_transfer_params",
                "vllm_xargs.ec_transfer_params"
            ]
        );
        assert_eq!(pruned(r#"{"vllm_xargs":{"top":1}}"#), None);
    }

    #[test]
    fn removes_every_copy_of_the_parent() {
        let body =
            r#"{"conversation_params":{"subagent_affinity_id":"p","subagent_affinity_id":"q"}}"#;
        let (body, fields) = pruned(body).expect("something to remove");
        assert_eq!(body, r#"{"conversation_params":{}}"#);
        assert_eq!(fields, [CONVERSATION_PARENT]);
    }
}
