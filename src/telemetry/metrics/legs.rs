//! What is counted of legs and of the requests around them, beyond their durations.
//!
//! A leg is counted once when it begins and once when it ends, however many attempts it takes; a
//! guard sees to it. Nobody else may count either.

use prometheus::{Histogram, HistogramOpts, Registry, Result};

use super::{CounterBy, GaugeBy, HistogramBy, SECONDS, a_fleet, always, metrics};
use crate::telemetry::labels::{AnswerMode, FleetLabel, LegResult, QueueRefusal};

/// Upper bounds of the buckets of the time between two parts of a stream, seconds.
const INTERVALS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Handles of what is measured of legs.
pub struct LegMetrics {
    /// `kindred_requests_understood_total`: inference requests that passed their checks.
    pub understood: CounterBy<AnswerMode>,
    /// `kindred_request_wait_seconds`: from a request's head until its first leg is chosen.
    pub wait: Histogram,
    /// `kindred_legs_begun_total`.
    pub begun: CounterBy<FleetLabel>,
    /// `kindred_legs_ended_total`.
    pub ended: CounterBy<(FleetLabel, LegResult)>,
    /// `kindred_waiting`: requests that wait for a place in a fleet.
    pub waiting: GaugeBy<FleetLabel>,
    /// `kindred_queue_wait_seconds`: how long those that got a place waited for it.
    pub queue_wait: HistogramBy<FleetLabel>,
    /// `kindred_queue_refusals_total`: requests that got no place.
    pub queue_refusals: CounterBy<(FleetLabel, QueueRefusal)>,
    /// `kindred_stream_interval_seconds`: between two parts of a worker's stream.
    pub stream_interval: HistogramBy<FleetLabel>,
}

impl LegMetrics {
    pub(super) fn new(r: &Registry) -> Result<Self> {
        let wait = HistogramOpts::new(
            "kindred_request_wait_seconds",
            "Time from the request head until the request's first leg is chosen.",
        );
        let wait = Histogram::with_opts(wait.buckets(SECONDS.to_vec()))?;
        r.register(Box::new(wait.clone()))?;
        Ok(Self {
            understood: CounterBy::counters(
                r,
                "kindred_requests_understood_total",
                "Inference requests that passed their checks, by how the answer is wanted.",
                always,
            )?,
            wait,
            begun: CounterBy::counters(
                r,
                "kindred_legs_begun_total",
                "Legs that began, however many attempts they take.",
                a_fleet,
            )?,
            ended: CounterBy::counters(
                r,
                "kindred_legs_ended_total",
                "Legs that ended, after all their attempts.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            waiting: GaugeBy::gauges(
                r,
                "kindred_waiting",
                "Requests that wait for a place in a fleet.",
                a_fleet,
            )?,
            queue_wait: HistogramBy::histograms(
                r,
                "kindred_queue_wait_seconds",
                "Time that requests waited for a place in a fleet, of those that had to.",
                &SECONDS,
                a_fleet,
            )?,
            queue_refusals: CounterBy::counters(
                r,
                "kindred_queue_refusals_total",
                "Requests that got no place in a fleet, or none of their client's.",
                |(fleet, reason)| a_fleet(fleet) != (reason == QueueRefusal::Client),
            )?,
            stream_interval: HistogramBy::histograms(
                r,
                "kindred_stream_interval_seconds",
                "Time between two parts of a worker's stream.",
                &INTERVALS,
                |fleet| matches!(fleet, FleetLabel::Generation | FleetLabel::Aggregated),
            )?,
        })
    }
}

/// A leg under way.
#[derive(Debug)]
#[must_use = "the leg ends when the guard is dropped"]
pub struct CountedLeg {
    fleet: FleetLabel,
    result: LegResult,
}

impl CountedLeg {
    /// Counts a leg that begins.
    pub fn begin(fleet: FleetLabel) -> Self {
        metrics().legs.begun.inc(fleet);
        Self {
            fleet,
            result: LegResult::Abandoned,
        }
    }

    /// How it will have ended; without this it was abandoned.
    pub fn ends(&mut self, result: LegResult) {
        self.result = result;
    }
}

impl Drop for CountedLeg {
    fn drop(&mut self) {
        metrics().legs.ended.inc((self.fleet, self.result));
    }
}
