//! The arguments of the router `kv_cache_aware` (specification section 2.4).

use std::path::PathBuf;

use super::{Engine, given};
use crate::config::{
    KvCacheAwareConfig, RouterConfig,
    raw::{self, Field, node::Value},
    report::Report,
};

pub(super) fn read(raw: &mut raw::Router, engine: Engine, report: &mut Report) -> RouterConfig {
    without_effect(raw, report);
    let default = KvCacheAwareConfig::default();
    let batch = given(raw.max_batch_size.take());
    let block = given(raw.tokens_per_block.take());
    let weight = given(raw.load_weight.take());
    let track = given(raw.track_routed_blocks.take());
    RouterConfig::KvCacheAware(KvCacheAwareConfig {
        max_batch_size: batch
            .and_then(|field| field.integer(report, 1..=1_000_000))
            .or(engine.max_batch_size)
            .unwrap_or(default.max_batch_size),
        tokens_per_block: block
            .and_then(|field| field.integer(report, 1..=1_000_000))
            .or(engine.tokens_per_block),
        track_routed_blocks: track
            .and_then(|field| field.boolean(report))
            .unwrap_or(default.track_routed_blocks),
        load_weight: weight
            .and_then(|field| field.number(report, 0.0))
            .unwrap_or(default.load_weight),
        load_cap: given(raw.load_cap.take())
            .and_then(|field| load_cap(&field, report))
            .unwrap_or(default.load_cap),
        tokenizer_dir: given(raw.tokenizer_dir.take()).and_then(|field| folder(&field, report)),
    })
}

/// A share, or `.inf` for no cap.
fn load_cap(field: &Field, report: &mut Report) -> Option<f64> {
    match field.value {
        Value::Float(cap) if cap == f64::INFINITY => Some(cap),
        _ => field.number(report, 0.0),
    }
}

fn folder(field: &Field, report: &mut Report) -> Option<PathBuf> {
    let text = field.text(report)?;
    if text.trim().is_empty() {
        report.error(
            &field.at,
            "is empty; name the folder with tokenizer.json, or remove the key",
        );
        return None;
    }
    Some(PathBuf::from(text))
}

/// Arguments of upstream that ask for something that is not here.
fn without_effect(raw: &mut raw::Router, report: &mut Report) {
    let inert = [
        (
            raw.use_tokens.take(),
            "has no effect here: this router weighs requests in flight, also in upstream",
        ),
        (
            raw.use_harmony.take(),
            "has no effect here: prompts are written with the chat template of tokenizer_dir",
        ),
        (
            raw.custom_tokenizer.take(),
            "has no effect here: no Python code is loaded; tokenizer_dir is what is read",
        ),
        (
            raw.model_path.take(),
            "has no effect here: tokenizer_dir is what is read",
        ),
    ];
    for (field, why) in inert {
        if let Some(field) = field
            && !matches!(field.value, Value::Null | Value::Bool(false))
        {
            report.warn(&field.at, why);
        }
    }
}
