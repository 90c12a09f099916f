//! The hand-over of a prompt's cache from a context worker to a generation worker.
//!
//! A context answer carries a [`TransferState`] as `encoded_opaque_state`; the generation worker
//! takes the cache blocks of that id from the [`Exchange`] that the workers of one process share.
//! A transfer is taken once, and an id that nobody offers times out as a real receive session does;
//! where generation comes first, so does an id that nobody asked for.
//! The state's format is this fleet's own: nothing but a simulated worker may read it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{sync::Notify, time::Instant};

/// Transfers that wait at once; the oldest is given up first.
const WAITING: usize = 16_384;

/// What a context worker tells the generation worker about a computed prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferState {
    /// `ctx_request_id`: the key of the hand-over.
    pub id: u64,
    /// Digest of the prompt's token ids.
    pub prompt: u64,
    /// Name of the context worker.
    pub worker: String,
    /// Rank on which the prompt was computed.
    pub rank: u32,
}

/// An `encoded_opaque_state` that no simulated context worker made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("encoded_opaque_state was not made by a context worker")]
pub struct ForeignState;

impl TransferState {
    /// The base64 text of `encoded_opaque_state`.
    pub fn encode(&self) -> String {
        STANDARD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads what [`TransferState::encode`] wrote.
    ///
    /// # Errors
    /// When it is something else.
    pub fn decode(text: &str) -> Result<Self, ForeignState> {
        let bytes = STANDARD.decode(text).map_err(|_| ForeignState)?;
        serde_json::from_slice(&bytes).map_err(|_| ForeignState)
    }
}

#[derive(Debug, Default)]
struct Offers {
    states: HashMap<u64, TransferState>,
    order: VecDeque<u64>,
    /// How many generation workers ask for an id now.
    takers: HashMap<u64, u32>,
}

/// Prompts that were computed and wait for their generation worker.
#[derive(Debug, Default)]
pub struct Exchange {
    offers: Mutex<Offers>,
    changed: Notify,
}

impl Exchange {
    /// An exchange for the workers of one fleet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Offers a computed prompt.
    pub fn offer(&self, state: TransferState) {
        let mut offers = self.offers.lock();
        offers.order.push_back(state.id);
        offers.states.insert(state.id, state);
        while offers.order.len() > WAITING {
            if let Some(oldest) = offers.order.pop_front() {
                offers.states.remove(&oldest);
            }
        }
        drop(offers);
        self.changed.notify_waiters();
    }

    /// Takes the prompt of `id`, waiting up to `patience` for it to be offered; `None` when nobody
    /// did.
    pub async fn take(&self, id: u64, patience: Duration) -> Option<TransferState> {
        let _asking = Taker::new(self, id);
        self.wait_for(patience, || self.remove(id)).await
    }

    /// Waits up to `patience` for a generation worker that asks for `id`; `None` when none does.
    pub async fn taker(&self, id: u64, patience: Duration) -> Option<()> {
        let asked = || self.offers.lock().takers.contains_key(&id).then_some(());
        self.wait_for(patience, asked).await
    }

    async fn wait_for<T>(&self, patience: Duration, found: impl Fn() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = found() {
                return Some(found);
            }
            tokio::time::timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// Number of prompts that wait.
    pub fn waiting(&self) -> usize {
        self.offers.lock().states.len()
    }

    fn remove(&self, id: u64) -> Option<TransferState> {
        let mut offers = self.offers.lock();
        let state = offers.states.remove(&id)?;
        offers.order.retain(|waiting| *waiting != id);
        Some(state)
    }
}

/// One generation worker that asks for an id, for as long as it does.
struct Taker<'a> {
    exchange: &'a Exchange,
    id: u64,
}

impl<'a> Taker<'a> {
    fn new(exchange: &'a Exchange, id: u64) -> Self {
        *exchange.offers.lock().takers.entry(id).or_default() += 1;
        exchange.changed.notify_waiters();
        Self { exchange, id }
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        let mut offers = self.exchange.offers.lock();
        if let Some(asking) = offers.takers.get_mut(&self.id) {
            *asking -= 1;
            if *asking == 0 {
                offers.takers.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(id: u64) -> TransferState {
        TransferState {
            id,
            prompt: u64::MAX,
            worker: "context-0".to_owned(),
            rank: 3,
        }
    }

    #[test]
    fn a_state_survives_the_wire_and_a_foreign_one_does_not() {
        assert_eq!(TransferState::decode(&state(7).encode()), Ok(state(7)));
        for foreign in ["", "b3BhcXVl", "***"] {
            assert_eq!(TransferState::decode(foreign), Err(ForeignState));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_is_taken_once() {
        let exchange = Exchange::new();
        exchange.offer(state(7));
        let patience = Duration::from_secs(1);
        assert_eq!(exchange.take(7, patience).await, Some(state(7)));
        assert_eq!(exchange.take(7, patience).await, None);
        assert_eq!(exchange.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_generation_worker_gets_what_comes_later() {
        let exchange = Exchange::new();
        let (taken, ()) = tokio::join!(exchange.take(7, Duration::from_secs(1)), async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            exchange.offer(state(8));
            exchange.offer(state(7));
        });
        assert_eq!(taken, Some(state(7)));
        assert_eq!(exchange.waiting(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_context_worker_notices_who_asks_and_who_has_gone() {
        let exchange = Exchange::new();
        let second = Duration::from_secs(1);
        let (asked, nothing) =
            tokio::join!(exchange.taker(7, second), exchange.take(7, second / 2));
        assert_eq!((asked, nothing), (Some(()), None));
        assert_eq!(exchange.taker(7, second).await, None);
    }
}
