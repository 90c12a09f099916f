//! An edge before worker filters, which stand before simulated workers.

use std::net::SocketAddr;

use kindred::wire::Role;

use super::{
    Kindred,
    fleet::{self, Fleet},
};

/// The filters are in a process of their own.
pub struct Guarded {
    pub edge: Kindred,
    pub filters: Kindred,
    pub fleet: Fleet,
}

impl Guarded {
    /// `more` is the edge's, which shares `key` with the filters.
    pub fn open(fleet: Fleet, key: &str, ranks: u32, more: &str) -> Self {
        let filters = filters(&fleet, key, ranks);
        let more = format!("internal_request_auth_key: {key}\n{more}");
        let of = |role| addresses(&filters, role);
        let yaml = fleet::yaml(&of(Role::Context), &of(Role::Generation), &more);
        Self {
            edge: Kindred::serve(&yaml),
            filters,
            fleet,
        }
    }
}

/// A filter before every worker, named as its worker, which places on so many ranks.
pub fn filters(fleet: &Fleet, key: &str, ranks: u32) -> Kindred {
    let workers = fleet.workers.iter();
    let workers = workers.map(|worker| (worker.name.as_str(), worker.address, worker.role));
    filters_before(workers, key, ranks)
}

/// As [`filters`], before whatever listens at these addresses.
pub fn filters_before<'a>(
    workers: impl Iterator<Item = (&'a str, SocketAddr, Role)>,
    key: &str,
    ranks: u32,
) -> Kindred {
    let mut yaml = format!(
        "internal_request_auth_key: {key}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n"
    );
    for (name, address, role) in workers {
        yaml.push_str(&format!(
            "- {{name: {name}, listen: '127.0.0.1:0', worker: '{address}', server_role: {}, \
             enable_attention_dp: true, tensor_parallel_size: {ranks}, \
             attention_dp_config: {{kv_cache_routing_conversation_affinity: true}}}}\n",
            role.label(),
        ));
    }
    Kindred::serve(&yaml)
}

/// Where the filters of a role listen.
pub fn addresses(filters: &Kindred, role: Role) -> Vec<SocketAddr> {
    let of = filters.filters.iter();
    let of = of.filter(|(name, _)| name.starts_with(role.label()));
    of.map(|(_, address)| *address).collect()
}
