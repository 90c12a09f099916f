//! Scenarios of the attention-DP placement.
//!
//! Each batch is one call of the real placer. The placer forgets the texts of the keys it is given;
//! this remembers them to print its table.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::{Field, ReplayError};
use crate::{
    affinity::{self, AffinityKey},
    config::{AffinityScope, NewConversationPlacement, PlacementConfig},
    worker::placement::{Ask, Placed, RankLoad, RankPlacer},
};

/// What happens at each batch of a scenario.
pub fn outcome(scenario: &Value) -> Result<Vec<Value>, ReplayError> {
    let scenario = Field::of(scenario);
    let config = read_config(&scenario.get("config"))?;
    let mut placer = RankPlacer::new(&config);
    let mut names = HashMap::new();
    let batches = scenario.get("batches").list()?;
    batches
        .map(|batch| {
            let loads = read_loads(&batch, &config)?;
            let requests = batch.get("requests").list()?;
            let asks = requests.map(|request| read_ask(&request, &mut names));
            let asks = asks.collect::<Result<Vec<Ask>, _>>()?;
            let placed = placer.place(&loads, batch.get("max").whole()?, &asks);
            Ok(describe(&mut placer, &placed, &names))
        })
        .collect()
}

fn read_config(config: &Field<'_>) -> Result<PlacementConfig, ReplayError> {
    let ranks: u32 = config.get("ranks").whole()?;
    if ranks == 0 {
        return Err(config.get("ranks").wrong("must be at least 1"));
    }
    let max_sessions = config
        .find("max_sessions")
        .map(|field| field.whole())
        .transpose()?;
    let multiplier = config
        .find("fair_share_multiplier")
        .map(|field| field.number())
        .transpose()?;
    let policy = config
        .find("new_conv_placement")
        .map(|field| field.text())
        .transpose()?;
    Ok(PlacementConfig {
        ranks,
        max_active_per_rank: u32::MAX,
        conversation_affinity: true,
        max_sessions: max_sessions.unwrap_or(65_536),
        fair_share_multiplier: multiplier.unwrap_or(2.0),
        // Upstream takes every word it does not know for the default.
        new_conversation: match policy {
            Some("least_queued") => NewConversationPlacement::LeastQueued,
            Some("least_tokens") => NewConversationPlacement::LeastTokens,
            _ => NewConversationPlacement::RoundRobin,
        },
    })
}

fn read_loads(batch: &Field<'_>, config: &PlacementConfig) -> Result<Vec<RankLoad>, ReplayError> {
    let active = batch.get("active");
    let active: Vec<u32> = active
        .list()?
        .map(|field| field.whole())
        .collect::<Result<_, _>>()?;
    if active.len() != config.ranks as usize {
        return Err(batch
            .get("active")
            .wrong("must have one number for each rank"));
    }
    let tokens: Vec<u64> = match batch.find("tokens") {
        Some(tokens) => tokens
            .list()?
            .map(|field| field.whole())
            .collect::<Result<_, _>>()?,
        None => vec![0; active.len()],
    };
    if tokens.len() != active.len() {
        return Err(batch
            .get("tokens")
            .wrong("must have one number for each rank"));
    }
    let loads = active.into_iter().zip(tokens);
    Ok(loads
        .map(|(requests, tokens)| RankLoad { requests, tokens })
        .collect())
}

fn read_ask(
    request: &Field<'_>,
    names: &mut HashMap<AffinityKey, String>,
) -> Result<Ask, ReplayError> {
    let none = request.find("request_none").map(|none| none.truth());
    if none.transpose()? == Some(true) {
        return Ok(Ask::new(None, 0));
    }
    let text = |name| request.find(name).map(|field| field.text()).transpose();
    let key = affinity::keys(text("conv")?, text("parent")?, AffinityScope::Both).context;
    let key = key.map(|text| {
        let key = AffinityKey::new(text);
        names.insert(key, text.to_owned());
        key
    });
    Ok(Ask {
        key,
        rank: request
            .find("dp_rank")
            .map(|field| field.whole())
            .transpose()?,
        // Upstream's newest lines, too, take an unset one for true.
        relax: request
            .find("relax")
            .map(|field| field.truth())
            .transpose()?
            .unwrap_or(true),
        tokens: request
            .find("tokens")
            .map(|field| field.whole())
            .transpose()?
            .unwrap_or(0),
    })
}

fn describe(
    placer: &mut RankPlacer,
    placed: &[Placed],
    names: &HashMap<AffinityKey, String>,
) -> Value {
    let mut order: Vec<(usize, &Placed)> = placed.iter().enumerate().collect();
    order.sort_by_key(|(_, placed)| placed.turn);
    let mut on_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, placed) in order {
        if let Some(rank) = placed.rank {
            on_rank.entry(rank).or_default().push(at);
        }
    }
    let on_rank = on_rank
        .into_iter()
        .map(|(rank, order)| (rank.to_string(), json!(order)));
    let ranks: Vec<Option<u32>> = placed.iter().map(|placed| placed.rank).collect();
    let table: Vec<Value> = placer
        .sessions()
        .map(|(key, rank)| json!([names.get(&key), rank]))
        .collect();
    json!({
        "ranks": ranks,
        "order_on_rank": on_rank.collect::<Map<_, _>>(),
        "expected_num_active_requests": placer.expected_active(),
        "cursor": placer.cursor(),
        "table_lru_to_mru": table,
    })
}
