//! Which instance serves a leg.
//!
//! Decides by upstream's rules (specification section 2) which instance of a [`Fleet`] a request
//! goes to, and counts it there. A router sees a small description of a request, the [`Query`], and
//! a snapshot of the fleet; it does no I/O, never waits for one, and holds its locks for the time
//! of a decision only. What is not usable is chosen only where nothing usable is left in the fleet.
//! It must never send a request to an instance outside the snapshot.

pub mod conversation;
pub mod kv_cache_aware;
pub mod kv_hash;
pub mod load_balancing;
pub mod prefix;
pub mod round_robin;
mod slow_start;

use std::sync::Arc;

use crate::{
    affinity::{AffinityKey, shares::Owner},
    config::RouterConfig,
    fleet::{Fleet, Instance, InstanceId, LoadGuard},
    telemetry::labels::Decision,
    wire::{Role, prompt::Prompt},
};

pub use conversation::{Conversation, Session};
pub use kv_cache_aware::{Event, KvCacheAware, KvMatch, Learned, Unfit, WorkerFacts};
pub use load_balancing::LoadBalancing;
pub use round_robin::RoundRobin;

/// What a router needs to know of a request.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The leg's affinity key; blank counts as absent.
    pub key: Option<&'a str>,
    /// Whose the request is: requests without a key join only sessions of their own scope, and no
    /// scope's sessions push out another's. [`NOBODY`](crate::affinity::shares::NOBODY) where clients
    /// are not told apart.
    pub scope: Owner,
    /// What the request asks.
    pub prompt: &'a Prompt<'a>,
    /// An instance that must not be chosen: the one that serves the other leg of this request, or
    /// one that has just failed it.
    pub exclude: Option<Exclusion>,
    /// The prompt's token ids, where they are known and of one sequence; only the router
    /// `kv_cache_aware` looks at them.
    pub tokens: Option<&'a [u32]>,
}

/// An instance that must not be chosen, and what that means to the keys that are bound to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exclusion {
    pub instance: InstanceId,
    /// Only this request goes elsewhere ([`Decision::Overflow`]); else its key is bound anew
    /// ([`Decision::Failover`]).
    pub keeps_binding: bool,
    /// Instances that failed the request before that one; what is bound to them stays so.
    tried: [Option<InstanceId>; MOST_TRIED],
}

/// How many instances that failed before are left out; of more, the first ones.
const MOST_TRIED: usize = 6;

impl Exclusion {
    /// For an instance that is of no use to the key any more; a key bound to it is bound anew.
    pub fn rebinding(instance: InstanceId) -> Self {
        Self {
            instance,
            keeps_binding: false,
            tried: [None; MOST_TRIED],
        }
    }

    /// For an instance that failed this once; a key bound to it stays bound.
    pub fn once(instance: InstanceId) -> Self {
        Self {
            instance,
            keeps_binding: true,
            tried: [None; MOST_TRIED],
        }
    }

    /// That, and these as well.
    pub fn after(mut self, tried: &[InstanceId]) -> Self {
        let mut tried = tried.iter().copied();
        self.tried = std::array::from_fn(|_| tried.next());
        self
    }

    /// Only the last one.
    fn alone(self) -> Self {
        self.after(&[])
    }
}

impl Query<'_> {
    /// Whether `instance` may not serve this request.
    fn excludes(&self, instance: InstanceId) -> bool {
        self.exclude.is_some_and(|excluded| {
            excluded.instance == instance || excluded.tried.contains(&Some(instance))
        })
    }

    /// Whether this request goes elsewhere while what is bound to `instance` stays so.
    fn avoids_once(&self, instance: InstanceId) -> bool {
        self.exclude.is_some_and(|excluded| {
            if excluded.instance == instance {
                excluded.keeps_binding
            } else {
                excluded.tried.contains(&Some(instance))
            }
        })
    }

    /// The same query with fewer exclusions; `None` where there are none.
    pub fn with_fewer(&self) -> Option<Self> {
        let excluded = self.exclude?;
        let alone = excluded.alone();
        Some(Self {
            exclude: (alone != excluded).then_some(alone),
            ..*self
        })
    }
}

