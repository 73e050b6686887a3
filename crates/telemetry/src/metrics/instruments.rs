//! Counters, gauges and histograms. Each update is an atomic addition.
//!
//! Threads that write to one cache line contend for it. The instruments of every request are therefore [`Striped`]: stored once
//! per thread, and summed when they are read. A histogram also has exemplars: for each bucket, the trace of the last recorded
//! request in it.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn count(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn add(&self, difference: i64) {
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    /// Adds one until the return value is dropped.
    pub fn hold(&self) -> GaugeGuard<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(self)
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Subtracts one from a [`Gauge`] when dropped.
#[derive(Debug)]
pub struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The upper bounds of a histogram's buckets.
#[derive(Debug)]
pub struct Buckets {
    pub(super) bounds: &'static [u64],
    /// Observed units in one exported unit.
    pub(super) per_unit: f64,
}

/// Durations: observed in nanoseconds, exported in seconds.
pub static TIMES: Buckets = Buckets {
    bounds: &[
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        10_000_000_000,
    ],
    per_unit: 1e9,
};

pub static SIZES: Buckets = Buckets { bounds: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], per_unit: 1.0 };

#[derive(Debug)]
pub struct Histogram {
    pub(super) buckets: &'static Buckets,
    /// One for each bound, and one for larger values.
    pub(super) counts: Box<[AtomicU64]>,
    pub(super) sum: AtomicU64,
    pub(super) exemplars: Exemplars,
}

impl Histogram {
    pub fn new(buckets: &'static Buckets) -> Self {
        let counts = (0..=buckets.bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, counts, sum: AtomicU64::new(0), exemplars: Exemplars::default() }
    }

    pub fn observe(&self, value: u64) {
        self.observe_traced(value, None);
    }

    pub fn time(&self, taken: Duration) {
        self.time_traced(taken, None);
    }

    /// Observes the duration of a request, with the ids of its trace if it is recorded.
    pub fn time_traced(&self, taken: Duration, exemplar: Option<Exemplar>) {
        self.observe_traced(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX), exemplar);
    }

    fn observe_traced(&self, value: u64, exemplar: Option<Exemplar>) {
        let bounds = self.buckets.bounds;
        let bucket = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        if let Some(exemplar) = exemplar {
            self.exemplars.record(bucket, value, exemplar);
        }
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Adds the observations of another histogram with the same buckets.
    pub fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.counts.iter().zip(&other.counts) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum.fetch_add(other.sum.load(Ordering::Relaxed), Ordering::Relaxed);
        self.exemplars.absorb(&other.exemplars);
    }
}

/// Ids of the span of a request that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) exemplar: Exemplar,
    pub(super) value: u64,
    /// Time of the observation, since 1970.
    pub(super) time: Duration,
}

/// The last observation with an exemplar, by bucket.
#[derive(Debug, Default)]
pub(super) struct Exemplars(Mutex<BTreeMap<usize, Observation>>);

impl Exemplars {
    /// Records an exemplar. Never waits: it is dropped while another thread has the lock.
    fn record(&self, bucket: usize, value: u64, exemplar: Exemplar) {
        let Ok(mut buckets) = self.0.try_lock() else { return };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        buckets.insert(bucket, Observation { exemplar, value, time });
    }

    /// Takes over the observations of another histogram with the same buckets that are newer.
    fn absorb(&self, other: &Self) {
        let mut buckets = self.buckets();
        for (bucket, theirs) in &*other.buckets() {
            let ours = buckets.entry(*bucket).or_insert(*theirs);
            if ours.time < theirs.time {
                *ours = *theirs;
            }
        }
    }

    pub(super) fn get(&self, bucket: usize) -> Option<Observation> {
        self.buckets().get(&bucket).copied()
    }

    fn buckets(&self) -> MutexGuard<'_, BTreeMap<usize, Observation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stripes at most. Further threads share them.
const STRIPES_MAX: usize = 8;

static STRIPES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get).min(STRIPES_MAX));

thread_local! {
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % *STRIPES
    };
}

/// One value for each thread.
#[derive(Debug)]
pub struct Striped<T>(Box<[CachePadded<T>]>);

/// Aligns a value to two cache lines, because processors prefetch the next line with each line.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded<T>(T);

impl<T> Striped<T> {
    pub fn new(make: impl Fn() -> T) -> Self {
        Self((0..*STRIPES).map(|_| CachePadded(make())).collect())
    }

    pub fn local(&self) -> &T {
        STRIPE.with(|stripe| &self.0[*stripe].0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl Striped<Counter> {
    pub fn count(&self) {
        self.local().count();
    }

    pub fn get(&self) -> u64 {
        self.iter().map(Counter::get).sum()
    }
}
