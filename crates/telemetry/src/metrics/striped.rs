//! Counting on many threads without making them wait for each other.
//!
//! Threads that write to one cache line contend for it. What every request counts is therefore stored once per thread, and
//! summed when it is read.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::instruments::Counter;

/// Stripes at the most: further threads share them.
const STRIPES_MAX: usize = 8;

static STRIPES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get).min(STRIPES_MAX));

thread_local! {
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % *STRIPES
    };
}

/// One of something for each thread.
#[derive(Debug)]
pub struct Striped<T>(Box<[Apart<T>]>);

/// Processors fetch memory by the line, and the next line with it.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

impl<T> Striped<T> {
    /// As many as it takes, made like this.
    pub fn new(make: impl Fn() -> T) -> Self {
        Self((0..*STRIPES).map(|_| Apart(make())).collect())
    }

    /// The one of this thread.
    pub fn mine(&self) -> &T {
        STRIPE.with(|stripe| &self.0[*stripe].0)
    }

    /// All of them.
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
    /// One more.
    pub fn count(&self) {
        self.mine().count();
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.iter().map(Counter::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_threads_count_is_added_up() {
        let counter = Striped::<Counter>::default();
        thread::scope(|scope| {
            for _ in 0..3 * STRIPES_MAX {
                scope.spawn(|| (0..1_000).for_each(|_| counter.count()));
            }
        });
        assert_eq!(counter.get(), 3 * STRIPES_MAX as u64 * 1_000);
    }
}
