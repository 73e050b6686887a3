//! Limits the number of concurrent reads of the store. Some more wait for a short time, the rest are rejected at once. A list
//! counts until its first chunk is read. Writes are limited by the store's queue instead ([`super::capacity`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plantstore_model::user::UserId;
use plantstore_store::{Reserve, ReservedPlace};
use plantstore_telemetry::metrics::{Counter, Exposition};
use plantstore_telemetry::spans;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::api::error::ApiError;
use crate::api::limits::ApiLimits;

pub(in crate::api) struct ReadLimiter {
    /// The slots that are not in the reserve.
    slots: Semaphore,
    slots_max: usize,
    reserve: Arc<Reserve>,
    waiting: AtomicUsize,
    waiting_max: usize,
    timeout: Duration,
    rejected: Counter,
}

/// A slot of a [`ReadLimiter`], released when dropped.
pub(in crate::api) enum ReadSlot<'a> {
    Common { _permit: SemaphorePermit<'a> },
    Reserved { _place: ReservedPlace },
}

impl ReadLimiter {
    pub(in crate::api) fn new(limits: &ApiLimits) -> Self {
        let reserve = Reserve::part_of(limits.max_concurrent_reads);
        Self {
            slots: Semaphore::new(limits.max_concurrent_reads - reserve.places()),
            slots_max: limits.max_concurrent_reads,
            reserve,
            waiting: AtomicUsize::new(0),
            waiting_max: limits.max_waiting,
            timeout: limits.waiting_timeout,
            rejected: Counter::default(),
        }
    }

    /// Takes a slot. To be called when the whole request has arrived, so that no slow client holds one.
    pub(in crate::api) async fn acquire(&self, user: UserId) -> Result<ReadSlot<'_>, ApiError> {
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(ReadSlot::Common { _permit: permit });
        }
        if let Some(place) = self.reserve.take(user) {
            return Ok(ReadSlot::Reserved { _place: place });
        }
        let begun = spans::begin();
        let slot = self.wait().await;
        begun.end("wait for a read slot");
        slot.ok_or(ApiError::Overloaded).inspect_err(|_| self.rejected.count())
    }

    /// Waits for a slot, unless too many wait already.
    async fn wait(&self) -> Option<ReadSlot<'_>> {
        let _place = QueuePlace::take(&self.waiting, self.waiting_max)?;
        let permit = tokio::time::timeout(self.timeout, self.slots.acquire()).await.ok()?.ok()?;
        Some(ReadSlot::Common { _permit: permit })
    }

    /// Returns the number of reads that got no slot.
    pub(in crate::api) fn rejected(&self) -> u64 {
        self.rejected.get()
    }

    pub(in crate::api) fn write_metrics(&self, exposition: &mut Exposition) {
        let common_max = self.slots_max - self.reserve.places();
        let in_use = common_max - self.slots.available_permits() + self.reserve.taken();
        let waiting = self.waiting.load(Ordering::Relaxed).min(self.waiting_max);
        exposition
            .gauge(
                "plantstore_reads_in_flight",
                "Requests that are reading the store; a list counts until its first chunk is read.",
            )
            .sample(&[], in_use);
        exposition
            .gauge("plantstore_reads_in_flight_limit", "Maximum of plantstore_reads_in_flight (--max-in-flight).")
            .sample(&[], self.slots_max);
        exposition.gauge("plantstore_reads_waiting", "Requests that wait to read the store.").sample(&[], waiting);
    }
}

/// A place in the queue, released when dropped, also by a client that disconnects while it waits.
struct QueuePlace<'a>(&'a AtomicUsize);

impl<'a> QueuePlace<'a> {
    fn take(taken: &'a AtomicUsize, max: usize) -> Option<Self> {
        let place = Self(taken);
        (taken.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