/// A router's answer.
#[derive(Debug)]
pub struct Pick {
    /// The instance, and the request's place on it for as long as this lives.
    pub load: LoadGuard,
    /// How it was chosen.
    pub decision: Decision,
    /// What the router `kv_cache_aware` knew of the prompt; nothing from the others, nor where it
    /// had no token ids.
    pub kv: Option<Box<KvMatch>>,
}

impl Pick {
    /// Whether the request needs a context leg before this generation instance can serve it
    /// (specification section 4.6). Where nothing is known of its cache it does.
    pub fn needs_context(&self, max_local_prefill_length: u64) -> bool {
        let kv = self.kv.as_ref();
        kv.is_none_or(|kv| kv.needs_context(max_local_prefill_length))
    }
}

/// Why no instance can be chosen. The messages name no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("there is no {} instance; add one to the configuration", .role.label())]
    Empty { role: Role },
    #[error("every {} instance is being emptied; add one or end a drain", .role.label())]
    Draining { role: Role },
    #[error("the only {} instance may not serve this request; add another one", .role.label())]
    Excluded { role: Role },
    #[error(
        "no {} instance fits the kv_cache_aware router; the log says what to align",
        .role.label()
    )]
    Unfit { role: Role },
}

/// A fleet's router. Shared by all requests; every method takes `&self`.
#[derive(Debug)]
pub enum Router {
    RoundRobin(RoundRobin),
    LoadBalancing(LoadBalancing),
    Conversation(Box<Conversation>),
    KvCacheAware(Box<KvCacheAware>),
}

impl Router {
    /// A router with no bindings.
    pub fn new(config: &RouterConfig) -> Self {
        match config {
            RouterConfig::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            RouterConfig::LoadBalancing(config) => Self::LoadBalancing(LoadBalancing::new(config)),
            RouterConfig::Conversation(config) => {
                Self::Conversation(Box::new(Conversation::new(config)))
            }
            RouterConfig::KvCacheAware(config) => {
                Self::KvCacheAware(Box::new(KvCacheAware::new(config)))
            }
        }
    }

    /// The router for a changed configuration: this one, with its bindings and the new settings,
    /// where the kind stays, else a new one.
    pub fn reconfigured(self: &Arc<Self>, config: &RouterConfig) -> Arc<Self> {
        match (&**self, config) {
            (Self::RoundRobin(_), RouterConfig::RoundRobin) => Arc::clone(self),
            (Self::LoadBalancing(router), RouterConfig::LoadBalancing(config))
                if router.config() == config =>
            {
                Arc::clone(self)
            }
            (Self::Conversation(router), RouterConfig::Conversation(config)) => {
                router.reconfigure(config);
                Arc::clone(self)
            }
            (Self::KvCacheAware(router), RouterConfig::KvCacheAware(config)) => {
                router.reconfigure(config);
                Arc::clone(self)
            }
            _ => Arc::new(Self::new(config)),
        }
    }

    /// Chooses an instance of `fleet` and counts the request on it.
    pub fn route(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        match self {
            Self::RoundRobin(router) => router.route(fleet, query),
            Self::LoadBalancing(router) => router.route(fleet, query),
            Self::Conversation(router) => router.route(fleet, query),
            Self::KvCacheAware(router) => router.route(fleet, query),
        }
    }

    /// What one client's sessions may fill of the tables at most, between 0 and 1.
    pub fn set_share(&self, share: f64) {
        match self {
            Self::Conversation(router) => router.set_share(share),
            Self::KvCacheAware(router) => router.set_share(share),
            Self::RoundRobin(_) | Self::LoadBalancing(_) => {}
        }
    }

    /// Drops every binding to these instances, as upstream does at a removal (specification section
    /// 2.3, step 7): their keys count as new afterwards. Without it such a key is found bound to an
    /// instance that is gone, which is a failover; both bind it anew. Linear in the bindings.
    pub fn forget(&self, removed: &[InstanceId]) {
        match self {
            Self::Conversation(router) => router.forget(removed),
            Self::KvCacheAware(router) => router.forget(removed),
            Self::RoundRobin(_) | Self::LoadBalancing(_) => {}
        }
    }

