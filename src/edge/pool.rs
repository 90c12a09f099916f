//! The fleets that serve a model, and which model is served by which.
//!
//! Decides by the name in a request's body where it goes. A session that talks to two models has a
//! binding in the fleets of each; the aliases of one model share its fleets and so its bindings.

use std::{collections::HashMap, sync::Arc};

use super::{destination::Destination, tokenizer::Tokenizer};
use crate::config::{EdgeConfig, FleetsConfig, Limits, ModelConfig};

/// The fleets that serve one model, or all that have no fleets of their own.
pub struct Pool {
    /// The named model; what its workers are told.
    pub model: Option<Arc<str>>,
    /// What requests may call it beside that.
    pub aliases: Vec<String>,
    pub fleets: Fleets,
    /// Turns prompts into token ids; `None` where no folder is named.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// How a request is served.
pub enum Fleets {
    /// In two legs.
    Disaggregated(Box<Pair>),
    /// Whole, by one instance.
    Aggregated(Destination),
}

/// The fleets of the two legs.
pub struct Pair {
    pub context: Destination,
    pub generation: Destination,
}

impl Pool {
    fn build(
        settings: (&EdgeConfig, &Limits),
        (model, fleets): (Option<&ModelConfig>, &FleetsConfig),
        tokenizer: Option<Arc<Tokenizer>>,
        previous: Option<&Self>,
    ) -> Self {
        let name = model.map(|model| Arc::from(model.name.as_str()));
        let build = |fleet, previous| Destination::build(settings, fleet, name.as_ref(), previous);
        let fleets = match fleets {
            FleetsConfig::Disaggregated(config) => {
                let previous = previous.and_then(Self::pair);
                Fleets::Disaggregated(Box::new(Pair {
                    context: build(&config.context, previous.map(|pair| &pair.context)),
                    generation: build(&config.generation, previous.map(|pair| &pair.generation)),
                }))
            }
            FleetsConfig::Aggregated(config) => {
                let previous = match previous.map(|pool| &pool.fleets) {
                    Some(Fleets::Aggregated(previous)) => Some(previous),
                    _ => None,
                };
                Fleets::Aggregated(build(config, previous))
            }
        };
        Self {
            aliases: model.map_or_else(Vec::new, |model| model.aliases.clone()),
            model: name,
            fleets,
            tokenizer,
        }
    }

    /// The fleets of the two legs, where there are two.
    pub fn pair(&self) -> Option<&Pair> {
        match &self.fleets {
            Fleets::Disaggregated(pair) => Some(pair),
            Fleets::Aggregated(_) => None,
        }
    }

    /// The fleet whose instance answers the client: generation or aggregated.
    pub fn answering(&self) -> &Destination {
        match &self.fleets {
            Fleets::Disaggregated(pair) => &pair.generation,
            Fleets::Aggregated(destination) => destination,
        }
    }

    /// Its fleets.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let context = self.pair().map(|pair| &pair.context);
        context.into_iter().chain([self.answering()])
    }

    /// The first fleet whose router goes by KV cache.
    pub fn kv_cache_aware(&self) -> Option<&Destination> {
        let by_cache = |destination: &&Destination| destination.kv_cache_aware().is_some();
        self.destinations().find(by_cache)
    }
}

/// Every pool of one configuration.
pub struct Pools {
    all: Vec<Arc<Pool>>,
    /// Positions in `all`, by name and alias.
    by_model: HashMap<String, usize>,
    /// The position of the pool of unnamed models.
    unnamed: Option<usize>,
}

impl Pools {
    /// Builds what `edge` describes, taking over whatever of `previous` is still meant. `tokenizers`
    /// are in the order of [`EdgeConfig::pools`].
    pub fn build(
        settings: (&EdgeConfig, &Limits),
        tokenizers: Vec<Option<Arc<Tokenizer>>>,
        previous: Option<&Self>,
    ) -> Self {
        let mut pools = Self {
            all: Vec::new(),
            by_model: HashMap::new(),
            unnamed: None,
        };
        let mut tokenizers = tokenizers.into_iter();
        for (model, fleets) in settings.0.pools() {
            let at = pools.all.len();
            let name = model.map(|model| model.name.as_str());
            let previous = previous.and_then(|pools| pools.named(name));
            let tokenizer = tokenizers.next().flatten();
            let pool = Pool::build(
                settings,
                (model, fleets),
                tokenizer,
                previous.map(|pool| &**pool),
            );
            match model {
                Some(model) => {
                    let names = model.aliases.iter().chain([&model.name]);
                    pools.by_model.extend(names.map(|name| (name.clone(), at)));
                }
                None => pools.unnamed = Some(at),
            }
            pools.all.push(Arc::new(pool));
        }
        pools
    }

    /// The pool of the entry `name`; without a name the pool of unnamed models.
    fn named(&self, name: Option<&str>) -> Option<&Arc<Pool>> {
        self.iter().find(|pool| pool.model.as_deref() == name)
    }

    /// The pool that serves the model of a request.
    pub fn of_model(&self, model: &str) -> Option<&Arc<Pool>> {
        let at = self.by_model.get(model).copied().or(self.unnamed)?;
        self.all.get(at)
    }

    /// All of them, the one of unnamed models first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.all.iter()
    }

    /// The fleets of all of them.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        self.all.iter().flat_map(|pool| pool.destinations())
    }
}
