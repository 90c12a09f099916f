use super::*;
use crate::wire::signature::SigningKey;

const INFO: &str = r#"{"disaggregated_params": {"ctx_info_endpoint": ["tcp://10.0.0.1:5000", "tcp://10.0.0.1:5001"], "ctx_endpoint_generation": "g7", "ctx_dp_rank": 0, "later_field": {"a": 1.50}}, "max_batch_size": 8}"#;

fn context(info: &str) -> ContextEndpoint {
    ContextEndpoint::of_server_info(info.as_bytes()).unwrap()
}

fn request(endpoint: Endpoint, body: &str) -> Result<String, BodyError> {
    let context = context(INFO);
    let params = GenerationFirstParams {
        endpoint,
        disagg_request_id: 1 << 40,
        context: &context,
        conversation_params: Some(r#"{"conversation_id":"c"}"#),
    };
    let view = BodyView::parse(body.as_bytes()).unwrap();
    generation_first_request(&view, &params).map(|body| String::from_utf8(body).unwrap())
}

#[test]
fn the_request_waits_for_the_id_at_the_chosen_context_instance() {
    let told = r#"{"ctx_info_endpoint": "tcp://10.0.0.1:5000", "ctx_dp_rank": 0, "later_field": {"a": 1.50},"request_type":"generation_only","ctx_request_id":1099511627776,"disagg_request_id":1099511627776,"schedule_style":1}"#;
    let conversation = r#""conversation_params":{"conversation_id":"c"}"#;
    let chat = r#"{"model":"m", "messages":[{"role":"user","content":"caf\u00e9"}],"stream":true,"stream_options":{"include_usage":true}"#;
    assert_eq!(
        request(Endpoint::ChatCompletions, &format!("{chat}}}")).unwrap(),
        format!(r#"{chat},"disaggregated_params":{told},{conversation}}}"#)
    );
}

#[test]
fn a_completions_prompt_is_that_of_the_context_request() {
    for (given, sent) in [
        (r#""a""#, r#""a""#),
        (r#"["a"]"#, r#""a""#),
        ("[1, 2]", "[1, 2]"),
    ] {
        let sent = format!(r#""prompt":{sent}"#);
        let body = request(Endpoint::Completions, &format!(r#"{{"prompt":{given}}}"#)).unwrap();
        assert!(body.contains(&sent), "{body}");
    }
    assert!(request(Endpoint::Completions, r#"{"prompt":["a","b"]}"#).is_err());
}

#[test]
fn the_endpoint_is_signed_as_it_is_sent() {
    // Value K2 of specification section 5.6.
    let endpoint = context(INFO);
    let transfer = endpoint.kv_transfer().unwrap();
    assert!(transfer.requires_auth());
    assert_eq!(
        SigningKey::new("secret").unwrap().sign_disagg(&transfer),
        "sha256=9f231f1556947f2cc0d68b742964cb16e8662f6b41262d536be4f2692f786130"
    );
}

#[test]
fn an_opaque_state_alone_is_enough() {
    let info = r#"{"disaggregated_params":{"ctx_info_endpoint":[],"encoded_opaque_state":"b3Bh"}}"#;
    assert_eq!(
        context(info).members,
        r#"{"ctx_info_endpoint":null,"encoded_opaque_state":"b3Bh""#
    );
    assert!(context(info).kv_transfer().unwrap().requires_auth());
}

#[test]
fn an_instance_that_tells_no_endpoint_is_not_waited_for() {
    for info in [
        r#"{"disaggregated_params":null}"#,
        r#"{"disaggregated_params":[]}"#,
        r#"{"disaggregated_params":{"ctx_info_endpoint":[]}}"#,
        r#"{"disaggregated_params":{"ctx_info_endpoint":[null]}}"#,
        r#"{"disaggregated_params":{"ctx_info_endpoint":""}}"#,
        r#"{"disaggregated_params":{"ctx_dp_rank":0}}"#,
        r#"{"disaggregated_params":{"schedule_style":1,"disagg_request_id":7}}"#,
        "{}",
    ] {
        let read = ContextEndpoint::of_server_info(info.as_bytes());
        assert_eq!(read, Err(InfoError::NoEndpoint), "{info}");
    }
    for info in ["", "[]", "null", "{", "\u{ff}"] {
        let read = ContextEndpoint::of_server_info(info.as_bytes());
        assert!(matches!(read, Err(InfoError::NotJson(_))), "{info}");
    }
}
