//! The state shared by all operations.

use std::sync::Arc;

use plantstore_store::{Store, StoreError};
use plantstore_telemetry::metrics::{Counter, Exposition, Gauge};

use super::error::ApiError;
use super::limits::ApiLimits;
use super::listing::ListCache;
use super::overload::account_changes::{AccountChanges, ChangeKind};
use super::overload::delay::RejectionDelay;
use super::overload::read_limiter::ReadLimiter;
use super::overload::saturation::Saturation;
use crate::observe::{Identity, Readiness};

pub(crate) struct Api {
    pub(super) store: Arc<Store>,
    pub(super) limits: ApiLimits,
    pub(super) lists: ListCache,
    pub(super) read_limiter: ReadLimiter,
    pub(super) saturation: Saturation,
    pub(super) reads_shed: Counter,
    writes_shed: Counter,
    pub(crate) account_changes: AccountChanges,
    pub(crate) rejection_delay: RejectionDelay,
    /// Lists that are being streamed.
    pub(super) lists_streaming: Gauge,
    pub(super) readiness: Readiness,
}

impl Api {
    /// Creates the state. Must be called in the runtime that handles the requests.
    pub(crate) fn new(store: Arc<Store>, limits: ApiLimits) -> Self {
        Self {
            lists: ListCache::new(limits.list_cache_bytes),
            read_limiter: ReadLimiter::new(&limits),
            saturation: Saturation::of_current_runtime(),
            reads_shed: Counter::default(),
            writes_shed: Counter::default(),
            account_changes: AccountChanges::new(limits.waiting_timeout),
            rejection_delay: RejectionDelay::new(),
            lists_streaming: Gauge::default(),
            readiness: Readiness::default(),
            store,
            limits,
        }
    }

    /// Maps an error of a write, and counts those that mean that the store has no capacity.
    pub(super) fn write_error(&self, error: StoreError) -> ApiError {
        if let StoreError::Overloaded = error {
            self.writes_shed.count();
        }
        error.into()
    }

    /// Executes a change of tokens or shares to its end, also if the client disconnects, so that every change is recorded.
    pub(super) async fn run_account_change<T: Send + 'static>(
        &'static self,
        caller: Arc<Identity>,
        kind: ChangeKind,
        change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.account_changes.begin(&caller, kind).await;
        let place = place.ok_or_else(|| self.write_error(StoreError::Overloaded))?;
        let change = tokio::spawn(async move {
            let _place = place;
            change.await
        });
        change.await.map_err(|error| ApiError::Internal(error.to_string()))?
    }

    /// Maps an error of a change of tokens or shares.
    pub(super) fn change_error(&self, error: StoreError) -> ApiError {
        match error {
            StoreError::OutcomeUnknown(_) => ApiError::ChangeUnknown(error.to_string()),
            error => self.write_error(error),
        }
    }

    pub(crate) fn write_streaming_metrics(&self, exposition: &mut Exposition) {
        exposition
            .gauge("plantstore_lists_streaming", "Lists that are being streamed to clients.")
            .sample(&[], self.lists_streaming.get());
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.read_limiter.write_metrics(exposition);
        exposition
            .counter(
                "plantstore_requests_shed_total",
                "Requests rejected with status 503 because of overload, by kind.",
            )
            .sample(&[("kind", "read".into())], self.read_limiter.rejected() + self.reads_shed.get())
            .sample(&[("kind", "write".into())], self.writes_shed.get());
        self.lists.write_metrics(exposition);
    }
}
