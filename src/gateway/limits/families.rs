//! How many sub-agents of each parent are at work.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::affinity::AffinityKey;

/// The families of one client that have sub-agents in flight; as many entries as there are such
/// requests at most.
#[derive(Debug, Default)]
pub(super) struct Families(Mutex<HashMap<AffinityKey, usize>>);

/// A sub-agent's request, counted until it is dropped.
#[derive(Debug)]
#[must_use = "it is only counted while this lives"]
pub struct SubAgent {
    families: Arc<Families>,
    parent: AffinityKey,
}

impl Families {
    /// Counts one more, unless there are `most` already.
    pub(super) fn enter(self: &Arc<Self>, parent: &str, most: usize) -> Option<SubAgent> {
        let parent = AffinityKey::new(parent);
        let mut families = self.0.lock();
        let count = families.entry(parent).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(SubAgent {
            families: self.clone(),
            parent,
        })
    }
}

impl Drop for SubAgent {
    fn drop(&mut self) {
        let mut families = self.families.0.lock();
        if let Some(count) = families.get_mut(&self.parent) {
            *count -= 1;
            if *count == 0 {
                families.remove(&self.parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_remembered_of_families_at_rest() {
        let families = Arc::new(Families::default());
        let held: Vec<_> = (0..100)
            .map(|number| families.enter(&format!("p{}", number % 10), 10))
            .collect();
        assert!(held.iter().all(Option::is_some));
        assert!(families.enter("p3", 10).is_none());
        drop(held);
        assert!(families.0.lock().is_empty());
    }
}
