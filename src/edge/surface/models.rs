//! Which models there are: what the workers themselves list, asked when somebody wants to know.
//!
//! The answers are put together and believed for a short while. One request asks at a time; the
//! others take the old list meanwhile, or wait where there is none. A worker that does not answer in
//! time is left out, so that nobody waits longer than a short deadline. Of what a worker lists only what names a model goes on: paths
//! and permissions are the fleet's own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant as Due, timeout_at},
};

use crate::{
    edge::live::Live,
    http::{
        reply::Failure,
        upstream::{Call, CallError, Upstreams},
    },
    telemetry::labels::Outcome,
};

/// How long the list is believed.
const LIFETIME: Duration = Duration::from_secs(5);
/// How long it is believed while somebody asks for a new one.
const LONGEST_LIFETIME: Duration = Duration::from_secs(60);
/// How long it is believed that nobody answers: those who wait for the list then go together.
const SILENCE_LIFETIME: Duration = Duration::from_secs(1);
/// How long the answers are waited for, all together.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions at once.
const AT_ONCE: usize = 16;
/// Instances of one fleet that are asked at most.
const MOST_ASKED: usize = 256;
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 1024 * 1024;
/// Models that are listed at most, and bytes of an id.
const MOST_MODELS: usize = 4096;
const LONGEST_ID: usize = 512;

/// A model, as a client may know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    pub id: String,
    created: u64,
    owned_by: String,
    max_model_len: Option<u64>,
}

impl Card {
    /// A model that is known by the configuration.
    pub fn configured(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            created: 0,
            owned_by: OWNER.to_owned(),
            max_model_len: None,
        }
    }

    /// In OpenAI's words.
    pub fn json(&self) -> Value {
        let mut card = Map::new();
        card.insert("id".to_owned(), json!(self.id));
        card.insert("object".to_owned(), json!("model"));
        card.insert("created".to_owned(), json!(self.created));
        card.insert("owned_by".to_owned(), json!(self.owned_by));
        if let Some(length) = self.max_model_len {
            card.insert("max_model_len".to_owned(), json!(length));
        }
        Value::Object(card)
    }
}

/// Who owns a model of which nobody says it.
const OWNER: &str = "kindred";

/// The list as `GET /v1/models` has it.
pub fn list(cards: &[Card]) -> Value {
    let cards: Vec<_> = cards.iter().map(Card::json).collect();
    json!({"object": "list", "data": cards})
}

/// What is known of the models.
pub struct Models {
    /// Whose turn it is to ask. It is given back when the client of the one who asks leaves.
    turn: Semaphore,
    known: Mutex<Option<Known>>,
}

struct Known {
    /// The configuration that it was asked under.
    live: Weak<Live>,
    at: Instant,
    /// `None` where nobody answered.
    told: Option<Arc<[Card]>>,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            known: Mutex::default(),
        }
    }
}

impl Models {
    /// The models that there are, sorted by id.
    ///
    /// # Errors
    /// 503 where no worker says.
    pub async fn known(
        &self,
        upstreams: &Arc<Upstreams>,
        live: &Arc<Live>,
    ) -> Result<Arc<[Card]>, Failure> {
        if let Some(told) = self.believed(live, LIFETIME) {
            return told.ok_or_else(unknown);
        }
        let _turn = match self.turn.try_acquire() {
            Ok(turn) => Ok(turn),
            // Somebody is asking: an old list will do meanwhile.
            Err(_) => match self.believed(live, LONGEST_LIFETIME) {
                Some(told) => return told.ok_or_else(unknown),
                None => self.turn.acquire().await,
            },
        };
        // Whoever had the turn before may have learnt it.
        if let Some(told) = self.believed(live, LIFETIME) {
            return told.ok_or_else(unknown);
        }
        let told = ask(upstreams, live).await;
        *self.known.lock() = Some(Known {
            live: Arc::downgrade(live),
            at: Instant::now(),
            told: told.clone(),
        });
        told.ok_or_else(unknown)
    }

    /// What was learnt, if it is of this configuration and younger than `lifetime`.
    fn believed(&self, live: &Arc<Live>, lifetime: Duration) -> Option<Option<Arc<[Card]>>> {
        let known = self.known.lock();
        let known = known.as_ref()?;
        let lifetime = match known.told {
            Some(_) => lifetime,
            None => SILENCE_LIFETIME,
        };
        let same = std::ptr::eq(known.live.as_ptr(), Arc::as_ptr(live));
        (same && known.at.elapsed() < lifetime).then(|| known.told.clone())
    }
}

