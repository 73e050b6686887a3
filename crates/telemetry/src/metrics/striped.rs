//! Counters without contention between threads.
//!
//! Threads that write to one cache line contend for it. The counters of every request are therefore stored once per thread, and
//! summed when they are read.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::instruments::Counter;

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

    /// Returns the value of the current thread.
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

    /// Returns the sum over all threads.
    pub fn get(&self) -> u64 {
        self.iter().map(Counter::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added_up() {
        let counter = Striped::<Counter>::default();
        thread::scope(|scope| {
            for _ in 0..3 * STRIPES_MAX {
                scope.spawn(|| (0..1_000).for_each(|_| counter.count()));
            }
        });
        assert_eq!(counter.get(), 3 * STRIPES_MAX as u64 * 1_000);
    }
}
