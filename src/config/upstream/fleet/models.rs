//! `models`: fleets of their own for models by name.
//!
//! Decides which names are taken: a request names its model by one of them, so each must lead to one
//! entry. The entries inherit engine options as the sections at the top of the file do.

use std::collections::HashSet;

use super::Reader;
use crate::config::{
    ModelConfig,
    raw::{self, Field, Section, node::Value},
    report::{Place, Report},
    words::shown,
};

/// Bytes of a model's name at most.
const MAX_NAME: usize = 256;

/// The entries of `models`.
pub(super) fn read(field: Field, reader: &mut Reader<'_>) -> Vec<ModelConfig> {
    let Value::Map(entries) = field.value else {
        reader.report.error(
            &field.at,
            "must be a group of keys: the name of each model, and its fleets under it",
        );
        return Vec::new();
    };
    if entries.is_empty() {
        reader
            .report
            .error(&field.at, "names no model; name one, or remove the key");
    }
    let mut taken = HashSet::new();
    let mut models = Vec::new();
    for entry in entries {
        let name = entry.key.clone();
        let field = Field::of(&field.at, entry);
        models.extend(model(name, field, &mut taken, reader));
    }
    models
}

fn model(
    name: String,
    field: Field,
    taken: &mut HashSet<String>,
    reader: &mut Reader<'_>,
) -> Option<ModelConfig> {
    let at = field.at.clone();
    let good = take_name(&name, &at, taken, reader.report);
    let mut raw = raw::Model::closed(field, reader.report);
    let aliases = raw.aliases.take().map(|field| field.list(reader.report));
    let mut names = Vec::new();
    for alias in aliases.into_iter().flatten() {
        if let Some(text) = alias.text(reader.report).map(str::to_owned)
            && take_name(&text, &alias.at, taken, reader.report)
        {
            names.push(text);
        }
    }
    let servers = [
        raw.context_servers.take(),
        raw.generation_servers.take(),
        raw.aggregated_servers.take(),
    ];
    let fleets = reader.fleets(servers, &at);
    good.then_some(ModelConfig {
        name,
        aliases: names,
        fleets,
    })
}

fn take_name(name: &str, at: &Place, taken: &mut HashSet<String>, report: &mut Report) -> bool {
    let printable = !name.chars().any(|c| c.is_control() || c.is_whitespace());
    if name.is_empty() || name.len() > MAX_NAME || !printable {
        let what = format!(
            "{} is no name of a model: use 1 to {MAX_NAME} bytes without spaces",
            shown(name)
        );
        report.error(at, what);
        return false;
    }
    if !taken.insert(name.to_owned()) {
        let what = format!(
            "{} names two models; a name or an alias leads to one entry",
            shown(name)
        );
        report.error(at, what);
        return false;
    }
    true
}
