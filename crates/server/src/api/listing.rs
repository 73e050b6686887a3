//! Lists: read in chunks, cached, conditional or streamed.
//!
//! A list is read in chunks, each from one snapshot of the store, with nothing held between them. Later chunks leave out plants
//! that were created after the first, so that a list ends and a page never grows past its limit; a plant that existed
//! throughout is always in it. A chunk is read when the client has room for it; where the responses of a connection hold as
//! many buffers as they may ([`crate::transport::BufferBudget`]), the chunks of the others are small.

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
use self::chunk::{CHUNK_BYTES, Chunk, SMALL_CHUNK_BYTES};
pub(super) use self::query::ListQuery;
use self::response::{not_modified, respond};
use self::streamed::{FirstChunk, StreamedList};
use super::collections::Readable;
use super::error::ApiError;
use super::state::Api;
use crate::transport::BufferPermit;

/// Responds with a list: not modified, from the cache, in one chunk, or streamed.
pub(crate) async fn list_plants(
    api: &'static Api,
    readable: Readable,
    mut query: ListQuery,
) -> Result<Response, ApiError> {
    query.view.complete_cursor(&readable);
    // Read before the plants are: a list may be newer than its tag says, but never older.
    let known = api.store.cached_versions(&readable.owners());
    if let Some(versions) = &known
        && let Some(response) = without_reading(api, &readable, &query, versions)?
    {
        return Ok(response);
    }
    // Boxed, so that a cached list does not need the memory of a read.
    Box::pin(read(api, readable, query, known)).await
}

/// Returns the response that needs no read of plants, if the owners are at these versions.
fn without_reading(
    api: &Api,
    readable: &Readable,
    query: &ListQuery,
    versions: &[Option<Version>],
) -> Result<Option<Response>, ApiError> {
    readable.check(versions)?;
    let tag = readable.tag(versions);
    if query.if_none_match.as_ref().is_some_and(|known| known.matches(tag)) {
        return Ok(Some(not_modified(tag)));
    }
    Ok(api.lists.get(tag, &query.view).map(CachedList::respond))
}

/// Responds with a list from the store.
async fn read(
    api: &'static Api,
    readable: Readable,
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
    api.lists.missed();
    let mut spans = query.view.spans(&readable);
    let most = query.view.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut chunk = Chunk::new(readable.collections(), query.view.include, b'[', CHUNK_BYTES);
    let listed = api.store.list(&mut spans, most, |place, id, name, tag| chunk.push(place, id, name, tag)).await?;
    readable.check(&listed.versions)?;
    let tag = readable.tag(known.as_ref().unwrap_or(&listed.versions));

    let (density, size) = (chunk.density(), chunk.bytes.len());
    if listed.more && chunk.count < most {
        let (count, bytes) = (chunk.count, chunk.bytes);
        let first = query.buffers.try_take().map(|permit| FirstChunk { bytes: permit.hold(bytes), count, spans });
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
