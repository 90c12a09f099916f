//! Reading the text exposition of metrics, as strictly as `promtool check metrics` does.

use std::collections::BTreeSet;

/// One series of an exposition.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

fn is_name(text: &str, also: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || also.contains(c);
    !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(word)
}

/// Reads one sample line of the text format 0.0.4, strictly.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name, ":"), "{line}");
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label, ""), "{line}");
            let mut value = String::new();
            let mut characters = after.char_indices();
            let end = loop {
                match characters.next().unwrap() {
                    (at, '"') => break at + 1,
                    (_, '\\') => match characters.next().unwrap().1 {
                        'n' => value.push('\n'),
                        c @ ('\\' | '"') => value.push(c),
                        c => panic!("escape {c}: {line}"),
                    },
                    (_, c) => value.push(c),
                }
            };
            labels.push((label.to_owned(), value));
            rest = &after[end..];
            assert!(rest.starts_with(['}', ',']), "{line}");
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap();
    let value = value.parse().unwrap_or_else(|_| panic!("a value: {line}"));
    let name = name.to_owned();
    Sample {
        name,
        labels,
        value,
    }
}

/// Every sample of a page whose syntax and grouping are right.
pub fn parse(page: &str) -> Vec<Sample> {
    assert!(page.ends_with('\n'), "the last line ends too");
    let mut samples: Vec<Sample> = Vec::new();
    let mut families = BTreeSet::new();
    let mut family = (String::new(), String::new());
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(is_name(name, ":") && !text.is_empty(), "{line}");
            assert!(families.insert(name.to_owned()), "{name} is in two groups");
            family = (name.to_owned(), String::new());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, family.0, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            kind.clone_into(&mut family.1);
        } else {
            let sample = sample(line);
            let suffix = sample.name.strip_prefix(&family.0);
            let allowed: &[&str] = match family.1.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(
                suffix.is_some_and(|suffix| allowed.contains(&suffix)),
                "{line}"
            );
            assert!(sample.value >= 0.0, "nothing here can be negative: {line}");
            let twin = samples
                .iter()
                .find(|known| known.name == sample.name && known.labels == sample.labels);
            assert_eq!(twin, None, "a series twice");
            samples.push(sample);
        }
    }
    samples
}

/// Names and label sets, without values.
pub fn series(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}
