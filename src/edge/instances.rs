//! What an operator sees of the instances, and the operator's word on them.

use std::sync::Arc;

use super::Edge;
use crate::{
    config::DrainMode,
    fleet::health::{DrainedBy, Standing},
    telemetry::labels::FleetLabel,
};

/// One instance, for an operator.
#[derive(Debug, Clone)]
pub struct InstanceView {
    pub alias: Arc<str>,
    pub fleet: FleetLabel,
    /// `host:port`; not for clients.
    pub address: Arc<str>,
    pub standing: Standing,
    pub in_flight: u64,
}

impl Edge {
    /// Every instance, the removed ones until their last request is over.
    pub fn instances(&self) -> Vec<InstanceView> {
        let live = self.live.load();
        let fleets = live.destinations().map(|destination| destination.fleet());
        let views = fleets.flat_map(|fleet| {
            let views = fleet.visible().map(|instance| InstanceView {
                alias: instance.alias.clone(),
                fleet: fleet.label(),
                address: instance.address.clone(),
                standing: instance.health().describe(),
                in_flight: instance.in_flight(),
            });
            views.collect::<Vec<_>>()
        });
        views.collect()
    }

    /// Empties the instance with this alias, or ends that with `None`; `None` where there is no such
    /// instance.
    pub fn drain(&self, alias: &str, mode: Option<DrainMode>) -> Option<InstanceView> {
        let live = self.live.load();
        let mut fleets = live.destinations().map(|destination| destination.fleet());
        let instance = fleets.find_map(|fleet| {
            let mut instances = fleet.instances().iter();
            instances
                .find(|instance| &*instance.alias == alias)
                .cloned()
        })?;
        instance.health().drain(DrainedBy::Operator, mode);
        let mode = mode.map_or("none", DrainMode::name);
        tracing::info!(instance = alias, mode, "the operator drains an instance");
        let mut views = self.instances().into_iter();
        views.find(|view| view.alias == instance.alias)
    }
}
