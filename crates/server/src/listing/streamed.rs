//! A list that is sent step by step, each read from the store when the client has room for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body::Frame;

use super::{Density, ListQuery, SMALL_STEP_BYTES, STEP_BYTES, Step, Tag, View, respond};
use crate::App;
use crate::collections::Readable;
use crate::context::Context;
use crate::error::ApiError;
use crate::page_budget::PageBudget;
use plantstore_store::{PlantRange, StoreError, Version, end_ranges_after};
use plantstore_telemetry::metrics::Held;

/// What of a list is still to be sent.
pub(super) struct Streamed {
    app: &'static App,
    readable: Readable,
    view: View,
    /// The owners' versions with the first step.
    versions: Vec<Option<Version>>,
    spans: Vec<PlantRange>,
    density: Density,
    separator: u8,
    pages: PageBudget,
    context: Arc<Context>,
    first: Option<Bytes>,
    _counted: Held<'static>,
}

/// The first page of a list, its number of plants, and what is to be read after it.
pub(super) struct FirstPage {
    pub(super) bytes: Bytes,
    pub(super) count: usize,
    pub(super) spans: Vec<PlantRange>,
}

/// The next bytes, whether they are the last, and what comes after them.
type Next = Option<((Bytes, bool), Option<Streamed>)>;

impl Streamed {
    /// A list whose owners were at these versions when its first step was read.
    pub(super) fn new(
        app: &'static App,
        readable: Readable,
        query: ListQuery,
        versions: Vec<Option<Version>>,
        density: Density,
    ) -> Self {
        let ListQuery { view, context, pages, .. } = query;
        Self {
            app,
            spans: view.spans(&readable),
            readable,
            view,
            versions,
            density,
            separator: b'[',
            pages,
            context,
            first: None,
            _counted: app.metrics.lists_streaming.hold(),
        }
    }

    /// The response that starts with the first page, or is read anew if that could not be held. Where all of it ends is settled
    /// before the first byte goes out, because the header that names the next page does too.
    pub(super) async fn respond(mut self, first: Option<FirstPage>, tag: Tag) -> Result<Response, ApiError> {
        let mut taken = 0;
        if let Some(FirstPage { bytes, count, spans }) = first {
            (self.first, self.separator, self.spans, taken) = (Some(bytes), b',', spans, count);
        }
        for (span, version) in self.spans.iter_mut().zip(&self.versions) {
            *span = span.as_of(*version);
        }
        let mut next = None;
        if let Some(limit) = self.view.limit {
            let left = limit.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
            if let Some(end) = self.app.store.boundary(&self.spans, left).await? {
                end_ranges_after(&mut self.spans, end);
                next = self.view.next(&self.readable, end);
            }
        }
        let steps = Box::pin(stream::try_unfold(Some(self), Self::step));
        Ok(respond(Body::new(StepBody { steps, ended: false }), next, tag.header()))
    }

    /// The next step. An error cuts the connection, so that half a list does not pass for the whole.
    async fn step(list: Option<Self>) -> Result<Next, Cut> {
        let Some(mut list) = list else {
            return Ok(None);
        };
        if let Some(first) = list.first.take() {
            return Ok(Some(((first, false), Some(list))));
        }
        // A step is always ready: without this, one long list would keep a thread from all other requests.
        tokio::task::yield_now().await;
        let request_id = list.context.id().to_owned();
        list.read().await.inspect_err(|error| tracing::error!(request_id, %error, "a list was cut short"))
    }

    async fn read(mut self) -> Result<Next, Cut> {
        let permit = self.pages.try_take();
        let limit = if permit.is_some() { STEP_BYTES } else { SMALL_STEP_BYTES };
        let mut step = Step::new(self.readable.collections(), self.view.include, self.separator, limit);
        let push = |place, id, name: &str, tag: Option<&str>| step.push(place, id, name, tag);
        let listed = self.app.store.list(&mut self.spans, self.density.rows_of(limit), push).await?;
        // The plants of a deleted user vanish: what is left of them is not the list.
        if self.versions.iter().zip(&listed.versions).any(|(before, now)| before.is_some() && now.is_none()) {
            return Err(Cut::UserGone);
        }
        let (density, is_last) = (step.density(), !listed.more);
        let bytes = if is_last { step.finish() } else { step.bytes };
        let bytes = permit.unwrap_or_default().hold(bytes);
        (self.density, self.separator) = (density, b',');
        Ok(Some(((bytes, is_last), (!is_last).then_some(self))))
    }
}

/// Why a list ends before its end.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a user was deleted")]
    UserGone,
}

/// The steps of a list as a body, which knows its end without being asked once more: a client may have made room for the last
/// byte and no further.
struct StepBody<S> {
    steps: S,
    ended: bool,
}

impl<S: Stream<Item = Result<(Bytes, bool), Cut>> + Unpin> http_body::Body for StepBody<S> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let step = ready!(Pin::new(&mut self.steps).poll_next(task));
        Poll::Ready(step.map(|step| {
            let (bytes, is_last) = step?;
            self.ended = is_last;
            Ok(Frame::data(bytes))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
