//! Scenarios of the conversation router.
//!
//! Each operation (`route`, `finish`, `add`, `remove`) is one call of the real router or a new
//! snapshot of the fleet. The router forgets the texts of the keys it is given; this remembers them
//! to print its table.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{Field, ReplayError};
use crate::{
    affinity::{self, AffinityKey},
    config::{AffinityScope, ConversationConfig},
    fleet::{Fleet, InstanceId, LoadGuard},
    routing::{Conversation, Exclusion, Query, RouteError},
    wire::{Role, prompt::Prompt},
};

/// The prompt of a `route` that gives none.
const DEFAULT_PROMPT: &str = "hello world";

/// What happens at each operation of a scenario.
pub fn outcome(scenario: &Value) -> Result<Vec<Value>, ReplayError> {
    let scenario = Field::of(scenario);
    let mut replay = Replay::new(&scenario)?;
    scenario
        .get("ops")
        .list()?
        .map(|op| replay.step(&op))
        .collect()
}

/// An operation of a scenario, read.
pub(crate) enum Op<'a> {
    Route(Box<Route<'a>>),
    Finish { id: &'a str },
    Add { server: &'a str },
    Remove { server: &'a str },
}

/// A `route` operation.
pub(crate) struct Route<'a> {
    pub id: &'a str,
    /// The routing id: the parent's, else the conversation's.
    pub key: Option<&'a str>,
    pub exclude: Option<&'a str>,
    prompt: Option<Box<serde_json::value::RawValue>>,
    messages: Option<Box<serde_json::value::RawValue>>,
    token_ids: Option<Box<serde_json::value::RawValue>>,
}

impl Route<'_> {
    pub fn prompt(&self) -> Prompt<'_> {
        match self.messages.as_deref() {
            Some(messages) => Prompt::chat(Some(messages), self.token_ids.as_deref()),
            None => Prompt::completion(self.prompt.as_deref()),
        }
    }
}

/// Reads a scenario's operations.
pub(crate) fn ops(scenario: &Value) -> Result<Vec<Op<'_>>, ReplayError> {
    Field::of(scenario)
        .get("ops")
        .list()?
        .map(|op| read(&op))
        .collect()
}

fn read<'a>(op: &Field<'a>) -> Result<Op<'a>, ReplayError> {
    match op.get("op").text()? {
        "route" => Ok(Op::Route(Box::new(read_route(op)?))),
        "finish" => Ok(Op::Finish {
            id: op.get("id").text()?,
        }),
        "add" => Ok(Op::Add {
            server: op.get("server").text()?,
        }),
        "remove" => Ok(Op::Remove {
            server: op.get("server").text()?,
        }),
        _ => Err(op.get("op").wrong("must be route, finish, add or remove")),
    }
}

fn read_route<'a>(op: &Field<'a>) -> Result<Route<'a>, ReplayError> {
    let text = |name| op.find(name).map(|field| field.text()).transpose();
    let raw = |name| op.find(name).map(|field| field.raw()).transpose();
    let (prompt, messages) = (raw("prompt")?, raw("messages")?);
    let prompt = match prompt {
        None if messages.is_none() => Some(serde_json::value::to_raw_value(DEFAULT_PROMPT)?),
        prompt => prompt,
    };
    Ok(Route {
        id: op.get("id").text()?,
        key: affinity::keys(text("conv")?, text("parent")?, AffinityScope::Both).context,
        exclude: text("exclude")?,
        prompt,
        messages,
        token_ids: raw("prompt_token_ids")?,
    })
}

/// The servers that a scenario begins with.
pub(crate) fn servers(scenario: &Value) -> Result<Vec<&str>, ReplayError> {
    Field::of(scenario)
        .get("servers")
        .list()?
        .map(|server| server.text())
        .collect()
}

/// The router's arguments, upstream's names and defaults; unknown ones are ignored, as upstream does.
pub(crate) fn config(scenario: &Value) -> Result<ConversationConfig, ReplayError> {
    let scenario = Field::of(scenario);
    let mut config = ConversationConfig::default();
    let Some(args) = scenario.find("args") else {
        return Ok(config);
    };
    if let Some(arg) = args.find("match_threshold") {
        config.match_threshold = arg.number()?;
    }
    if let Some(arg) = args.find("tokens_per_block") {
        config.tokens_per_block = arg.whole()?;
    }
    if let Some(arg) = args.find("hash_skip_count") {
        config.hash_skip_count = arg.whole()?;
    }
    if let Some(arg) = args.find("max_sessions") {
        config.max_sessions = arg.whole()?;
    }
    if let Some(arg) = args.find("use_token_ids")
        && arg.truth()?
    {
        return Err(arg.wrong("needs a tokenizer, which a replay does not have"));
    }
    Ok(config)
}

