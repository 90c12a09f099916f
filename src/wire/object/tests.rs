use proptest::prelude::*;

use super::*;

fn splice(source: &str, changes: &[(&str, Option<&str>)]) -> String {
    let object = Object::parse(source).expect("an object");
    String::from_utf8(object.splice(changes)).expect("UTF-8")
}

#[test]
fn keeps_order_escapes_and_repeated_names() {
    let source = r#"{"b":1.50,"a":"\u00e9","\u0062":[ 1 ]}"#;
    let object = Object::parse(source).expect("an object");
    let members: Vec<_> = object
        .members()
        .iter()
        .map(|(name, raw)| (name.as_ref(), raw.get()))
        .collect();
    assert_eq!(
        members,
        [("b", "1.50"), ("a", r#""\u00e9""#), ("b", "[ 1 ]")]
    );
    assert_eq!(object.get("b").map(RawValue::get), Some("[ 1 ]"));
    assert_eq!(object.repeated(), Some("b"));
    let unique: Vec<_> = object.unique().collect();
    assert_eq!(unique, [("b", "[ 1 ]"), ("a", r#""\u00e9""#)]);
}

#[test]
fn null_counts_as_absent_only_where_asked() {
    let object = Object::parse(r#"{"a":null}"#).expect("an object");
    assert!(object.get("a").is_some());
    assert_eq!(object.present("a"), None);
}

#[test]
fn finds_a_repeated_name_among_many() {
    let mut source = String::from("{");
    for number in 0..100 {
        source += &format!("\"k{number}\":0,");
    }
    let once = format!("{source}\"last\":0}}");
    assert_eq!(Object::parse(&once).expect("an object").repeated(), None);
    let twice = format!("{source}\"k7\":0}}");
    assert_eq!(
        Object::parse(&twice).expect("an object").repeated(),
        Some("k7")
    );
}

#[test]
fn refuses_what_is_no_object() {
    let many = format!("{{{}\"z\":0}}", "\"a\":0,".repeat(MAX_MEMBERS));
    for source in [
        "",
        "[]",
        "1",
        "{} x",
        "{\"a\"}",
        "{\"a\":01}",
        "{\"a\":NaN}",
        "{'a':1}",
        &many,
    ] {
        assert!(Object::parse(source).is_err(), "{:.40}", source);
    }
}

#[test]
fn replaces_in_place_and_appends_at_the_end() {
    let source = " {\n  \"a\" : 1 ,\n  \"b\":2\n}\n";
    assert_eq!(splice(source, &[]), source);
    assert_eq!(
        splice(source, &[("a", Some("[0]")), ("c", Some("3"))]),
        " {\n  \"a\" : [0] ,\n  \"b\":2,\"c\":3\n}\n"
    );
    assert_eq!(splice("{ }", &[("a", Some("1"))]), "{\"a\":1 }");
    assert_eq!(
        splice("{}", &[("a\"", Some("1")), ("b", None)]),
        r#"{"a\"":1}"#
    );
}

#[test]
fn removes_with_one_comma() {
    let source = r#"{"a":1, "b":2, "c":3}"#;
    assert_eq!(splice(source, &[("a", None)]), r#"{ "b":2, "c":3}"#);
    assert_eq!(splice(source, &[("b", None)]), r#"{"a":1, "c":3}"#);
    assert_eq!(splice(source, &[("c", None)]), r#"{"a":1, "b":2}"#);
    assert_eq!(
        splice(source, &[("a", None), ("b", None), ("c", None)]),
        "{}"
    );
    assert_eq!(
        splice(source, &[("a", None), ("c", None), ("d", Some("4"))]),
        r#"{ "b":2,"d":4}"#
    );
    assert_eq!(
        splice(
            source,
            &[("a", None), ("b", None), ("c", None), ("d", Some("4"))]
        ),
        r#"{"d":4}"#
    );
}

#[test]
fn leaves_one_of_repeated_names() {
    let source = r#"{"a":1,"b":2,"\u0061":3}"#;
    assert_eq!(splice(source, &[("a", Some("9"))]), r#"{"b":2,"\u0061":9}"#);
    assert_eq!(splice(source, &[("a", None)]), r#"{"b":2}"#);
}

/// A member as text: white space, name, white space, value, white space.
fn member() -> impl Strategy<Value = (String, String, [String; 4])> {
    let value = prop_oneof![
        Just("null".to_owned()),
        Just("[1, {\"a\":\"}\"}]".to_owned()),
        Just("\",\\\"}\"".to_owned()),
        Just("1.50e+2".to_owned()),
        Just("{ }".to_owned()),
    ];
    let space = "[ \\n\\t]{0,2}";
    ("[a-e]", value, [space, space, space, space])
}

fn object_text(members: &[(String, String, [String; 4])]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value, [a, b, c, d])| format!("{a}\"{name}\"{b}:{c}{value}{d}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

proptest! {
    #[test]
    fn splicing_nothing_changes_nothing(members in prop::collection::vec(member(), 0..6)) {
        let source = object_text(&members);
        prop_assert_eq!(splice(&source, &[]), source);
    }

    #[test]
    fn splicing_changes_what_it_names_and_nothing_else(
        members in prop::collection::vec(member(), 0..6),
        removed in "[a-e]",
        set in "[a-g]",
    ) {
        prop_assume!(removed != set);
        let source = object_text(&members);
        let out = splice(&source, &[(&removed, None), (&set, Some("\"new\""))]);
        let object = Object::parse(&out).expect("an object");
        prop_assert!(object.get(&removed).is_none());
        prop_assert_eq!(object.present(&set), Some("\"new\""));
        prop_assert_eq!(object.members().iter().filter(|(name, _)| *name == set).count(), 1);
        // The text of every other member is there as it was, in the same order.
        let mut rest = out.as_str();
        for (name, value, [_, b, c, _]) in &members {
            if *name != removed && *name != set {
                let text = format!("\"{name}\"{b}:{c}{value}");
                let at = rest.find(&text);
                prop_assert!(at.is_some(), "{} lost from {}", text, out);
                rest = &rest[at.unwrap_or(0) + text.len()..];
            }
        }
    }
}
