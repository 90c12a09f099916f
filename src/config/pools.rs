//! Which fleets serve which model.
//!
//! Says nothing of how they are read from a file: `upstream` does. A model has either a context and a
//! generation fleet or an aggregated one, never a part of both.

use super::{EdgeConfig, FleetConfig};

/// The fleets that serve a request.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetsConfig {
    /// `context_servers` and `generation_servers`.
    Disaggregated(Box<PairConfig>),
    /// `aggregated_servers`: each instance serves whole requests.
    Aggregated(FleetConfig),
}

/// The fleets of the two legs.
#[derive(Debug, Clone, PartialEq)]
pub struct PairConfig {
    pub context: FleetConfig,
    pub generation: FleetConfig,
}

/// One entry of `models`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// What requests and workers call the model.
    pub name: String,
    /// What requests may call it too; workers are told `name`.
    pub aliases: Vec<String>,
    pub fleets: FleetsConfig,
}

impl FleetsConfig {
    /// The fleets of the two legs, where there are two.
    pub fn pair(&self) -> Option<&PairConfig> {
        match self {
            Self::Disaggregated(pair) => Some(pair),
            Self::Aggregated(_) => None,
        }
    }

    /// Every fleet.
    pub fn all(&self) -> Vec<&FleetConfig> {
        match self {
            Self::Disaggregated(pair) => vec![&pair.context, &pair.generation],
            Self::Aggregated(fleet) => vec![fleet],
        }
    }
}

impl EdgeConfig {
    /// All groups of fleets: those of unnamed models first, then the models' in the file's order.
    pub fn pools(&self) -> impl Iterator<Item = (Option<&ModelConfig>, &FleetsConfig)> {
        let unnamed = self.fleets.iter().map(|fleets| (None, fleets));
        let models = self.models.iter();
        unnamed.chain(models.map(|model| (Some(model), &model.fleets)))
    }
}
