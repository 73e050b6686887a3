//! The state shared by all operations.

use std::sync::Arc;

use axum::extract::FromRef;
use plantstore_store::{Store, StoreError};
use plantstore_telemetry::metrics::{Counter, Exposition, Gauge};

use super::error::ApiError;
use super::listing::cache::ListCache;
use super::overload::{AccountChanges, EventStreams, ReadLimiter, RejectionDelay, Saturation};
use crate::auth::Auth;
use crate::observe::{Context, Readiness};
use crate::options::ApiLimits;
use crate::transport::Transport;

pub(crate) struct Api {
    pub(crate) transport: &'static Transport,
    pub(crate) auth: Auth,
    pub(super) store: Arc<Store>,
    pub(super) limits: ApiLimits,
    pub(super) lists: ListCache,
    pub(super) read_limiter: ReadLimiter,
    pub(super) saturation: Saturation,
    pub(super) reads_shed: Counter,
    pub(super) writes_shed: Counter,
    pub(crate) account_changes: AccountChanges,
    pub(crate) rejection_delay: RejectionDelay,
    /// Lists that are being streamed.
    pub(super) lists_streaming: Gauge,
    pub(crate) event_streams: EventStreams,
    pub(super) readiness: Readiness,
}

/// A request, as far as the arguments of its handler need it beside its head and body.
#[derive(Clone)]
pub(crate) struct RequestState {
    pub(crate) api: &'static Api,
    pub(crate) context: Arc<Context>,
}

impl FromRef<RequestState> for &'static Api {
    fn from_ref(request: &RequestState) -> Self {
        request.api
    }
}

impl FromRef<RequestState> for &'static Auth {
    fn from_ref(request: &RequestState) -> Self {
        &request.api.auth
    }
}

impl FromRef<RequestState> for Arc<Context> {
    fn from_ref(request: &RequestState) -> Self {
        Arc::clone(&request.context)
    }
}

impl Api {
    /// Creates the state. Must be called in the runtime that handles the requests.
    pub(crate) fn new(store: Arc<Store>, transport: &'static Transport, auth: Auth, limits: ApiLimits) -> Self {
        let watched = Arc::clone(&store);
        tokio::spawn(async move { watched.poll_watched().await });
        Self {
            transport,
            auth,
            lists: ListCache::new(limits.list_cache_bytes),
            read_limiter: ReadLimiter::new(&limits),
            saturation: Saturation::of_current_runtime(),
            reads_shed: Counter::default(),
            writes_shed: Counter::default(),
            account_changes: AccountChanges::new(limits.waiting_timeout),
            rejection_delay: RejectionDelay::new(),
            lists_streaming: Gauge::default(),
            event_streams: EventStreams::new(limits.max_event_streams.unwrap_or(transport.default_event_streams())),
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

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.transport.write_metrics(exposition);
        self.auth.write_metrics(exposition);
        exposition
            .gauge("plantstore_lists_streaming", "Lists that are being streamed to clients.")
            .sample(&[], self.lists_streaming.get());
        self.event_streams.write_metrics(exposition);
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