/// Upstream's name of the `number`th session that it makes up.
pub(crate) fn synthetic_name(number: u64) -> String {
    format!("conv_id:0_{number}")
}

struct Replay<'a> {
    router: Conversation,
    fleet: Fleet,
    servers: Vec<&'a str>,
    /// The texts of the keys seen so far.
    names: HashMap<AffinityKey, String>,
    requests: HashMap<&'a str, LoadGuard>,
    /// Addresses of all instances there were.
    addresses: HashMap<InstanceId, &'a str>,
}

impl<'a> Replay<'a> {
    fn new(scenario: &Field<'a>) -> Result<Self, ReplayError> {
        let servers = servers(scenario.value())?;
        let mut replay = Self {
            router: Conversation::new(&config(scenario.value())?),
            fleet: Fleet::build::<&str>(Role::Context, &[], None),
            servers: Vec::new(),
            names: HashMap::new(),
            requests: HashMap::new(),
            addresses: HashMap::new(),
        };
        replay.serve(servers);
        Ok(replay)
    }

    fn step(&mut self, op: &Field<'a>) -> Result<Value, ReplayError> {
        let mut outcome = Map::new();
        match read(op)? {
            Op::Route(route) => self.route(&route, &mut outcome),
            Op::Finish { id } => drop(self.requests.remove(id)),
            Op::Add { server } => {
                let mut servers = self.servers.clone();
                servers.push(server);
                self.serve(servers);
            }
            Op::Remove { server } => {
                let others = self.servers.iter().filter(|other| **other != server);
                self.serve(others.copied().collect());
            }
        }
        self.describe(&mut outcome);
        Ok(Value::Object(outcome))
    }

    fn route(&mut self, route: &Route<'a>, outcome: &mut Map<String, Value>) {
        let prompt = route.prompt();
        let exclude = route.exclude.and_then(|server| self.fleet.at(server));
        let exclude = exclude.map(|instance| Exclusion::rebinding(instance.id));
        let query = Query {
            scope: 0,
            key: route.key,
            prompt: &prompt,
            exclude,
            tokens: None,
        };
        match self.router.route(&self.fleet, &query) {
            Ok(pick) => {
                outcome.insert("server".to_owned(), json!(&*pick.load.instance().address));
                outcome.insert("weight".to_owned(), json!(pick.load.weight()));
                self.requests.insert(route.id, pick.load);
            }
            Err(error) => {
                let error = upstream_error(error, route.exclude);
                outcome.insert("error".to_owned(), json!(error));
            }
        }
        if let Some(key) = route.key {
            self.names.insert(AffinityKey::new(key), key.to_owned());
        }
        let synthetic = self.router.synthetic_sessions();
        self.names
            .insert(AffinityKey::synthetic(synthetic), synthetic_name(synthetic));
    }

    /// Goes on with other servers.
    fn serve(&mut self, servers: Vec<&'a str>) {
        let next = Fleet::build(Role::Context, &servers, Some(&self.fleet));
        self.router.forget(&next.removed_since(&self.fleet));
        self.servers.clear();
        for server in servers {
            if let Some(instance) = next.at(server)
                && !self.servers.contains(&server)
            {
                self.addresses.insert(instance.id, server);
                self.servers.push(server);
            }
        }
        self.fleet = next;
    }

    fn describe(&self, outcome: &mut Map<String, Value>) {
        let loads = self.fleet.instances().iter();
        let loads: Map<String, Value> = loads
            .map(|instance| (instance.address.to_string(), json!(instance.load())))
            .collect();
        let sessions = self.router.sessions().into_iter();
        let sessions: Vec<Value> = sessions
            .map(|session| {
                let name = self.names.get(&session.key);
                let server = self.addresses.get(&session.instance);
                json!([name, server, session.blocks])
            })
            .collect();
        outcome.insert("loads".to_owned(), Value::Object(loads));
        outcome.insert("rr_counter".to_owned(), json!(self.router.turn()));
        outcome.insert("sessions_lru_to_mru".to_owned(), Value::Array(sessions));
    }
}

/// The message that upstream has for the same failure; its router prints the role as a number.
fn upstream_error(error: RouteError, exclude: Option<&str>) -> String {
    match error {
        RouteError::Empty { role } => {
            let role = match role {
                Role::Context => 0,
                Role::Generation | Role::Aggregated => 1,
            };
            format!("No {role} servers available")
        }
        RouteError::Excluded { .. } | RouteError::Draining { .. } | RouteError::Unfit { .. } => {
            format!(
                "No available servers after excluding {}",
                exclude.unwrap_or("None")
            )
        }
    }
}
