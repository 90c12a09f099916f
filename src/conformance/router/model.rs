//! The conversation router's rules, written as plainly as possible.
//!
//! Decides whether a list of outcomes is right by the specification's section 2.3, with any choice
//! among sessions whose prefixes tie. It is slow, shares no code with the router but the reading of
//! prompts, and is used for checking only.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::{
    config::ConversationConfig,
    simulate::replay::router::{self, Op, Route},
    wire::prompt::Units,
};

/// What the rules say has happened so far.
#[derive(Default)]
pub(super) struct Model {
    config: ConversationConfig,
    servers: Vec<(String, u64)>,
    /// Least recently used first.
    sessions: Vec<Session>,
    requests: HashMap<String, (String, u64)>,
    turn: u64,
    synthetic: u64,
    /// Operations, from 1, at which several sessions tied.
    pub ties: Vec<usize>,
}

struct Session {
    name: String,
    server: String,
    blocks: Vec<Vec<u32>>,
}

/// Follows `outcomes`, taking their choice where sessions tie; the number of the first operation
/// that they have wrong is an error.
pub(super) fn follow(scenario: &Value, outcomes: &[Value]) -> Result<Model, usize> {
    let (Ok(servers), Ok(config), Ok(ops)) = (
        router::servers(scenario),
        router::config(scenario),
        router::ops(scenario),
    ) else {
        return Err(0);
    };
    let servers = servers
        .into_iter()
        .map(|server| (server.to_owned(), 0))
        .collect();
    let mut model = Model {
        config,
        servers,
        ..Model::default()
    };
    for ((op, outcome), number) in ops.iter().zip(outcomes).zip(1..) {
        if model.step(op, outcome, number) != *outcome {
            return Err(number);
        }
    }
    Ok(model)
}

impl Model {
    fn step(&mut self, op: &Op<'_>, outcome: &Value, number: usize) -> Value {
        let mut answer = Map::new();
        match op {
            Op::Route(route) => match self.route(route, outcome, number) {
                Ok((server, weight)) => {
                    answer.insert("server".to_owned(), json!(server));
                    answer.insert("weight".to_owned(), json!(weight));
                    self.add_load(&server, |load| load + weight);
                    self.requests.insert(route.id.to_owned(), (server, weight));
                }
                Err(error) => drop(answer.insert("error".to_owned(), json!(error))),
            },
            Op::Finish { id } => {
                if let Some((server, weight)) = self.requests.remove(*id) {
                    self.add_load(&server, |load| load.saturating_sub(weight));
                }
            }
            Op::Add { server } => {
                if self.servers.iter().all(|(other, _)| other != server) {
                    self.servers.push(((*server).to_owned(), 0));
                }
            }
            Op::Remove { server } => {
                self.servers.retain(|(other, _)| other != server);
                self.sessions.retain(|session| session.server != *server);
                // What was in flight there is no load of a server that comes back by that name.
                self.requests.retain(|_, (other, _)| other != server);
            }
        }
        self.describe(&mut answer);
        Value::Object(answer)
    }

    fn describe(&self, answer: &mut Map<String, Value>) {
        let loads = self
            .servers
            .iter()
            .map(|(server, load)| (server.clone(), json!(load)));
        let sessions = self.sessions.iter();
        let sessions = sessions.map(|s| json!([s.name, s.server, s.blocks.len()]));
        answer.insert("loads".to_owned(), Value::Object(loads.collect()));
        answer.insert("rr_counter".to_owned(), json!(self.turn));
        answer.insert(
            "sessions_lru_to_mru".to_owned(),
            Value::Array(sessions.collect()),
        );
    }

    fn route(
        &mut self,
        route: &Route<'_>,
        outcome: &Value,
        number: usize,
    ) -> Result<(String, u64), String> {
        if self.servers.is_empty() {
            return Err("No 0 servers available".to_owned());
        }
        let prompt = route.prompt();
        let (weight, blocks, known) = match route.key {
            Some(key) => {
                let known = self.sessions.iter().position(|session| session.name == key);
                let known = known.filter(|&at| self.usable(at, route));
                (prompt.weight(), Vec::new(), known)
            }
            None => {
                let blocks = self.blocks(prompt.units());
                let weight = blocks.len() as u64 * u64::from(self.config.tokens_per_block);
                let known = self.similar(&blocks, route, outcome, number);
                (weight, blocks, known)
            }
        };
        if let Some(at) = known {
            let mut session = self.sessions.remove(at);
            if route.key.is_none() {
                session.blocks = blocks;
            }
            let server = session.server.clone();
            self.sessions.push(session);
            return Ok((server, weight));
        }
        let server = self.least_loaded(route.exclude)?;
        self.bind(route.key, server.clone(), blocks);
        Ok((server, weight))
    }

