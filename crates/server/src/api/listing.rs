//! Lists: read in chunks, cached, conditional or streamed.
//!
//! A list is read in chunks, each from one snapshot of the store, and no snapshot is held between chunks. Later chunks omit plants
//! that were created after the first chunk, so that a list ends and a page never exceeds its limit; a plant that exists
//! throughout is always included. A chunk is read when the client is ready to receive it. If the responses of a connection
//! have used up its buffers ([`crate::transport::BufferBudget`]), further chunks are small.

mod cache;
mod chunk;
mod cursor;
mod query;
mod response;
mod streamed;
mod view;

use axum::body::Body;
use axum::response::Response;
use plantstore_store::Version;

use self::cache::CachedList;
pub(super) use self::cache::ListCache;
use self::chunk::{CHUNK_BYTES, JsonChunk, SMALL_CHUNK_BYTES};
pub(super) use self::query::ListQuery;
use self::response::{not_modified, respond};
use self::streamed::{FirstChunk, StreamedList};
use super::collections::ReadableCollections;
use super::error::ApiError;
use super::state::Api;
use crate::transport::BufferPermit;

/// Responds with a list: not modified, from the cache, in one chunk, or streamed.
pub(crate) async fn list_plants(
    api: &'static Api,
    readable: ReadableCollections,
    mut query: ListQuery,
) -> Result<Response, ApiError> {
    query.view.complete_cursor(&readable);
    // Read before the plants: a list may be newer than its tag, but never older.
    let known = api.store.cached_versions(&readable.owners());
    if let Some(versions) = &known
        && let Some(response) = without_reading(api, &readable, &query, versions)?
    {
        return Ok(response);
    }
    // Boxed, so that a cached list does not need the memory of a read.
    Box::pin(read(api, readable, query, known)).await
}

/// Returns a response that needs no read of plants, if there is one: 304, or a cached list.
fn without_reading(
    api: &Api,
    readable: &ReadableCollections,
    query: &ListQuery,
    versions: &[Option<Version>],
) -> Result<Option<Response>, ApiError> {
    readable.check(versions)?;
    let tag = readable.tag(versions);
    if query.if_none_match.as_ref().is_some_and(|condition| condition.matches(tag)) {
        return Ok(Some(not_modified(tag)));
    }
    Ok(api.lists.get(tag, &query.view).map(CachedList::respond))
}

/// Reads a list from the store.
async fn read(
    api: &'static Api,
    readable: ReadableCollections,
    query: ListQuery,
    mut known: Option<Vec<Option<Version>>>,
) -> Result<Response, ApiError> {
    let _slot = api.admission.enter().await?;
    if known.is_none() && query.if_none_match.is_some() {
        let versions = api.store.versions(&readable.owners()).await?;
        if let Some(response) = without_reading(api, &readable, &query, &versions)? {
            return Ok(response);
        }
        known = Some(versions);
    }
    api.lists.count_miss();
    let mut ranges = query.view.ranges(&readable);
    let most = query.view.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut chunk = JsonChunk::new(readable.collections(), query.view.include, b'[', CHUNK_BYTES);
    let listed = api.store.list(&mut ranges, most, |index, id, name, tag| chunk.push(index, id, name, tag)).await?;
    readable.check(&listed.versions)?;
    let tag = readable.tag(known.as_ref().unwrap_or(&listed.versions));

    let (density, size) = (chunk.density(), chunk.bytes.len());
    if listed.more && chunk.count < most {
        let (count, bytes) = (chunk.count, chunk.bytes);
        let first = query.buffers.try_take().map(|permit| FirstChunk { bytes: permit.hold(bytes), count, ranges });
        return StreamedList::new(api, readable, query, listed.versions, density).respond(first, tag).await;
    }
    let next = chunk.last.filter(|_| listed.more).and_then(|last| query.view.next(&readable, last));
    if api.lists.has_room_for(size) {
        let list = CachedList { body: api.lists.share(chunk.finish()), next, tag: tag.header() };
        api.lists.insert(tag, query.view, &list);
        return Ok(list.respond());
    }
    let permit = if size <= SMALL_CHUNK_BYTES { Some(BufferPermit::default()) } else { query.buffers.try_take() };
    if let Some(permit) = permit {
        return Ok(respond(Body::from(permit.hold(chunk.finish())), next, tag.header()));
    }
    StreamedList::new(api, readable, query, listed.versions, density).respond(None, tag).await
}
