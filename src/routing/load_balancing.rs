//! The least busy instance (specification section 2.2).
//!
//! Decides by the requests, or the prompt tokens, in flight on each instance. Upstream fails with
//! 500 where tokens are asked for and the request is a chat or a generation leg; here such a
//! request counts as its prompt's estimated weight.

use parking_lot::Mutex;

use super::{Decision, Fleet, LeastLoaded, Pick, Query, RouteError, exhausted};
use crate::{config::LoadBalancingConfig, fleet::Instance};

/// The `load_balancing` router.
#[derive(Debug)]
pub struct LoadBalancing {
    config: LoadBalancingConfig,
    /// Held while a pick is made, so that requests that arrive together see each other.
    least_loaded: Mutex<LeastLoaded>,
}

impl LoadBalancing {
    pub fn new(config: &LoadBalancingConfig) -> Self {
        Self {
            config: config.clone(),
            least_loaded: Mutex::default(),
        }
    }

    pub(super) fn config(&self) -> &LoadBalancingConfig {
        &self.config
    }

    /// The instance with the fewest requests or tokens in flight; ties go round.
    pub fn route(&self, fleet: &Fleet, query: &Query<'_>) -> Result<Pick, RouteError> {
        let (weight, load): (u64, fn(&Instance) -> u64) = if self.config.use_tokens {
            (query.prompt.tokens(), Instance::load)
        } else {
            (1, Instance::in_flight)
        };
        let mut least_loaded = self.least_loaded.lock();
        let instance = least_loaded.pick(fleet, query, load);
        let instance = instance.ok_or_else(|| exhausted(fleet))?;
        Ok(Pick {
            load: instance.reserve(weight),
            decision: Decision::Unkeyed,
            kv: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::wire::{Role, prompt::Prompt};

    fn pick(router: &LoadBalancing, fleet: &Fleet, prompt: &Prompt<'_>) -> Pick {
        let query = Query {
            scope: 0,
            key: None,
            prompt,
            exclude: None,
            tokens: None,
        };
        router.route(fleet, &query).unwrap()
    }

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn the_instance_with_the_fewest_requests_is_next() {
        let router = LoadBalancing::new(&LoadBalancingConfig::default());
        let fleet = Fleet::build(Role::Context, &["a:1", "b:1"], None);
        let prompt = Prompt::empty();
        let one = pick(&router, &fleet, &prompt);
        let two = pick(&router, &fleet, &prompt);
        assert_ne!(one.load.instance().id, two.load.instance().id);
        let freed = one.load.instance().id;
        drop(one);
        assert_eq!(pick(&router, &fleet, &prompt).load.instance().id, freed);
        drop(two);
        assert!(
            fleet
                .instances()
                .iter()
                .all(|instance| instance.in_flight() == 0)
        );
    }

    #[test]
    fn tokens_weigh_where_they_are_asked_for() {
        let router = LoadBalancing::new(&LoadBalancingConfig { use_tokens: true });
        let fleet = Fleet::build(Role::Context, &["a:1", "b:1"], None);
        let (long, short) = (raw("[1,2,3,4,5]"), raw("\"abc\""));
        let long = pick(&router, &fleet, &Prompt::completion(Some(&long)));
        assert_eq!(
            (&*long.load.instance().address, long.load.weight()),
            ("a:1", 5)
        );
        let short = Prompt::completion(Some(&short));
        let held: Vec<Pick> = (0..2).map(|_| pick(&router, &fleet, &short)).collect();
        assert!(
            held.iter()
                .all(|pick| &*pick.load.instance().address == "b:1")
        );
        let chat = raw(r#"[{"role": "user", "content": "0123456789"}]"#);
        let chat = pick(&router, &fleet, &Prompt::chat(Some(&chat), None));
        assert_eq!(
            (&*chat.load.instance().address, chat.load.weight()),
            ("a:1", 3)
        );
    }
}
