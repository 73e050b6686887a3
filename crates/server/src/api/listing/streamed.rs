//! Lists that are streamed in chunks. Each chunk is read from the store when the client is ready to receive it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use flate2::CompressError;
use futures_util::{Stream, stream};
use http_body::Frame;

use super::chunk::{CHUNK_BYTES, Coding, Density, JsonChunk, SMALL_CHUNK_BYTES};
use super::query::{ListOptions, ListQuery};
use crate::api::collections::ReadableCollections;
use crate::api::error::ApiError;
use crate::api::representation::EntityTag;
use crate::api::response;
use crate::api::state::Api;
use crate::observe::Context;
use crate::transport::BufferBudget;
use plantstore_store::{PlantRange, StoreError, Version, end_ranges_after};
use plantstore_telemetry::metrics::GaugeGuard;

/// The part of a list that is not sent yet.
pub(super) struct StreamedList {
    api: &'static Api,
    readable: ReadableCollections,
    parameters: ListOptions,
    /// The owners' versions when the first chunk was read.
    versions: Vec<Option<Version>>,
    ranges: Vec<PlantRange>,
    density: Density,
    separator: u8,
    buffers: BufferBudget,
    context: Arc<Context>,
    /// The first chunk, if it is already read.
    first: Option<Bytes>,
    /// Number of plants in it.
    first_count: usize,
    coding: Coding,
    _counted: GaugeGuard<'static>,
}

/// The next bytes, true if they are the last, and the rest of the list.
type Next = Option<((Bytes, bool), Option<StreamedList>)>;

impl StreamedList {
    /// Streams a list whose owners were at these versions when its first chunk was read.
    pub(super) fn new(
        api: &'static Api,
        readable: ReadableCollections,
        query: ListQuery,
        versions: Vec<Option<Version>>,
        density: Density,
        coding: Coding,
    ) -> Self {
        let ListQuery { parameters, context, buffers, .. } = query;
        Self {
            api,
            ranges: parameters.ranges(&readable),
            readable,
            parameters,
            versions,
            density,
            separator: b'[',
            buffers,
            context,
            first: None,
            first_count: 0,
            coding,
            _counted: api.lists_streaming.hold(),
        }
    }

    /// Begins with a first chunk of this many plants, which is already read, and continues with these ranges.
    pub(super) fn after(self, first: Bytes, first_count: usize, ranges: Vec<PlantRange>) -> Self {
        Self { first: Some(first), first_count, separator: b',', ranges, ..self }
    }

    /// Returns the response. The end of the page is determined before the first byte is sent, because the `Link` to the next page
    /// is in the header.
    pub(super) async fn respond(mut self, tag: EntityTag) -> Result<Response, ApiError> {
        continue_at(&mut self.ranges, &self.versions);
        let mut next = None;
        if let Some(limit) = self.parameters.limit {
            let left = limit.saturating_sub(u32::try_from(self.first_count).unwrap_or(u32::MAX));
            if let Some(end) = self.api.store.page_end(&self.ranges, self.parameters.tag.as_deref(), left).await? {
                end_ranges_after(&mut self.ranges, end);
                next = self.parameters.next(&self.readable, end);
            }
        }
        let mut response = response::plants(Body::empty(), next, tag.header());
        self.coding.add_headers(response.headers_mut());
        let chunks = Box::pin(stream::try_unfold(Some(self), Self::next_chunk));
        Ok(response.map(|_| Body::new(ChunkedBody { chunks, ended: false })))
    }

    /// Returns the next chunk. An error aborts the response, so that the client does not take half a list for the whole.
    async fn next_chunk(list: Option<Self>) -> Result<Next, StreamError> {
        let Some(mut list) = list else {
            return Ok(None);
        };
        if let Some(first) = list.first.take() {
            return Ok(Some(((first, false), Some(list))));
        }
        // Reading chunks may complete without ever yielding: without this, one long list would occupy a thread.
        tokio::task::yield_now().await;
        let request_id = list.context.id().to_owned();
        list.read().await.inspect_err(|error| tracing::error!(request_id, %error, "list response aborted"))
    }

    async fn read(mut self) -> Result<Next, StreamError> {
        let permit = self.buffers.try_take();
        let limit = if permit.is_some() { CHUNK_BYTES } else { SMALL_CHUNK_BYTES };
        let mut chunk = JsonChunk::new(self.readable.collections(), self.parameters.include, self.separator, limit);
        let tag = self.parameters.tag.as_deref();
        let rows = self.density.rows_of(limit);
        let is_last = loop {
            let push = |index, id, name: &str, tag: Option<&str>| chunk.push(index, id, name, tag);
            let listed = self.api.store.list(&mut self.ranges, tag, rows, push).await?;
            if lost_owner(&self.versions, &listed.versions) {
                return Err(StreamError::UserDeleted);
            }
            // With a tag, a step may read plants that are not in the list.
            if !listed.more || chunk.count > 0 {
                break !listed.more;
            }
            tokio::task::yield_now().await;
        };
        let density = chunk.density();
        let bytes = if is_last { chunk.finish() } else { chunk.bytes };
        let bytes = permit.unwrap_or_default().hold(self.coding.encode(bytes, is_last)?);
        self.density = density;
        self.separator = b',';
        Ok(Some(((bytes, is_last), (!is_last).then_some(self))))
    }
}

/// Omits the plants that were created after a first chunk in which the owners were at these versions.
pub(super) fn continue_at(ranges: &mut [PlantRange], versions: &[Option<Version>]) {
    for (range, version) in ranges.iter_mut().zip(versions) {
        *range = range.as_of(*version);
    }
}

/// Checks that an owner was deleted since the first chunk: the owner's plants are being removed, so the list would be incomplete.
pub(super) fn lost_owner(before: &[Option<Version>], now: &[Option<Version>]) -> bool {
    before.iter().zip(now).any(|(before, now)| before.is_some() && now.is_none())
}

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Compress(#[from] CompressError),
    #[error("a user was deleted")]
    UserDeleted,
}

/// The chunks of a list as a body. It reports its end together with the last chunk, because that chunk may exhaust the client's
/// flow-control window.
struct ChunkedBody<S> {
    chunks: S,
    ended: bool,
}

impl<S: Stream<Item = Result<(Bytes, bool), StreamError>> + Unpin> http_body::Body for ChunkedBody<S> {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
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
