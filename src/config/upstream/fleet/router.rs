//! `router` of a fleet: its type and its arguments.
//!
//! Arguments that upstream swallows are swallowed too, but said.

mod kv_cache_aware;

use crate::config::words::nearest;
use crate::config::{
    ConversationConfig, LoadBalancingConfig, RouterConfig, own,
    raw::{self, Field, Section, node::Value},
    report::Report,
};

/// What engine options say that a router takes for its own arguments where it names none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Engine {
    /// `kv_cache_config.tokens_per_block`.
    tokens_per_block: Option<u32>,
    /// `max_batch_size`.
    max_batch_size: Option<u32>,
}

impl Engine {
    pub(super) fn of(options: &[(String, Field)]) -> Self {
        let find = |read: fn(&str, &Field) -> Option<u32>| {
            let mut options = options.iter();
            options.find_map(|(name, field)| read(name, field))
        };
        Self {
            tokens_per_block: find(block_size),
            max_batch_size: find(batch_size),
        }
    }

    /// These, and of those that are absent the `inherited` ones.
    pub(super) fn or(self, inherited: Self) -> Self {
        Self {
            tokens_per_block: self.tokens_per_block.or(inherited.tokens_per_block),
            max_batch_size: self.max_batch_size.or(inherited.max_batch_size),
        }
    }
}

/// The batch size, if this engine option says it.
pub(super) fn batch_size(name: &str, field: &Field) -> Option<u32> {
    match field.value {
        Value::Int(size) if name == "max_batch_size" => u32::try_from(size).ok().filter(|n| *n > 0),
        _ => None,
    }
}

/// The block size, if this engine option says it.
pub(super) fn block_size(name: &str, field: &Field) -> Option<u32> {
    let Value::Map(entries) = &field.value else {
        return None;
    };
    let entry = entries
        .iter()
        .find(|entry| name == "kv_cache_config" && entry.key == "tokens_per_block")?;
    match entry.node.value {
        Value::Int(tokens) => u32::try_from(tokens).ok().filter(|tokens| *tokens > 0),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Kind {
    RoundRobin,
    LoadBalancing,
    Conversation,
    KvCacheAware,
}

const KINDS: [(&str, Kind); 4] = [
    ("round_robin", Kind::RoundRobin),
    ("load_balancing", Kind::LoadBalancing),
    ("conversation", Kind::Conversation),
    ("kv_cache_aware", Kind::KvCacheAware),
];

/// Reads the block.
pub(super) fn read(field: Field, engine: Engine, report: &mut Report) -> RouterConfig {
    let mut raw = raw::Router::open(field, report);
    swallowed(&raw.rest, report);
    let kind = raw.kind.take().filter(|field| !field.is_null());
    let kind = match kind {
        Some(field) => field.choice(report, &KINDS),
        None => Some(Kind::RoundRobin),
    };
    let config = match kind {
        Some(Kind::Conversation) => conversation(&mut raw, engine, report),
        Some(Kind::LoadBalancing) => {
            let field = raw.use_tokens.take();
            let use_tokens = field.and_then(|field| field.boolean(report)) == Some(true);
            RouterConfig::LoadBalancing(LoadBalancingConfig { use_tokens })
        }
        Some(Kind::KvCacheAware) => kv_cache_aware::read(&mut raw, engine, report),
        Some(Kind::RoundRobin) => RouterConfig::RoundRobin,
        None => return RouterConfig::RoundRobin,
    };
    arguments_of_others(raw, report);
    config
}

fn conversation(raw: &mut raw::Router, engine: Engine, report: &mut Report) -> RouterConfig {
    for field in [raw.use_token_ids.take(), raw.use_harmony.take()]
        .into_iter()
        .flatten()
    {
        if !matches!(field.value, Value::Null | Value::Bool(false)) {
            report.warn(
                &field.at,
                "has no effect here: this router has no tokenizer and compares prompts as text",
            );
        }
    }
    let default = ConversationConfig::default();
    let threshold = given(raw.match_threshold.take());
    let block = given(raw.tokens_per_block.take());
    let skip = given(raw.hash_skip_count.take());
    let sessions = given(raw.max_sessions.take());
    RouterConfig::Conversation(ConversationConfig {
        match_threshold: threshold
            .and_then(|field| field.number(report, 0.0))
            .unwrap_or(default.match_threshold),
        tokens_per_block: block
            .and_then(|field| field.integer(report, 1..=1_000_000))
            .or(engine.tokens_per_block)
            .unwrap_or(default.tokens_per_block),
        hash_skip_count: skip
            .and_then(|field| field.integer(report, 0..=1_000_000))
            .unwrap_or(default.hash_skip_count),
        max_sessions: own::sessions(sessions, default.max_sessions, report),
    })
}

fn given(field: Option<Field>) -> Option<Field> {
    field.filter(|field| !field.is_null())
}

/// Arguments that are none, which upstream swallows.
fn swallowed(unknown: &[(String, Field)], report: &mut Report) {
    for (name, field) in unknown {
        let hint = nearest(name, raw::Router::KEYS.iter().copied())
            .map(|near| format!(" (did you mean `{near}`?)"))
            .unwrap_or_default();
        report.warn(
            &field.at,
            format!("is no argument that Kindred knows; it has no effect{hint}"),
        );
    }
}

/// Arguments of another type of router, which upstream swallows.
fn arguments_of_others(raw: raw::Router, report: &mut Report) {
    let arguments = [
        raw.match_threshold,
        raw.tokens_per_block,
        raw.hash_skip_count,
        raw.max_sessions,
        raw.use_token_ids,
        raw.use_harmony,
        raw.use_tokens,
        raw.max_batch_size,
        raw.track_routed_blocks,
        raw.load_weight,
        raw.load_cap,
        raw.tokenizer_dir,
        raw.custom_tokenizer,
        raw.model_path,
    ];
    for field in arguments.into_iter().flatten() {
        report.warn(
            &field.at,
            "is no argument of this type of router; it has no effect",
        );
    }
}
