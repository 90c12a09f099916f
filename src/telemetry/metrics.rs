//! Every metric of the program, by name, with handles that are resolved once.
//!
//! Families over enums are arrays: counting is one atomic addition, nothing is hashed. Families over
//! names from the configuration (instances, workers, ranks, header names) hand out a handle that its
//! owner keeps, and take the series away when the owner is gone. The registry is Kindred's own.

mod certificates;
mod family;
mod legs;
mod upstream;

use std::{
    collections::HashSet,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use super::labels::{
    AuthenticationMethod, AuthenticationOutcome, Check, ClaimOutcome, ClientLimit, ConditionalWay,
    ConnectionRefusal, CredentialSource, Decision, EjectionCause, FallbackReason, FleetLabel,
    HeadRefusal, KeyIndex, Label, Outcome, PlacementReason, ProbeResult, PrunedField, PrunedHeader,
    ReloadResult, RetryReason, Route, VerificationOutcome,
};
pub use certificates::Certificates;
pub use family::{CounterBy, Family, GaugeBy, HistogramBy, Labels, Series};
pub use legs::{CountedLeg, LegMetrics};

/// Upper bounds of the latency buckets, seconds: from a cached prefix to a long generation.
const SECONDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];

/// How many header names from configurations get a series of their own in one process; further ones
/// count as `other`.
const MAX_CONFIGURED_HEADERS: usize = 64;

/// The metrics of the process.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> =
        LazyLock::new(|| Metrics::new().expect("metric names are constant, valid and unique"));
    &METRICS
}

/// Handles of everything that is measured. Durations are in seconds in the exposition.
pub struct Metrics {
    registry: Registry,
    /// `kindred_requests_total`: requests that ended.
    pub requests: CounterBy<(Route, FleetLabel, Outcome)>,
    /// `kindred_request_duration_seconds`: from the request head to the last byte of the answer.
    pub request_duration: HistogramBy<Route>,
    /// `kindred_leg_duration_seconds`: one attempt of a leg, to the last byte of its answer.
    pub leg_duration: HistogramBy<FleetLabel>,
    /// `kindred_leg_first_byte_seconds`: one attempt of a leg, to the head of its answer.
    pub leg_first_byte: HistogramBy<FleetLabel>,
    /// `kindred_leg_retries_total`: attempts after the first, by what the one before met.
    pub leg_retries: CounterBy<(FleetLabel, RetryReason)>,
    /// Legs as wholes, and the requests around them.
    pub legs: LegMetrics,
    /// `kindred_affinity_decisions_total`: how instances were chosen.
    pub affinity_decisions: CounterBy<(FleetLabel, Decision)>,
    /// `kindred_affinity_bindings`: bindings in a fleet's table.
    pub affinity_bindings: GaugeBy<FleetLabel>,
    /// `kindred_affinity_evictions_total`: bindings that the table's bound pushed out.
    pub affinity_evictions: CounterBy<FleetLabel>,
    /// `kindred_ejections_total`: instances taken out for what their requests met.
    pub ejections: CounterBy<(FleetLabel, EjectionCause)>,
    /// `kindred_probes_total`: probes of instances that ended.
    pub probes: CounterBy<(FleetLabel, ProbeResult)>,
    /// `kindred_router_fallbacks_total`: requests that the router `kv_cache_aware` left to its
    /// conversation router.
    pub router_fallbacks: CounterBy<(FleetLabel, FallbackReason)>,
    /// `kindred_kv_blocks`: blocks of KV cache that a fleet's router knows.
    pub kv_blocks: GaugeBy<FleetLabel>,
    /// `kindred_kv_blocks_dropped_total`: known blocks that the index's bound pushed out.
    pub kv_blocks_dropped: CounterBy<FleetLabel>,
    /// `kindred_conditional_requests_total`: requests that conditional disaggregation decided on.
    pub conditional_requests: CounterBy<ConditionalWay>,
    /// `kindred_pruned_fields_total`: internal body fields removed from clients' requests.
    pub pruned_fields: CounterBy<PrunedField>,
    /// `kindred_parent_claims_total`: what became of claims to a parent.
    pub parent_claims: CounterBy<ClaimOutcome>,
    /// `kindred_authentications_total`: how clients were recognised.
    pub authentications: CounterBy<(AuthenticationMethod, AuthenticationOutcome)>,
    /// `kindred_connections`: connections of clients that are open.
    pub connections: IntGauge,
    /// `kindred_connections_refused_total`: connections that were not taken.
    pub connections_refused: CounterBy<ConnectionRefusal>,
    /// `kindred_heads_refused_total`: what never became a request.
    pub heads_refused: CounterBy<HeadRefusal>,
    /// `kindred_limit_refusals_total`: requests refused for a limit of their client's.
    pub limit_refusals: CounterBy<ClientLimit>,
    /// `kindred_credential_reloads_total`: key files and key sets that were read anew.
    pub credential_reloads: CounterBy<(CredentialSource, ReloadResult)>,
    /// `kindred_verifications_total`: what the worker filters found.
    pub verifications: CounterBy<(Check, VerificationOutcome)>,
    /// `kindred_verifications_by_key_total`: which key of the list a good signature was by.
    pub verifications_by_key: CounterBy<(Check, KeyIndex)>,
    /// `kindred_config_reloads_total`.
    pub config_reloads: CounterBy<ReloadResult>,
    /// `kindred_config_last_success_timestamp_seconds`; see [`Metrics::config_applied`].
    pub config_last_success: IntGauge,
    /// `kindred_certificate_expiry_timestamp_seconds`.
    pub certificates: Certificates,
    /// `kindred_body_budget_bytes`: bytes of request bodies held now.
    pub body_budget: IntGauge,
    /// `kindred_access_log_dropped_lines`.
    pub access_log_dropped: IntGauge,
    pruned_headers: IntCounterVec,
    configured_headers: Mutex<HashSet<String>>,
    in_flight: IntGaugeVec,
    usable: IntGaugeVec,
    rank_in_flight: IntGaugeVec,
    rank_tokens: IntGaugeVec,
    adp_placements: IntCounterVec,
}

