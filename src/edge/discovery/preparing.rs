//! From an announcement to an instance.
//!
//! A worker may announce itself before it serves (specification section 8), so it is asked for its
//! health first, again and again until it is well. From then on it is an instance until its
//! announcement is gone; whether it stays well is not decided here.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    edge::{Edge, probes::ask},
    fleet::discovery::{Announced, Worker},
    http::upstream::Upstreams,
    wire::Role,
};

/// How long a worker's health is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Wait after a first answer that was not well; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Questions at once.
const AT_ONCE: usize = 32;

type Place = (Role, String);

/// How far a worker is.
enum Standing {
    /// To be asked at that time, after so many answers that were not well.
    Asked {
        next: Instant,
        failures: u32,
    },
    Serving,
}

/// Every worker that is announced.
pub struct Preparing {
    edge: Arc<Edge>,
    upstreams: Arc<Upstreams>,
    known: HashMap<Place, Standing>,
}

impl Preparing {
    pub fn new(edge: Arc<Edge>, upstreams: Arc<Upstreams>) -> Self {
        Self {
            edge,
            upstreams,
            known: HashMap::new(),
        }
    }

    /// Turns announcements into instances for ever. What was found out is kept when it is dropped.
    pub async fn run(&mut self) {
        let edge = self.edge.clone();
        let mut announced = edge.discovery.announced.subscribe();
        let mut changed = edge.changed.subscribe();
        loop {
            let now = announced.borrow_and_update().clone();
            changed.mark_unchanged();
            self.keep(&now);
            self.apply(&now);
            self.ask_all().await;
            self.apply(&now);
            let due = self.due();
            tokio::select! {
                _ = announced.changed() => {}
                // The fleets of a new configuration begin with what the old ones had.
                _ = changed.changed() => {}
                () = until(due) => {}
            }
        }
    }

    /// Forgets whoever is announced no more, and begins with whoever is new.
    fn keep(&mut self, announced: &Announced) {
        let places: Vec<Place> = [Role::Context, Role::Generation]
            .into_iter()
            .flat_map(|role| announced.workers(role))
            .map(place)
            .collect();
        self.known.retain(|known, _| places.contains(known));
        for place in places {
            self.known.entry(place).or_insert_with(|| Standing::Asked {
                next: Instant::now(),
                failures: 0,
            });
        }
    }

    /// When the next one is to be asked.
    fn due(&self) -> Option<Instant> {
        let times = self.known.values().filter_map(|standing| match standing {
            Standing::Asked { next, .. } => Some(*next),
            Standing::Serving => None,
        });
        times.min()
    }

    /// Asks everybody whose time it is.
    async fn ask_all(&mut self) {
        let now = Instant::now();
        let is_due = |standing: &Standing| match standing {
            Standing::Asked { next, .. } => *next <= now,
            Standing::Serving => false,
        };
        let due = self.known.iter().filter(|(_, standing)| is_due(standing));
        let due: Vec<Place> = due.map(|(place, _)| place.clone()).take(AT_ONCE).collect();
        let mut questions = JoinSet::new();
        for place in due {
            let (edge, upstreams) = (self.edge.clone(), self.upstreams.clone());
            questions.spawn(async move {
                let well = is_well(&edge, &upstreams, &place.1).await;
                (place, well)
            });
        }
        while let Some(answer) = questions.join_next().await {
            if let Ok((place, well)) = answer {
                self.answered(place, well);
            }
        }
    }

    fn answered(&mut self, place: Place, well: bool) {
        let Some(standing) = self.known.get_mut(&place) else {
            return;
        };
        let Standing::Asked { failures, .. } = *standing else {
            return;
        };
        let (role, address) = (place.0.label(), place.1);
        if well {
            tracing::info!(role, address, "a worker that announced itself serves now");
            *standing = Standing::Serving;
            return;
        }
        if failures == 0 {
            tracing::info!(
                role,
                address,
                "a worker announced itself and is not well yet"
            );
        }
        let pause = (FIRST_PAUSE * 2_u32.pow(failures.min(8))).min(LONGEST_PAUSE);
        *standing = Standing::Asked {
            next: Instant::now() + pause,
            failures: failures.saturating_add(1),
        };
    }

    /// Makes the fleets what is known.
    fn apply(&self, announced: &Announced) {
        let live = self.edge.live.load();
        if live.edge.discovery.is_none() {
            // A new configuration lists its workers.
            return;
        }
        let mut pools = live.pools.iter().filter(|pool| pool.model.is_none());
        let Some(pair) = pools.find_map(|pool| pool.pair()) else {
            return;
        };
        let mut changed = false;
        for (role, destination) in [
            (Role::Context, &pair.context),
            (Role::Generation, &pair.generation),
        ] {
            let serving = announced.workers(role).into_iter().map(place);
            let serving = serving.filter(|place| {
                let standing = self.known.get(place);
                matches!(standing, Some(Standing::Serving))
            });
            let addresses: Vec<String> = serving.map(|place| place.1).collect();
            changed |= destination.set_members(&addresses);
        }
        if changed {
            self.edge.changed.send_modify(|version| *version += 1);
        }
    }
}

fn place(worker: &Worker) -> Place {
    (worker.role, worker.address())
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn is_well(edge: &Edge, upstreams: &Upstreams, address: &str) -> bool {
    let live = edge.live.load_full();
    let asked = timeout(PATIENCE, ask(upstreams, &live, address)).await;
    matches!(asked, Ok(Ok(200..=299)))
}
