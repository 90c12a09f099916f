use std::{fs, path::Path};

use serde_json::json;

use super::*;

/// A tokenizer whose tokens are the words of `a b c d e` (1 to 5); 0 is any other.
fn write(folder: &Path, settings: &serde_json::Value) {
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null,
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "e", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"e": {"id": "e", "ids": [5], "tokens": ["e"]}},
        },
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "?",
                  "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5}},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

fn ids(tokenizer: &Tokenizer, endpoint: Endpoint, body: &serde_json::Value) -> Option<Vec<u32>> {
    let body = body.to_string();
    let view = BodyView::parse(body.as_bytes()).unwrap();
    tokenizer.ids(&Written::of(&view, endpoint)?).ok()
}

#[test]
fn completions_are_read_whole_with_the_special_tokens_they_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &json!({}));
    let tokenizer = Tokenizer::read(folder.path(), &[]).unwrap();
    let ids = |body| ids(&tokenizer, Endpoint::Completions, &body);
    assert_eq!(
        ids(json!({"prompt": "a b c d x"})),
        Some(vec![5, 1, 2, 3, 4, 0])
    );
    assert_eq!(ids(json!({"prompt": ["a b"]})), Some(vec![5, 1, 2]));
    let plain = json!({"prompt": "a b", "add_special_tokens": false});
    assert_eq!(ids(plain), Some(vec![1, 2]));
    for none in [
        json!({}),
        json!({"prompt": 7}),
        json!({"prompt": ["a", "b"]}),
    ] {
        assert_eq!(ids(none.clone()), None, "{none}");
    }
}

#[test]
fn chats_are_written_by_the_template_that_fits() {
    let template = "{%- for message in messages -%}{{ message.content.strip() }} {% endfor -%}
        {%- if add_generation_prompt %}{{ bos_token }} {% endif %}{{ mood or '' }}";
    let settings = json!({
        "bos_token": {"content": "e"},
        "chat_template": [
            {"name": "default", "template": template},
            {"name": "tool_use", "template": "{{ tools[0].name }}"},
        ],
    });
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &settings);
    let tokenizer = Tokenizer::read(folder.path(), &[]).unwrap();
    let ids = |body| ids(&tokenizer, Endpoint::ChatCompletions, &body);
    let messages = json!([{"role": "user", "content": " a "}, {"role": "user", "content": "b"}]);
    assert_eq!(ids(json!({"messages": messages})), Some(vec![1, 2, 5]));
    let bare = json!({"messages": messages, "add_generation_prompt": false,
                      "chat_template_kwargs": {"mood": "d"}});
    assert_eq!(ids(bare), Some(vec![1, 2, 4]));
    let tools = json!({"messages": messages, "tools": [{"name": "c"}]});
    assert_eq!(ids(tools), Some(vec![3]));
    // The client's own template is not rendered here.
    assert_eq!(
        ids(json!({"messages": messages, "chat_template": "a"})),
        None
    );
}

#[test]
fn a_folder_is_read_again_only_when_it_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &json!({}));
    let first = Tokenizer::read(folder.path(), &[]).unwrap();
    let again = Tokenizer::read(folder.path(), std::slice::from_ref(&first)).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    fs::write(folder.path().join("chat_template.jinja"), "a").unwrap();
    let changed = Tokenizer::read(folder.path(), std::slice::from_ref(&first)).unwrap();
    assert!(!Arc::ptr_eq(&first, &changed));
    let chat = json!({"messages": []});
    assert_eq!(ids(&first, Endpoint::ChatCompletions, &chat), None);
    assert_eq!(
        ids(&changed, Endpoint::ChatCompletions, &chat),
        Some(vec![1])
    );
}