/// The handles of one ADP rank behind one worker filter.
pub struct RankMetrics {
    /// `kindred_rank_in_flight`: active requests on the rank.
    pub in_flight: IntGauge,
    /// `kindred_rank_tokens`: estimated tokens of the active requests on the rank.
    pub tokens: IntGauge,
    placements: Box<[IntCounter]>,
}

impl RankMetrics {
    /// Counts one request placed on the rank (`kindred_adp_placements_total`).
    pub fn placed(&self, reason: PlacementReason) {
        if let Some(counter) = self.placements.get(reason.index()) {
            counter.inc();
        }
    }
}

fn always<L>(_: L) -> bool {
    true
}

/// Only inference requests have legs; no fleet decides about the others.
fn has_legs(route: Route) -> bool {
    matches!(route, Route::ChatCompletions | Route::Completions)
}

/// Legs belong to a fleet: their series for `none` would be noise.
fn a_fleet(fleet: FleetLabel) -> bool {
    fleet != FleetLabel::None
}

impl Metrics {
    /// A registry of its own with every family in it.
    ///
    /// # Errors
    /// When two metrics share a name or a name is malformed, which no input can cause.
    pub fn new() -> prometheus::Result<Self> {
        let r = &Registry::new();
        let metrics = Self {
            requests: CounterBy::counters(
                r,
                "kindred_requests_total",
                "Requests that ended, by what was asked for, the fleet that decided and the outcome.",
                |(route, fleet, _)| fleet == FleetLabel::None || has_legs(route),
            )?,
            request_duration: HistogramBy::histograms(
                r,
                "kindred_request_duration_seconds",
                "Time from the request head to the last byte of the answer.",
                &SECONDS,
                always,
            )?,
            leg_duration: HistogramBy::histograms(
                r,
                "kindred_leg_duration_seconds",
                "Time of one attempt of a leg, to the last byte of its answer.",
                &SECONDS,
                a_fleet,
            )?,
            leg_first_byte: HistogramBy::histograms(
                r,
                "kindred_leg_first_byte_seconds",
                "Time of one attempt of a leg, to the head of its answer.",
                &SECONDS,
                a_fleet,
            )?,
            leg_retries: CounterBy::counters(
                r,
                "kindred_leg_retries_total",
                "Attempts of a leg after its first, by what the one before met.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            legs: LegMetrics::new(r)?,
            affinity_decisions: CounterBy::counters(
                r,
                "kindred_affinity_decisions_total",
                "How the instance of a leg was chosen.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            affinity_bindings: GaugeBy::gauges(
                r,
                "kindred_affinity_bindings",
                "Bindings of affinity keys to instances.",
                a_fleet,
            )?,
            affinity_evictions: CounterBy::counters(
                r,
                "kindred_affinity_evictions_total",
                "Bindings dropped because the table was full.",
                a_fleet,
            )?,
            ejections: CounterBy::counters(
                r,
                "kindred_ejections_total",
                "Instances taken out for a while, by what their requests met.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            probes: CounterBy::counters(
                r,
                "kindred_probes_total",
                "Probes of instances' health, by how they ended.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            router_fallbacks: CounterBy::counters(
                r,
                "kindred_router_fallbacks_total",
                "Requests without token ids that the router kv_cache_aware placed by conversation.",
                |(fleet, _)| a_fleet(fleet),
            )?,
            kv_blocks: GaugeBy::gauges(
                r,
                "kindred_kv_blocks",
                "Blocks of KV cache that the router kv_cache_aware knows.",
                a_fleet,
            )?,
            kv_blocks_dropped: CounterBy::counters(
                r,
                "kindred_kv_blocks_dropped_total",
                "Known blocks of KV cache dropped because the index was full.",
                a_fleet,
            )?,
            conditional_requests: CounterBy::counters(
                r,
                "kindred_conditional_requests_total",
                "Requests that conditional disaggregation decided on, by whether they had a context leg.",
                always,
            )?,
            pruned_fields: CounterBy::counters(
                r,
                "kindred_pruned_fields_total",
                "Internal body fields removed from clients' requests.",
                always,
            )?,
            parent_claims: CounterBy::counters(
                r,
                "kindred_parent_claims_total",
                "What became of requests' claims to a parent session.",
                always,
            )?,
            authentications: CounterBy::counters(
                r,
                "kindred_authentications_total",
                "How clients were recognised at the gateway, and by what.",
                |(method, outcome)| match outcome {
                    AuthenticationOutcome::Ok => !matches!(
                        method,
                        AuthenticationMethod::None | AuthenticationMethod::Anonymous
                    ),
                    AuthenticationOutcome::Anonymous => method == AuthenticationMethod::Anonymous,
                    AuthenticationOutcome::Missing
                    | AuthenticationOutcome::Invalid
                    | AuthenticationOutcome::Blocked => method == AuthenticationMethod::None,
                    _ => false,
                },
            )?,
            credential_reloads: CounterBy::counters(
                r,
                "kindred_credential_reloads_total",
                "Files of keys and sets of token keys that were read anew.",
                always,
            )?,
            connections: gauge(
                r,
                "kindred_connections",
                "Open connections of clients and, at a worker filter, of edges.",
            )?,
            connections_refused: CounterBy::counters(
                r,
                "kindred_connections_refused_total",
                "Connections that were not taken because there were too many.",
                always,
            )?,
            heads_refused: CounterBy::counters(
                r,
                "kindred_heads_refused_total",
                "Connections ended because what came was no head of a request, or came too slowly.",
                always,
            )?,
            limit_refusals: CounterBy::counters(
                r,
                "kindred_limit_refusals_total",
                "Requests refused because of a limit of their client's.",
                always,
            )?,
            verifications: CounterBy::counters(
                r,
                "kindred_verifications_total",
                "What worker filters found when they verified internal headers.",
                always,
            )?,
            verifications_by_key: CounterBy::counters(
                r,
                "kindred_verifications_by_key_total",
                "Good signatures, by the place of their key in internal_request_auth_keys.",
                |(_, key)| key == KeyIndex::Key0,
            )?,
            config_reloads: CounterBy::counters(
                r,
                "kindred_config_reloads_total",
                "Reloads of the configuration file.",
                always,
            )?,
            config_last_success: gauge(
                r,
                "kindred_config_last_success_timestamp_seconds",
                "Unix time at which the configuration in use was applied.",
            )?,
            body_budget: gauge(
                r,
                "kindred_body_budget_bytes",
                "Bytes of request bodies held now.",
            )?,
            access_log_dropped: gauge(
                r,
                "kindred_access_log_dropped_lines",
                "Lines of the access log dropped since it was opened: its disk cannot keep up.",
            )?,
            pruned_headers: counters(
                r,
                "kindred_pruned_headers_total",
                "Internal headers removed from clients' requests, copies counted each.",
                &[PrunedHeader::NAME],
            )?,
            certificates: Certificates::new(r)?,
            configured_headers: Mutex::default(),
            in_flight: gauges(
                r,
                "kindred_in_flight",
                "Legs in flight on an instance.",
                &[FleetLabel::NAME, "instance"],
            )?,
            usable: gauges(
                r,
                "kindred_instance_usable",
                "1 where an instance takes new requests, 0 where it is down, ejected or draining.",
                &[FleetLabel::NAME, "instance"],
            )?,
            rank_in_flight: gauges(
                r,
                "kindred_rank_in_flight",
                "Active requests on an ADP rank.",
                &["worker", "rank"],
            )?,
            rank_tokens: gauges(
                r,
                "kindred_rank_tokens",
                "Estimated tokens of the active requests on an ADP rank.",
                &["worker", "rank"],
            )?,
            adp_placements: counters(
                r,
                "kindred_adp_placements_total",
                "Requests placed on an ADP rank, by reason.",
                &["worker", "rank", PlacementReason::NAME],
            )?,
            registry: r.clone(),
        };
        for header in PrunedHeader::ALL {
            metrics.pruned_headers.with_label_values(&[header.as_str()]);
        }
        let build = "The running version.";
        gauges(r, "kindred_build_info", build, &["version"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        Ok(metrics)
    }

    /// `kindred_pruned_headers_total` of one internal name.
    pub fn pruned_header(&self, header: PrunedHeader) -> IntCounter {
        self.pruned_headers.with_label_values(&[header.as_str()])
    }

    /// `kindred_pruned_headers_total` of a name from the configuration, lower-case. Over the life of
    /// the process a bounded number of names gets a series; later ones count as `other`.
    pub fn pruned_configured_header(&self, name: &str) -> IntCounter {
        let mut known = self.configured_headers.lock();
        let named = known.contains(name)
            || known.len() < MAX_CONFIGURED_HEADERS && known.insert(name.to_owned());
        let label = if named { name } else { "other" };
        self.pruned_headers.with_label_values(&[label])
    }

    /// `kindred_in_flight` of one instance, for the instance to keep.
    pub fn in_flight(&self, fleet: FleetLabel, alias: &str) -> IntGauge {
        self.in_flight.with_label_values(&[fleet.as_str(), alias])
    }

    /// `kindred_instance_usable` of one instance.
    pub fn usable(&self, fleet: FleetLabel, alias: &str) -> IntGauge {
        self.usable.with_label_values(&[fleet.as_str(), alias])
    }

    /// Takes away the series of an instance that is gone. A handle that is still held counts on
    /// without being exported.
    pub fn forget_instance(&self, fleet: FleetLabel, alias: &str) {
        // Errors mean that there is no such series, which is what is asked for.
        let _ = self.in_flight.remove_label_values(&[fleet.as_str(), alias]);
        let _ = self.usable.remove_label_values(&[fleet.as_str(), alias]);
    }

    /// The handles of one rank of one worker, for its filter to keep.
    pub fn rank(&self, worker: &str, rank: u32) -> RankMetrics {
        let rank = rank.to_string();
        let placements = |reason: &PlacementReason| {
            self.adp_placements
                .with_label_values(&[worker, rank.as_str(), reason.as_str()])
        };
        RankMetrics {
            in_flight: self.rank_in_flight.with_label_values(&[worker, &rank]),
            tokens: self.rank_tokens.with_label_values(&[worker, &rank]),
            placements: PlacementReason::ALL.iter().map(placements).collect(),
        }
    }

    /// Takes away the series of a rank that is gone.
    pub fn forget_rank(&self, worker: &str, rank: u32) {
        let rank = rank.to_string();
        // Errors mean that there is no such series, which is what is asked for.
        let _ = self.rank_in_flight.remove_label_values(&[worker, &rank]);
        let _ = self.rank_tokens.remove_label_values(&[worker, &rank]);
        for reason in PlacementReason::ALL {
            let labels = [worker, rank.as_str(), reason.as_str()];
            let _ = self.adp_placements.remove_label_values(&labels);
        }
    }

    /// Notes that a configuration is in use from now on; at start-up and after each good reload.
    pub fn config_applied(&self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since_epoch.map_or(0, |elapsed| elapsed.as_secs());
        self.config_last_success
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// The text exposition of everything.
    pub fn render(&self) -> String {
        let families = self.registry.gather();
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_else(|error| format!("# the metrics could not be written: {error}\n"))
    }
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    let gauge = IntGauge::new(name, help)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntGaugeVec> {
    let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

#[cfg(test)]
mod tests;
