//! docs/errors.md as a test reads it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A row of the table: an error and its answers.
#[derive(Debug, Clone)]
pub struct Row {
    pub code: String,
    /// The `error.param` that the row is for; `None` for every other.
    pub param: Option<String>,
    /// `None` where it is a worker's.
    pub openai: Option<u16>,
    /// `None` where it is a worker's.
    pub trtllm: Option<u16>,
    /// The body in upstream's shape, with `M` where the message goes.
    body: String,
}

impl Row {
    /// The body in upstream's shape.
    pub fn body(&self, message: &str) -> Value {
        let quoted = Value::from(message).to_string();
        let inner = &quoted[1..quoted.len() - 1];
        let body = self.body.replace(":M}", &format!(":{quoted}}}"));
        let body = body.replace(" M\"}", &format!(" {inner}\"}}"));
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

pub fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<Row> = rows.map(row).collect();
    assert!(rows.len() > 30, "{}", rows.len());
    rows
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [names, _, openai, trtllm] = cells[..] else {
        panic!("{line}");
    };
    let mut names = names
        .split(' ')
        .map(|name| name.trim_matches('`').to_owned());
    let (status, body) = trtllm.split_once(' ').unwrap();
    let number = |text: &str| (text != "*").then(|| text.parse().unwrap());
    Row {
        code: names.next().unwrap(),
        param: names.next(),
        openai: number(openai),
        trtllm: number(status),
        body: body.trim_matches('`').to_owned(),
    }
}

/// The row of an error: of its parameter, if there is one for that.
pub fn row_of(code: &str, param: Option<&str>) -> Row {
    let rows = rows();
    let of = |param: Option<&str>| {
        let mut rows = rows.iter();
        let found = rows.find(|row| row.code == code && row.param.as_deref() == param);
        found.cloned()
    };
    param
        .and_then(|param| of(Some(param)))
        .or_else(|| of(None))
        .unwrap_or_else(|| panic!("docs/errors.md has no row for {code}"))
}

/// The codes that the edge's sources hand to a failure.
pub fn codes_in_sources() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for folder in ["edge", "http", "gateway"] {
        for file in files(&root().join("src").join(folder)) {
            let text = fs::read_to_string(file).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            for way in [
                "bad_request(",
                "bad_gateway(",
                "unavailable(",
                "too_many_requests(",
                "unauthorized(",
                "code: ",
            ] {
                let calls = text.split(way).skip(1);
                codes.extend(calls.filter_map(literal));
            }
            let calls = text
                .split("Failure::new(")
                .flat_map(|part| part.split("Self::new("))
                .skip(1);
            codes.extend(calls.filter_map(|call| literal(call.splitn(3, ',').nth(2)?)));
        }
    }
    codes.remove("client_left");
    codes
}

/// The string that a text begins with.
fn literal(text: &str) -> Option<String> {
    let inside = text.trim_start().strip_prefix('"')?;
    let word = inside.split('"').next()?;
    let is_code = word
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_code && !word.is_empty()).then(|| word.to_owned())
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| !path.ends_with("tests.rs"));
    let (folders, mut found): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    found.extend(folders.iter().flat_map(|folder| files(folder)));
    found
}
