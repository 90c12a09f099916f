use super::*;

fn sources(on: bool) -> Sources {
    let header = |name: &str| ParentSource::Header(name.to_owned());
    let body = |path: &str| ParentSource::Body(path.split('.').map(str::to_owned).collect());
    let order = [
        header("x-first"),
        body("metadata.parent"),
        header("x-second"),
        body("parent"),
    ];
    Sources::new(order.to_vec(), false, on)
}

fn settled(sources: &Sources, headers: &[(&'static str, &str)], body: &str) -> Claim {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().expect("a value"));
    }
    let body = format!("{{\"model\":\"m\"{body}}}");
    let view = BodyView::parse(body.as_bytes()).expect("a body");
    let settled = sources.settle(sources.hear(&map), &view, |_, _| Ok(()));
    settled.expect("no refusal")
}

fn named(parent: &str) -> Claim {
    Claim::Named(parent.to_owned())
}

#[test]
fn the_first_source_that_says_something_counts() {
    let of = |headers: &[_], body: &str| settled(&sources(true), headers, body);
    let both = r#","metadata":{"parent":"b"},"parent":"d""#;
    assert_eq!(of(&[("x-first", "a"), ("x-second", "c")], both), named("a"));
    assert_eq!(of(&[("x-second", "c")], both), named("b"));
    assert_eq!(of(&[("x-first", " "), ("x-second", "c")], both), named("b"));
    let blank = r#","metadata":{"parent":" \n"},"parent":"d""#;
    assert_eq!(of(&[("x-second", "c")], blank), named("c"));
    assert_eq!(of(&[], blank), named("d"));
    assert_eq!(of(&[], ""), Claim::Absent);
}

#[test]
fn what_is_no_text_says_nothing() {
    for value in ["1", "null", "[\"x\"]", "{\"parent\":1}", "\"\""] {
        let body = format!(",\"metadata\":{value},\"parent\":{value}");
        assert_eq!(
            settled(&sources(true), &[], &body),
            Claim::Absent,
            "{value}"
        );
    }
}

#[test]
fn copies_must_agree() {
    let sources = sources(true);
    let same = [("x-first", "a"), ("x-first", " a ")];
    assert_eq!(settled(&sources, &same, ""), named("a"));
    let others = [("x-first", "a"), ("x-first", "b"), ("x-second", "c")];
    assert_eq!(settled(&sources, &others, ""), Claim::Ambiguous);
}

#[test]
fn where_affinity_is_off_every_claim_is_told_as_such() {
    let sources = sources(false);
    let differ = [("x-first", "a"), ("x-first", "b")];
    assert_eq!(settled(&sources, &[("x-second", "a")], ""), Claim::Disabled);
    assert_eq!(settled(&sources, &differ, ""), Claim::Disabled);
    assert_eq!(settled(&sources, &[], ",\"parent\":\"p\""), Claim::Disabled);
    assert_eq!(settled(&sources, &[], ""), Claim::Absent);
}

#[test]
fn a_bad_id_names_its_field() {
    let sources = sources(true);
    let view = BodyView::parse(br#"{"metadata":{"parent":"b"}}"#).expect("a body");
    let refuse = |_: &str, place: &str| Err(Refusal::bad_id(place, "is bad"));
    let refusal = sources.settle(sources.hear(&HeaderMap::new()), &view, refuse);
    let param = refusal.expect_err("refused").param;
    assert_eq!(param.as_deref(), Some("metadata.parent"));
}