fn unknown() -> Failure {
    let message = "No worker says which models there are; try again shortly.";
    Failure::unavailable("no_models", Outcome::NoInstance, message)
}

/// The models that there are; `None` where nobody says. Named models are known by the configuration.
async fn ask(upstreams: &Arc<Upstreams>, live: &Arc<Live>) -> Option<Arc<[Card]>> {
    let mut cards = BTreeMap::new();
    for pool in live.pools.iter() {
        let name = pool.model.as_deref();
        let names = name
            .into_iter()
            .chain(pool.aliases.iter().map(String::as_str));
        cards.extend(names.map(|name| (name.to_owned(), Card::configured(name))));
    }
    let named = !cards.is_empty();
    let told = ask_workers(upstreams, live).await;
    let anybody = told.is_some();
    for card in told.into_iter().flatten() {
        if cards.len() < MOST_MODELS {
            cards.entry(card.id.clone()).or_insert(card);
        }
    }
    (named || anybody).then(|| cards.into_values().collect())
}

/// What the workers of unnamed models list, those that answer in time; `None` where none does.
async fn ask_workers(upstreams: &Arc<Upstreams>, live: &Arc<Live>) -> Option<Vec<Card>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let due = Due::now() + PATIENCE;
    let mut questions = JoinSet::new();
    for address in addresses(live) {
        let (upstreams, live, room) = (upstreams.clone(), live.clone(), room.clone());
        questions.spawn(async move {
            let _room = room.acquire().await;
            answer(&upstreams, &live, &address).await
        });
    }
    let mut told: Option<Vec<Card>> = None;
    // Dropping the set ends the questions that are left.
    while let Ok(Some(answer)) = timeout_at(due, questions.join_next()).await {
        if let Ok(Some(cards)) = answer {
            told.get_or_insert_default().extend(cards);
        }
    }
    told
}

/// The workers to ask, each once: those of models that have no fleets of their own.
fn addresses(live: &Live) -> Vec<Arc<str>> {
    let mut asked = Vec::new();
    let unnamed = live.pools.iter().filter(|pool| pool.model.is_none());
    for destination in unnamed.flat_map(|pool| pool.destinations()) {
        let fleet = destination.fleet();
        let instances = fleet.instances().iter().take(MOST_ASKED);
        asked.extend(instances.map(|instance| instance.address.clone()));
    }
    asked.sort_unstable();
    asked.dedup();
    asked
}

async fn answer(upstreams: &Upstreams, live: &Live, address: &str) -> Option<Vec<Card>> {
    let call = Call::get(address, "/v1/models", MAX_ANSWER);
    let timeouts = &live.config.timeouts;
    let answer = match upstreams.call(&call, timeouts).await {
        Err(CallError::Unheard) => upstreams.call(&call, timeouts).await,
        other => other,
    };
    let answer = answer.ok().filter(|answer| answer.status == 200)?;
    cards(&answer.body)
}

/// What a worker lists.
fn cards(body: &[u8]) -> Option<Vec<Card>> {
    #[derive(Deserialize)]
    struct Listed {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        #[serde(default)]
        created: Value,
        #[serde(default)]
        owned_by: Value,
        #[serde(default)]
        max_model_len: Value,
    }
    let listed: Listed = serde_json::from_slice(body).ok()?;
    let usable = |entry: &Entry| !entry.id.is_empty() && entry.id.len() <= LONGEST_ID;
    let cards = listed.data.into_iter().filter(usable).map(|entry| Card {
        created: entry.created.as_u64().unwrap_or_default(),
        owned_by: entry.owned_by.as_str().unwrap_or(OWNER).to_owned(),
        max_model_len: entry.max_model_len.as_u64(),
        id: entry.id,
    });
    Some(cards.take(MOST_MODELS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_workers_list_only_what_names_a_model_goes_on() {
        let body = br#"{"object":"list","data":[
            {"id":"org/m","object":"model","created":1700000000,"owned_by":"vllm",
             "root":"/models/secret","permission":[{"id":"p"}],"max_model_len":4096},
            {"id":"b"},{"id":""}]}"#;
        let told = list(&cards(body).unwrap()).to_string();
        let expected = concat!(
            r#"{"object":"list","data":[{"id":"org/m","object":"model","created":1700000000,"#,
            r#""owned_by":"vllm","max_model_len":4096},"#,
            r#"{"id":"b","object":"model","created":0,"owned_by":"kindred"}]}"#
        );
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_no_list_is_no_answer() {
        for body in ["", "[]", "{}", r#"{"data":{}}"#, r#"{"data":[{"id":5}]}"#] {
            assert_eq!(cards(body.as_bytes()), None, "{body}");
        }
    }
}
