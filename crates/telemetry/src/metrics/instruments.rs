//! Counters, gauges and histograms: each update is an atomic addition.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

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
    pub fn hold(&self) -> Held<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(self)
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of what a [`Gauge`] counts.
#[derive(Debug)]
pub struct Held<'a>(&'a Gauge);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The upper bounds of a histogram's buckets.
#[derive(Debug)]
pub struct Buckets {
    pub(super) ends: &'static [u64],
    /// Observed units in one exported unit.
    pub(super) per_unit: f64,
}

/// Durations: observed in nanoseconds, exported in seconds.
pub static TIMES: Buckets = Buckets {
    ends: &[
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

/// Sizes of batches.
pub static SIZES: Buckets = Buckets { ends: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], per_unit: 1.0 };

#[derive(Debug)]
pub struct Histogram {
    pub(super) buckets: &'static Buckets,
    /// One for each bound, and one for larger values.
    pub(super) counts: Box<[AtomicU64]>,
    pub(super) sum: AtomicU64,
}

impl Histogram {
    pub fn new(buckets: &'static Buckets) -> Self {
        let counts = (0..=buckets.ends.len()).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, counts, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: u64) {
        let bucket = self.buckets.ends.iter().position(|end| value <= *end).unwrap_or(self.buckets.ends.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub fn time(&self, taken: Duration) {
        self.observe(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX));
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
    }
}
