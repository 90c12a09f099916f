//! Metric families over closed labels, as arrays of handles.
//!
//! A family creates the series that dashboards expect when it is built, at zero, and any other one
//! on first use; afterwards each is found by its index. It must never be given a label that is not
//! an enum.

use std::{marker::PhantomData, sync::OnceLock, time::Duration};

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, Result,
    core::{Collector, MetricVec, MetricVecBuilder},
};

use crate::telemetry::labels::Label;

/// The labels of a family: one [`Label`], or a tuple of them.
pub trait Labels: Copy {
    /// How many combinations there are.
    const COMBINATIONS: usize;
    /// The labels' names.
    fn names() -> Vec<&'static str>;
    /// Every combination.
    fn all() -> Vec<Self>;
    /// A different number below [`Labels::COMBINATIONS`] for each combination.
    fn cell(self) -> usize;
    /// The labels' values, in the order of [`Labels::names`].
    fn values(self) -> Vec<&'static str>;
}

impl<A: Label> Labels for A {
    const COMBINATIONS: usize = A::ALL.len();

    fn names() -> Vec<&'static str> {
        vec![A::NAME]
    }

    fn all() -> Vec<Self> {
        A::ALL.to_vec()
    }

    fn cell(self) -> usize {
        self.index()
    }

    fn values(self) -> Vec<&'static str> {
        vec![self.as_str()]
    }
}

impl<A: Label, B: Label> Labels for (A, B) {
    const COMBINATIONS: usize = A::ALL.len() * B::ALL.len();

    fn names() -> Vec<&'static str> {
        vec![A::NAME, B::NAME]
    }

    fn all() -> Vec<Self> {
        let with = |a: A| B::ALL.iter().map(move |b| (a, *b));
        A::ALL.iter().copied().flat_map(with).collect()
    }

    fn cell(self) -> usize {
        self.0.index() * B::ALL.len() + self.1.index()
    }

    fn values(self) -> Vec<&'static str> {
        vec![self.0.as_str(), self.1.as_str()]
    }
}

impl<A: Label, B: Label, C: Label> Labels for (A, B, C) {
    const COMBINATIONS: usize = A::ALL.len() * B::ALL.len() * C::ALL.len();

    fn names() -> Vec<&'static str> {
        vec![A::NAME, B::NAME, C::NAME]
    }

    fn all() -> Vec<Self> {
        let with = |(a, b): (A, B)| C::ALL.iter().map(move |c| (a, b, *c));
        <(A, B)>::all().into_iter().flat_map(with).collect()
    }

    fn cell(self) -> usize {
        (self.0, self.1).cell() * C::ALL.len() + self.2.index()
    }

    fn values(self) -> Vec<&'static str> {
        vec![self.0.as_str(), self.1.as_str(), self.2.as_str()]
    }
}

/// What hands out the series of a family: the library's vectors.
pub trait Series: Collector + Clone + 'static {
    /// One series.
    type Metric;
    /// The series with these label values, created at zero if it is new.
    fn series(&self, values: &[&str]) -> Self::Metric;
}

impl<B: MetricVecBuilder + 'static> Series for MetricVec<B>
where
    MetricVec<B>: Collector,
{
    type Metric = B::M;

    fn series(&self, values: &[&str]) -> B::M {
        self.with_label_values(values)
    }
}

/// One series per combination of `L`.
pub struct Family<L, V: Series> {
    vec: V,
    cells: Box<[OnceLock<V::Metric>]>,
    labels: PhantomData<fn(L)>,
}

/// A counter per combination of labels.
pub type CounterBy<L> = Family<L, IntCounterVec>;
/// A gauge per combination of labels.
pub type GaugeBy<L> = Family<L, IntGaugeVec>;
/// A histogram of seconds per combination of labels.
pub type HistogramBy<L> = Family<L, HistogramVec>;

impl<L: Labels, V: Series> Family<L, V> {
    /// Registers `vec` and creates the series of every combination that is `expected`.
    fn new(registry: &Registry, vec: V, expected: impl Fn(L) -> bool) -> Result<Self> {
        registry.register(Box::new(vec.clone()))?;
        let family = Self {
            vec,
            cells: (0..L::COMBINATIONS).map(|_| OnceLock::new()).collect(),
            labels: PhantomData,
        };
        for labels in L::all().into_iter().filter(|labels| expected(*labels)) {
            family.get(labels);
        }
        Ok(family)
    }

    /// The handle of one combination.
    pub fn get(&self, labels: L) -> &V::Metric {
        self.cells[labels.cell()].get_or_init(|| self.vec.series(&labels.values()))
    }

    /// The handle of one combination that was expected or has been seen.
    pub fn known(&self, labels: L) -> Option<&V::Metric> {
        self.cells.get(labels.cell())?.get()
    }
}

impl<L: Labels> CounterBy<L> {
    pub(super) fn counters(
        registry: &Registry,
        name: &str,
        help: &str,
        expected: impl Fn(L) -> bool,
    ) -> Result<Self> {
        let vec = IntCounterVec::new(Opts::new(name, help), &L::names())?;
        Self::new(registry, vec, expected)
    }

    /// Counts one.
    pub fn inc(&self, labels: L) {
        self.get(labels).inc();
    }
}

impl<L: Labels> GaugeBy<L> {
    pub(super) fn gauges(
        registry: &Registry,
        name: &str,
        help: &str,
        expected: impl Fn(L) -> bool,
    ) -> Result<Self> {
        let vec = IntGaugeVec::new(Opts::new(name, help), &L::names())?;
        Self::new(registry, vec, expected)
    }
}

impl<L: Labels> HistogramBy<L> {
    pub(super) fn histograms(
        registry: &Registry,
        name: &str,
        help: &str,
        buckets: &[f64],
        expected: impl Fn(L) -> bool,
    ) -> Result<Self> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let vec = HistogramVec::new(options, &L::names())?;
        Self::new(registry, vec, expected)
    }

    /// Records one duration.
    pub fn observe(&self, labels: L, duration: Duration) {
        self.get(labels).observe(duration.as_secs_f64());
    }
}
