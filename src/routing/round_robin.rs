//! One instance after the other (specification section 2.1).
//!
//! Decides by a counter alone; it knows no loads and keeps no bindings.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Decision, Fleet, Pick, Query, RouteError, exhausted, slow_start};
use crate::fleet::Instance;

/// The `round_robin` router.
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicU64,
}

impl RoundRobin {
    /// The instance whose turn it is, or the next one if that may not serve the request.
    pub fn route(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        let instances = fleet.instances();
        let ignored = fleet.ignores_health();
        let may = |instance: &Instance| {
            !query.excludes(instance.id) && instance.health().takes_new(ignored)
        };
        let all = instances.len().max(1) as u64;
        for _ in 0..all {
            let turn = self.turn.fetch_add(1, Relaxed);
            let instance = instances.get((turn % all) as usize);
            let instance = instance.filter(|instance| {
                may(instance) && slow_start::takes_part(instance.health().weight(), turn / all)
            });
            if let Some(instance) = instance {
                return Ok(pick(instance));
            }
        }
        // The turns may not be neighbours when requests race for them.
        let other = instances.iter().find(|instance| may(instance));
        other.map(pick).ok_or_else(|| exhausted(fleet))
    }
}

fn pick(instance: &Arc<Instance>) -> Pick {
    Pick {
        load: instance.reserve(1),
        decision: Decision::Unkeyed,
        kv: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        routing::Exclusion,
        wire::{Role, prompt::Prompt},
    };

    #[test]
    fn each_has_its_turn_and_the_excluded_one_is_passed_over() {
        let router = RoundRobin::default();
        let fleet = Fleet::build(Role::Context, &["a:1", "b:1", "c:1"], None);
        let prompt = Prompt::empty();
        let mut query = Query {
            scope: 0,
            key: Some("k"),
            prompt: &prompt,
            exclude: None,
            tokens: None,
        };
        let mut pick = |exclude: Option<&str>| {
            query.exclude =
                exclude.and_then(|address| Some(Exclusion::rebinding(fleet.at(address)?.id)));
            router
                .route(&fleet, &query)
                .map(|pick| pick.load.instance().address.to_string())
        };
        assert_eq!(pick(None).unwrap(), "a:1");
        assert_eq!(pick(Some("b:1")).unwrap(), "c:1");
        assert_eq!(pick(None).unwrap(), "a:1");

        let one = Fleet::build(Role::Context, &["a:1"], None);
        query.exclude = Some(Exclusion::once(one.instances()[0].id));
        let error = router.route(&one, &query).unwrap_err();
        assert_eq!(
            error,
            RouteError::Excluded {
                role: Role::Context
            }
        );
        let none = Fleet::build::<&str>(Role::Context, &[], None);
        let error = router.route(&none, &query).unwrap_err();
        assert_eq!(
            error,
            RouteError::Empty {
                role: Role::Context
            }
        );
    }
}