    /// The request of this pick is over, well or not. To be said before the pick is dropped.
    pub fn finished(&self, pick: &Pick, success: bool) {
        if let Self::KvCacheAware(router) = self {
            router.finished(pick, success);
        }
    }

    /// Number of bindings held.
    pub fn bindings(&self) -> usize {
        if let Self::KvCacheAware(router) = self {
            return router.bindings();
        }
        self.conversation().map_or(0, Conversation::bindings)
    }

    /// Bindings dropped so far because the table was full.
    pub fn evictions(&self) -> u64 {
        if let Self::KvCacheAware(router) = self {
            return router.evictions();
        }
        self.conversation().map_or(0, Conversation::evictions)
    }

    /// The instance that `key` is bound to; changes nothing.
    pub fn peek(&self, key: &str) -> Option<InstanceId> {
        self.conversation()?.peek(AffinityKey::new(key))
    }

    /// The router by KV cache, to bring it what the workers say.
    pub fn kv_cache_aware(&self) -> Option<&KvCacheAware> {
        match self {
            Self::KvCacheAware(router) => Some(router),
            _ => None,
        }
    }

    fn conversation(&self) -> Option<&Conversation> {
        match self {
            Self::Conversation(router) => Some(router),
            Self::KvCacheAware(router) => Some(router.conversation()),
            _ => None,
        }
    }
}

/// Picks by load: of several instances with the least, in the fleet's order, the one that the count
/// of picks so far falls on (specification section 2.2).
#[derive(Debug, Default)]
struct LeastLoaded {
    /// Picks so far.
    turn: u64,
    /// Positions of the instances with the least load, while one is picked.
    tied: Vec<u32>,
}

impl LeastLoaded {
    /// The instance to use; `None` where none may be. Looks once at every instance, and again where
    /// those that came back a moment ago are the only ones.
    fn pick<'f>(
        &mut self,
        fleet: &'f Fleet,
        query: &Query<'_>,
        load: impl Fn(&Instance) -> u64,
    ) -> Option<&'f Arc<Instance>> {
        self.pick_if(fleet, query, load, |_| true)
    }

    /// As [`Self::pick`], among the instances that `open` accepts.
    fn pick_if<'f>(
        &mut self,
        fleet: &'f Fleet,
        query: &Query<'_>,
        load: impl Fn(&Instance) -> u64,
        open: impl Fn(&Instance) -> bool,
    ) -> Option<&'f Arc<Instance>> {
        let ignored = fleet.ignores_health();
        let load = |instance: &Instance| {
            let may = !query.excludes(instance.id)
                && instance.health().takes_new(ignored)
                && open(instance);
            may.then(|| load(instance))
        };
        let turn = self.turn;
        self.tie(fleet, |instance| {
            slow_start::load(instance, turn, load(instance)?)
        });
        if self.tied.is_empty() {
            self.tie(fleet, load);
        }
        let turned = turn.checked_rem(self.tied.len() as u64)?;
        let at = *self.tied.get(turned as usize)?;
        self.turn = turn.wrapping_add(1);
        fleet.instances().get(at as usize)
    }

    /// Finds the instances with the least load, of those that have one.
    fn tie(&mut self, fleet: &Fleet, load: impl Fn(&Instance) -> Option<u64>) {
        let mut least = u64::MAX;
        self.tied.clear();
        for (instance, at) in fleet.instances().iter().zip(0..) {
            let Some(load) = load(instance).filter(|load| *load <= least) else {
                continue;
            };
            if load < least {
                least = load;
                self.tied.clear();
            }
            self.tied.push(at);
        }
    }
}

fn exhausted(fleet: &Fleet) -> RouteError {
    let role = fleet.role();
    let mut instances = fleet.instances().iter();
    if fleet.is_empty() {
        RouteError::Empty { role }
    } else if instances.all(|instance| instance.health().is_draining()) {
        RouteError::Draining { role }
    } else {
        RouteError::Excluded { role }
    }
}

#[cfg(test)]
mod tests;
