use proptest::prelude::*;

use super::*;

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn chat_text(messages: &str) -> String {
    let messages = raw(messages);
    let Units::CodePoints(points) = Prompt::chat(Some(&messages), None).units() else {
        panic!("no text");
    };
    let text: String = points
        .iter()
        .map(|point| char::from_u32(*point).unwrap())
        .collect();
    assert_eq!(
        Prompt::chat(Some(&messages), None).characters(),
        points.len() as u64
    );
    text
}

fn completion(prompt: &str) -> (u64, u64, Units) {
    let prompt = raw(prompt);
    let prompt = Prompt::completion(Some(&prompt));
    (prompt.weight(), prompt.tokens(), prompt.units())
}

#[test]
fn a_chat_is_its_role_and_content_lines() {
    assert_eq!(
        chat_text(r#"[{"role":"system","content":"be brief"}, {"content":"a\nb","role":"user"}]"#),
        "system:be brief\nuser:a\nb"
    );
    assert_eq!(
        chat_text(r#"[{"role":"assistant","content":null}]"#),
        "assistant:None"
    );
    assert_eq!(
        chat_text(r#"[{"role":"assistant","tool_calls":[{}]}]"#),
        "assistant:"
    );
    assert_eq!(
        chat_text(r#"[{"role":"a","r\u006fle":"b","content":""}]"#),
        "b:"
    );
    assert_eq!(chat_text("[]"), "");
    assert_eq!(chat_text("7"), "");
}

#[test]
fn content_that_is_no_string_is_as_python_prints_it() {
    assert_eq!(
        chat_text(
            r#"[{"role":"user","content":[{"type":"text","text":"it's"},{"n":1.5,"t":true}]}]"#
        ),
        r#"user:[{'type': 'text', 'text': "it's"}, {'n': 1.5, 't': True}]"#
    );
    assert_eq!(
        chat_text(r#"[{"role":"user","content":["a\n'\"",[]]}]"#),
        r#"user:['a\n\'"', []]"#
    );
}

#[test]
fn code_points_are_counted_not_bytes_or_escapes() {
    let (weight, tokens, units) = completion(r#""\u4e2d文\ud83d\ude00😀é\"\\\/\n\t""#);
    assert_eq!((weight, tokens), (2, 10));
    let points = "\u{4e2d}文😀😀é\"\\/\n\t".chars().map(u32::from).collect();
    assert_eq!(units, Units::CodePoints(points));
}

#[test]
fn lists_of_numbers_are_printed_and_are_token_ids() {
    assert_eq!(
        completion("[1, 22,\n333]"),
        (2, 3, Units::Tokens(vec![1, 22, 333]))
    );
    assert_eq!(completion("[[1,2],[3]]"), (2, 3, Units::Tokens(vec![1, 2])));
    assert_eq!(
        completion("[-1, 4294967297]").2,
        Units::Tokens(vec![u32::MAX, 1])
    );
}

#[test]
fn other_prompts_are_text() {
    assert_eq!(completion(r#"["ab", "cdefgh"]"#).0, 1);
    let text = "ab\ncdefgh".chars().map(u32::from).collect();
    assert_eq!(completion(r#"["ab", "cdefgh"]"#).2, Units::CodePoints(text));
    assert_eq!(completion("[]"), (1, 0, Units::CodePoints(vec![91, 93])));
    assert_eq!(
        completion("null").2,
        Units::CodePoints("None".chars().map(u32::from).collect())
    );
    assert_eq!(completion("12345678901").0, 2);
    assert_eq!(Prompt::empty().weight(), 1);
    assert_eq!(Prompt::empty().units(), Units::CodePoints(vec![]));
}

#[test]
fn a_chat_may_carry_token_ids() {
    let (messages, ids) = (raw(r#"[{"role":"user","content":"0123"}]"#), raw("[5, 6]"));
    let prompt = Prompt::chat(Some(&messages), Some(&ids));
    assert_eq!(prompt.units(), Units::Tokens(vec![5, 6]));
    assert_eq!((prompt.weight(), prompt.tokens()), (1, 1));
    let null = raw("null");
    assert!(matches!(
        Prompt::chat(Some(&messages), Some(&null)).units(),
        Units::CodePoints(_)
    ));
}

proptest! {
    #[test]
    fn strings_are_read_as_a_json_parser_reads_them(text: String, ascii: bool) {
        let mut json = serde_json::to_string(&text).unwrap();
        if ascii {
            json = json.chars().map(|c| match c {
                ' '..='~' => c.to_string(),
                c => c.encode_utf16(&mut [0; 2]).iter().map(|u| format!("\\u{u:04X}")).collect(),
            }).collect();
        }
        let raw = raw(&json);
        let prompt = Prompt::completion(Some(&raw));
        prop_assert_eq!(prompt.characters(), text.chars().count() as u64);
        prop_assert_eq!(prompt.units(), Units::CodePoints(text.chars().map(u32::from).collect()));
    }
}

#[test]
fn a_request_carries_the_ids_of_one_sequence_or_none() {
    let of = |prompt: &str| Prompt::completion(Some(&raw(prompt))).own_token_ids();
    assert_eq!(of("[1, 2, 3]"), Some(vec![1, 2, 3]));
    assert_eq!(of("[[1, 2, 3]]"), Some(vec![1, 2, 3]));
    assert_eq!(of("[[1], [2]]"), None);
    assert_eq!(of("\"text\""), None);
    assert_eq!(of("[\"text\"]"), None);
    assert_eq!(of("[]"), None);
    let (messages, ids) = (raw("[]"), raw("[4, 5]"));
    let chat = Prompt::chat(Some(&messages), Some(&ids));
    assert_eq!(
        (chat.own_token_ids(), chat.kind()),
        (Some(vec![4, 5]), Kind::Chat)
    );
    assert_eq!(Prompt::chat(Some(&messages), None).own_token_ids(), None);
}

#[test]
fn a_cache_salt_is_text() {
    let salt = |body: &str| {
        let view = BodyView::parse(body.as_bytes()).unwrap();
        Prompt::of(&view).cache_salt().map(Cow::into_owned)
    };
    assert_eq!(
        salt(r#"{"prompt": "x", "cache_salt": "\u00e9\n"}"#).as_deref(),
        Some("é\n")
    );
    for none in [
        r#"{"prompt": "x"}"#,
        r#"{"cache_salt": null}"#,
        r#"{"cache_salt": 5}"#,
    ] {
        assert_eq!(salt(none), None, "{none}");
    }
}
