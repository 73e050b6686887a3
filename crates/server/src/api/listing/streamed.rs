//! A list that is streamed in chunks, each read from the store when the client has room for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body::Frame;

use super::chunk::{CHUNK_BYTES, Chunk, Density, SMALL_CHUNK_BYTES};
use super::query::ListQuery;
use super::response::respond;
use super::view::View;
use crate::api::collections::Readable;
use crate::api::entity_tag::EntityTag;
use crate::api::error::ApiError;
use crate::api::state::Api;
use crate::observe::Context;
use crate::transport::BufferBudget;
use plantstore_store::{PlantRange, StoreError, Version, end_ranges_after};
use plantstore_telemetry::metrics::GaugeGuard;

/// The part of a list that is still to be sent.
pub(super) struct StreamedList {
    api: &'static Api,
    readable: Readable,
    view: View,
    /// The owners' versions with the first chunk.
    versions: Vec<Option<Version>>,
    spans: Vec<PlantRange>,
    density: Density,
    separator: u8,
    buffers: BufferBudget,
    context: Arc<Context>,
    first: Option<Bytes>,
    _counted: GaugeGuard<'static>,
}

/// The first chunk of a list, its number of plants, and what is to be read after it.
pub(super) struct FirstChunk {
    pub(super) bytes: Bytes,
    pub(super) count: usize,
    pub(super) spans: Vec<PlantRange>,
}

/// The next bytes, true if they are the last, and the rest of the list.
type Next = Option<((Bytes, bool), Option<StreamedList>)>;

impl StreamedList {
    /// Streams a list whose owners were at these versions when its first chunk was read.
    pub(super) fn new(
        api: &'static Api,
        readable: Readable,
        query: ListQuery,
        versions: Vec<Option<Version>>,
        density: Density,
    ) -> Self {
        let ListQuery { view, context, buffers, .. } = query;
        Self {
            api,
            spans: view.spans(&readable),
            readable,
            view,
            versions,
            density,
            separator: b'[',
            buffers,
            context,
            first: None,
            _counted: api.lists_streaming.hold(),
        }
    }

    /// Returns the response that starts with the first chunk, or is read again if that could not be held. The end of the list is
    /// fixed before the first byte is sent, because the header that names the next page is sent before it.
    pub(super) async fn respond(mut self, first: Option<FirstChunk>, tag: EntityTag) -> Result<Response, ApiError> {
        let mut taken = 0;
        if let Some(FirstChunk { bytes, count, spans }) = first {
            (self.first, self.separator, self.spans, taken) = (Some(bytes), b',', spans, count);
        }
        for (span, version) in self.spans.iter_mut().zip(&self.versions) {
            *span = span.as_of(*version);
        }
        let mut next = None;
        if let Some(limit) = self.view.limit {
            let left = limit.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
            if let Some(end) = self.api.store.boundary(&self.spans, left).await? {
                end_ranges_after(&mut self.spans, end);
                next = self.view.next(&self.readable, end);
            }
        }
        let chunks = Box::pin(stream::try_unfold(Some(self), Self::next_chunk));
        Ok(respond(Body::new(ChunkedBody { chunks, ended: false }), next, tag.header()))
    }

    /// Returns the next chunk. An error cuts the connection, so that half a list is not taken for the whole.
    async fn next_chunk(list: Option<Self>) -> Result<Next, Cut> {
        let Some(mut list) = list else {
            return Ok(None);
        };
        if let Some(first) = list.first.take() {
            return Ok(Some(((first, false), Some(list))));
        }
        // A chunk is always ready: without this, one long list would occupy a thread.
        tokio::task::yield_now().await;
        let request_id = list.context.id().to_owned();
        list.read().await.inspect_err(|error| tracing::error!(request_id, %error, "list response aborted"))
    }

    async fn read(mut self) -> Result<Next, Cut> {
        let permit = self.buffers.try_take();
        let limit = if permit.is_some() { CHUNK_BYTES } else { SMALL_CHUNK_BYTES };
        let mut chunk = Chunk::new(self.readable.collections(), self.view.include, self.separator, limit);
        let push = |place, id, name: &str, tag: Option<&str>| chunk.push(place, id, name, tag);
        let listed = self.api.store.list(&mut self.spans, self.density.rows_of(limit), push).await?;
        // The plants of a deleted user are removed: the rest of them is not the list.
        if self.versions.iter().zip(&listed.versions).any(|(before, now)| before.is_some() && now.is_none()) {
            return Err(Cut::UserGone);
        }
        let (density, is_last) = (chunk.density(), !listed.more);
        let bytes = if is_last { chunk.finish() } else { chunk.bytes };
        let bytes = permit.unwrap_or_default().hold(bytes);
        (self.density, self.separator) = (density, b',');
        Ok(Some(((bytes, is_last), (!is_last).then_some(self))))
    }
}

/// Reasons why a list breaks off.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a user was deleted")]
    UserGone,
}

/// The chunks of a list as a body, which knows its end without being polled again: the client's window may have room for the
/// last byte and no more.
struct ChunkedBody<S> {
    chunks: S,
    ended: bool,
}

impl<S: Stream<Item = Result<(Bytes, bool), Cut>> + Unpin> http_body::Body for ChunkedBody<S> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let chunk = ready!(Pin::new(&mut self.chunks).poll_next(task));
        Poll::Ready(chunk.map(|chunk| {
            let (bytes, is_last) = chunk?;
            self.ended = is_last;
            Ok(Frame::data(bytes))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
