//! Lists: read in chunks, cached, conditional or streamed.
//!
//! A list is read in chunks, each from one snapshot of the store, and no snapshot is held between chunks. Later chunks omit plants
//! that were created after the first chunk, so that a list ends and a page never exceeds its limit; a plant that exists
//! throughout is always included. A chunk is read when the client is ready to receive it. If the responses of a connection
//! have used up its buffers ([`crate::transport::BufferBudget`]), further chunks are small.

mod cache;
mod chunk;
mod coding;
mod cursor;
mod parameters;
mod query;
mod read_plant;
mod response;
mod streamed;

use axum::body::Body;
use axum::response::Response;
use plantstore_store::Version;

use self::cache::CachedList;
pub(super) use self::cache::ListCache;
use self::chunk::{CHUNK_BYTES, JsonChunk, SMALL_CHUNK_BYTES};
use self::coding::{COMPRESSION_MIN, Coding};
pub(super) use self::query::{ListQuery, PlantQuery};
pub(super) use self::read_plant::read_plant;
use self::response::{NEGOTIATED, not_modified, respond};
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
    query.parameters.complete_cursor(&readable);
    let known = api.store.cached_versions(&readable.owners());
    if let Some(versions) = &known
        && let Some(response) = without_reading(api, &readable, &query, versions)?
    {
        return Ok(response);
    }
    // Boxed, so that a cached list does not need the memory of a read.
    Box::pin(async move {
        let _slot = api.read_limiter.acquire(readable.user_id()).await?;
        let may_be_unchanged = || api.lists.contains(readable.list_id(), &query.parameters);
        if known.is_none() && (query.if_none_match.is_some() || may_be_unchanged()) {
            let versions = api.store.versions(&readable.owners()).await?;
            if let Some(response) = without_reading(api, &readable, &query, &versions)? {
                return Ok(response);
            }
        }
        read(api, readable, query).await
    })
    .await
}

/// Returns a response that needs no read of plants, if there is one: 304, or the cached list if it is current.
fn without_reading(
    api: &Api,
    readable: &ReadableCollections,
    query: &ListQuery,
    versions: &[Option<Version>],
) -> Result<Option<Response>, ApiError> {
    readable.check_owners_exist(versions)?;
    if let Some(condition) = &query.if_none_match {
        let tag = readable.tag(versions);
        if condition.matches(tag) {
            // The list is not read, and may be one that is compressed for some clients.
            return Ok(Some(not_modified(tag, NEGOTIATED)));
        }
    }
    let list = api.lists.get(readable.list_id(), readable.state(versions), &query.parameters);
    Ok(list.map(CachedList::respond))
}

/// Reads a list from the store.
async fn read(api: &'static Api, readable: ReadableCollections, query: ListQuery) -> Result<Response, ApiError> {
    api.lists.count_miss();
    let mut ranges = query.parameters.ranges(&readable);
    let limit = query.parameters.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut chunk = JsonChunk::new(readable.collections(), query.parameters.include, b'[', CHUNK_BYTES);
    let listed = api.store.list(&mut ranges, limit, |index, id, name, tag| chunk.push(index, id, name, tag)).await?;
    readable.check_owners_exist(&listed.versions)?;
    let mut more = listed.more;
    // The length of a compressed list of several owners would tell one of them about the plants of another.
    let is_compressed = query.accepts_gzip && readable.collections().len() == 1;
    // A step may be short, and the size decides on compression.
    while is_compressed && more && chunk.count < limit && chunk.bytes.len() < COMPRESSION_MIN {
        tokio::task::yield_now().await;
        for (range, version) in ranges.iter_mut().zip(&listed.versions) {
            *range = range.as_of(*version);
        }
        let rest = limit - chunk.count;
        let step = api.store.list(&mut ranges, rest, |index, id, name, tag| chunk.push(index, id, name, tag)).await?;
        // The plants of a deleted user are being removed, so the list would be incomplete.
        if listed.versions.iter().zip(&step.versions).any(|(before, now)| before.is_some() && now.is_none()) {
            return Err(ApiError::Unavailable("a user was deleted during a list".to_owned()));
        }
        more = step.more;
    }
    let tag = readable.tag(&listed.versions);

    let (density, size) = (chunk.density(), chunk.bytes.len());
    if more && chunk.count < limit {
        let (count, mut coding) = (chunk.count, Coding::negotiated(is_compressed));
        let first = match query.buffers.try_take() {
            Some(permit) => {
                let bytes = coding.encode(chunk.bytes, false).map_err(|error| ApiError::Internal(error.to_string()))?;
                Some(FirstChunk { bytes: permit.hold(bytes), count, ranges })
            }
            None => None,
        };
        return StreamedList::new(api, readable, query, listed.versions, density, coding).respond(first, tag).await;
    }
    let next = chunk.last.filter(|_| more).and_then(|last| query.parameters.next(&readable, last));
    if api.lists.has_room_for(size) {
        let state = readable.state(&listed.versions);
        let list = CachedList { state, body: api.lists.share(chunk.finish()), next, tag: tag.header() };
        api.lists.insert(readable.list_id(), query.parameters, &list);
        return Ok(list.respond());
    }
    let permit = if size <= SMALL_CHUNK_BYTES { Some(BufferPermit::default()) } else { query.buffers.try_take() };
    if let Some(permit) = permit {
        return Ok(respond(Body::from(permit.hold(chunk.finish())), next, tag.header()));
    }
    StreamedList::new(api, readable, query, listed.versions, density, Coding::NotNegotiated).respond(None, tag).await
}
