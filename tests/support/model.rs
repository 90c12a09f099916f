//! A model's folder as small as can be: a word is a token, and chats have a template.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Ids of the words `w0`, `w1`, ... begin here.
const FIRST_WORD: usize = 10;

/// The chat template of [`write`]: `<s>`, then each message as its role, its words and `</s>`, then
/// the role that goes on.
const TEMPLATE: &str = "{{ bos_token }}
{% for message in messages %}
{{ message.role }} {{ message.content }} {{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
assistant
{% endif %}";

/// Writes the folder: words `w0` to `w999`, roles, and the marks `<s>` and `</s>`.
pub fn write(folder: &Path) {
    let special = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    let marks = ["<unk>", "<s>", "</s>"];
    let roles = ["system", "user", "assistant"];
    let named = marks
        .into_iter()
        .chain(roles)
        .map(str::to_owned)
        .enumerate();
    let words = (0..1000).map(|word| (FIRST_WORD + word, format!("w{word}")));
    let vocabulary: Map<String, Value> = named
        .chain(words)
        .map(|(id, word)| (word, json!(id)))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": marks.into_iter().enumerate().map(|(id, mark)| special(id, mark))
            .collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocabulary},
    });
    let settings = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"},
                          "chat_template": TEMPLATE});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

/// `count` words from `w{first}` on, which are as many tokens.
pub fn words(first: usize, count: usize) -> String {
    let words: Vec<String> = (first..first + count)
        .map(|word| format!("w{word}"))
        .collect();
    words.join(" ")
}

/// The tokens of a chat whose messages have these numbers of words.
pub fn chat_tokens(messages: &[usize]) -> usize {
    2 + messages.iter().map(|words| words + 2).sum::<usize>()
}