    fn bind(&mut self, key: Option<&str>, server: String, blocks: Vec<Vec<u32>>) {
        self.synthetic += u64::from(key.is_none());
        let synthetic = || router::synthetic_name(self.synthetic);
        let name = key.map_or_else(synthetic, str::to_owned);
        self.sessions.retain(|session| session.name != name);
        self.sessions.push(Session {
            name,
            server,
            blocks,
        });
        let surplus = self
            .sessions
            .len()
            .saturating_sub(self.config.max_sessions.max(1));
        self.sessions.drain(..surplus);
    }

    /// The session that shares the longest prefix, the outcome's choice of several.
    fn similar(
        &mut self,
        blocks: &[Vec<u32>],
        route: &Route<'_>,
        outcome: &Value,
        number: usize,
    ) -> Option<usize> {
        let shared = |at: usize| {
            let pairs = self
                .sessions
                .get(at)
                .into_iter()
                .flat_map(|s| s.blocks.iter().zip(blocks));
            pairs.take_while(|(one, other)| one == other).count()
        };
        let usable: Vec<usize> = (0..self.sessions.len())
            .filter(|&at| self.usable(at, route))
            .collect();
        let best = usable
            .iter()
            .map(|&at| shared(at))
            .max()
            .filter(|&best| best > 0)?;
        if (best as f64 / blocks.len() as f64) < self.config.match_threshold {
            return None;
        }
        let tied: Vec<usize> = usable
            .into_iter()
            .filter(|&at| shared(at) == best)
            .collect();
        if tied.len() > 1 {
            self.ties.push(number);
        }
        let freshest = outcome
            .pointer("/sessions_lru_to_mru")?
            .as_array()?
            .last()?
            .get(0)?;
        let is_freshest =
            |at: &&usize| self.sessions.get(**at).is_some_and(|s| s.name == *freshest);
        tied.iter().find(is_freshest).or(tied.first()).copied()
    }

    fn blocks(&self, units: Units) -> Vec<Vec<u32>> {
        let skip = self.config.hash_skip_count as usize;
        let (mut units, skip) = match units {
            Units::Tokens(units) => (units, skip),
            Units::CodePoints(units) => (units, skip * 5),
        };
        units.drain(..skip.min(units.len()));
        units.pop();
        units
            .chunks(self.config.tokens_per_block.max(1) as usize)
            .map(<[u32]>::to_vec)
            .collect()
    }

    fn usable(&self, session: usize, route: &Route<'_>) -> bool {
        self.sessions.get(session).is_some_and(|session| {
            let alive = self
                .servers
                .iter()
                .any(|(server, _)| *server == session.server);
            alive && route.exclude != Some(&session.server)
        })
    }

    fn least_loaded(&mut self, exclude: Option<&str>) -> Result<String, String> {
        let allowed = self
            .servers
            .iter()
            .filter(|(server, _)| exclude != Some(server));
        let least = allowed.clone().map(|(_, load)| load).min();
        let tied: Vec<&String> = allowed
            .filter(|(_, load)| Some(load) == least)
            .map(|(server, _)| server)
            .collect();
        let turned = tied
            .iter()
            .cycle()
            .nth((self.turn % tied.len().max(1) as u64) as usize);
        let server = turned.ok_or_else(|| {
            format!(
                "No available servers after excluding {}",
                exclude.unwrap_or("None")
            )
        })?;
        self.turn += 1;
        Ok((*server).clone())
    }

    fn add_load(&mut self, server: &str, change: impl Fn(u64) -> u64) {
        for (_, load) in self.servers.iter_mut().filter(|(other, _)| other == server) {
            *load = change(*load);
        }
    }
}
