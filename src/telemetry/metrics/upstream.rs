//! The edge's numbers under the names that upstream's edge has for them (specification section 3.6).
//!
//! Nothing is counted here: each name is an alias of what Kindred counts anyway, so the two can never
//! differ. The names have no labels and no prefix of Kindred's; dashboards that were made for
//! `trtllm-serve disaggregated` find them at `/prometheus/metrics`. docs/surface.md says what each is.

use prometheus::{
    TextEncoder,
    core::Collector,
    proto::{Counter, Metric, MetricFamily, MetricType},
};

use super::Metrics;
use crate::telemetry::labels::{
    AnswerMode, FleetLabel, Label, LegResult, Outcome, RetryReason, Route,
};

/// The roles that upstream counts, by their prefix.
const ROLES: [(&str, FleetLabel); 2] = [
    ("ctx_", FleetLabel::Context),
    ("gen_", FleetLabel::Generation),
];

/// What upstream makes of a request that ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Response,
    Validation,
    HttpException,
    InternalError,
    /// The client left: upstream counts that nowhere.
    Uncounted,
}

fn ending(fleet: FleetLabel, outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Ok => Ending::Response,
        Outcome::ClientError | Outcome::TooLarge if fleet == FleetLabel::None => Ending::Validation,
        Outcome::ClientError
        | Outcome::TooLarge
        | Outcome::Unauthenticated
        | Outcome::Overloaded
        | Outcome::UpstreamRefused => Ending::HttpException,
        Outcome::ClientCancel => Ending::Uncounted,
        _ => Ending::InternalError,
    }
}

impl Metrics {
    /// The text exposition of upstream's names.
    pub fn render_upstream(&self) -> String {
        let mut families = self.server_families();
        for (prefix, fleet) in ROLES {
            families.extend(self.role_families(prefix, fleet));
        }
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_else(|error| format!("# the metrics could not be written: {error}\n"))
    }

    fn server_families(&self) -> Vec<MetricFamily> {
        let mode = |mode| self.legs.understood.get(mode).get();
        let (stream, whole) = (mode(AnswerMode::Stream), mode(AnswerMode::Whole));
        let ended = |kind| self.requests_that_ended(kind);
        let mut families = vec![
            counter("total_requests", "Requests.", stream + whole),
            counter("stream_requests", "Requests for a stream.", stream),
            counter("nonstream_requests", "Requests for a whole answer.", whole),
            counter(
                "validation_exceptions",
                "Requests that were refused for what was in them.",
                ended(Ending::Validation),
            ),
            counter(
                "http_exceptions",
                "Requests that were answered with an error of their own.",
                ended(Ending::HttpException),
            ),
            counter(
                "internal_errors",
                "Requests that failed.",
                ended(Ending::InternalError),
            ),
            counter(
                "total_responses",
                "Requests that were answered.",
                ended(Ending::Response),
            ),
        ];
        families.extend(histogram(
            "queue_latency_seconds",
            "Time until a request's first leg is chosen.",
            &self.legs.wait,
        ));
        families
    }

    fn requests_that_ended(&self, kind: Ending) -> u64 {
        let mut sum = 0;
        for route in [Route::ChatCompletions, Route::Completions] {
            for fleet in FleetLabel::ALL {
                let outcomes = Outcome::ALL.iter();
                let outcomes = outcomes.filter(|outcome| ending(*fleet, **outcome) == kind);
                let counts = outcomes.filter_map(|outcome| {
                    let counter = self.requests.known((route, *fleet, *outcome))?;
                    Some(counter.get())
                });
                sum += counts.sum::<u64>();
            }
        }
        sum
    }

    fn role_families(&self, prefix: &str, fleet: FleetLabel) -> Vec<MetricFamily> {
        let ended = |result| self.legs.ended.get((fleet, result)).get();
        let completed = LegResult::ALL.iter().map(|result| ended(*result)).sum();
        let retried = |reason: &RetryReason| self.leg_retries.get((fleet, *reason)).get();
        let retries = RetryReason::ALL.iter().map(retried);
        let named = |name: &str| format!("{prefix}{name}");
        let count = |name, help, value| counter(&named(name), help, value);
        let mut families = vec![
            count("total_requests", "Legs.", self.legs.begun.get(fleet).get()),
            count(
                "error_requests",
                "Legs that failed, after all their attempts.",
                ended(LegResult::Failed),
            ),
            count(
                "retry_requests",
                "Attempts of legs after the first.",
                retries.sum(),
            ),
            count(
                "completed_requests",
                "Legs that ended, in whatever way.",
                completed,
            ),
        ];
        let durations = [
            (
                "first_token_latency_seconds",
                "Time of an attempt until the head of its answer.",
                self.leg_first_byte.get(fleet),
            ),
            (
                "complete_latency_seconds",
                "Time of an attempt until the end of its answer.",
                self.leg_duration.get(fleet),
            ),
            (
                "per_token_latency_seconds",
                "Time between two parts of a stream.",
                self.legs.stream_interval.get(fleet),
            ),
        ];
        for (name, help, own) in durations {
            families.extend(histogram(&named(name), help, own));
        }
        families
    }
}

fn family(name: &str, help: &str, kind: MetricType, metric: Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}

/// Counters of upstream's library are exported with `_total` behind their name.
fn counter(name: &str, help: &str, value: u64) -> MetricFamily {
    let mut counter = Counter::default();
    #[expect(
        clippy::cast_precision_loss,
        reason = "the exposition's numbers are floats"
    )]
    counter.set_value(value as f64);
    let mut metric = Metric::default();
    metric.set_counter(counter);
    family(&format!("{name}_total"), help, MetricType::COUNTER, metric)
}

/// One of our series under another name, without its labels.
fn histogram(name: &str, help: &str, own: &impl Collector) -> Option<MetricFamily> {
    let mut collected = own.collect();
    let mut metric = collected.first_mut()?.mut_metric().pop()?;
    metric.set_label(Vec::new());
    Some(family(name, help, MetricType::HISTOGRAM, metric))
}
