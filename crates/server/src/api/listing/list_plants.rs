//! `GET /plants`: a list that is not modified, or comes from the cache, or is read from the store.

use std::future::{Ready, ready};
use std::sync::Arc;

use axum::response::Response;
use futures_util::future::{BoxFuture, Either};
use plantstore_store::Version;

use super::cache::CachedList;
use super::chunk::{CHUNK_BYTES, COMPRESSION_MIN, Coding, JsonChunk, SMALL_CHUNK_BYTES};
use super::query::ListQuery;
use super::streamed::{StreamedList, continue_at, lost_owner};
use crate::api::collections::ReadableCollections;
use crate::api::error::ApiError;
use crate::api::overload::ReadSlot;
use crate::api::response;
use crate::api::state::Api;
use crate::transport::BufferPermit;

type Listed = Result<Response, ApiError>;

/// Responds with a list: not modified, from the cache, in one chunk, or streamed. Only reading it takes a future, so that a cached
/// list does not need its memory.
pub(crate) fn list_plants(
    api: &'static Api,
    readable: ReadableCollections,
    mut query: ListQuery,
) -> Either<Ready<Listed>, BoxFuture<'static, Listed>> {
    query.parameters.complete_cursor(&readable);
    let known = api.store.cached_versions(readable.owners());
    let cached = known.as_ref().map_or(Ok(None), |versions| without_reading(api, &readable, &query, versions));
    if let Some(listed) = cached.transpose() {
        return Either::Left(ready(listed));
    }
    Either::Right(Box::pin(async move {
        let slot = api.read_limiter.acquire(readable.user_id()).await?;
        let may_be_unchanged = || api.lists.contains(readable.list_id(), &query.parameters);
        if known.is_none() && (query.if_none_match.is_some() || may_be_unchanged()) {
            let owners: Vec<_> = readable.owners().collect();
            let versions = api.store.versions(&owners).await?;
            if let Some(response) = without_reading(api, &readable, &query, &versions)? {
                return Ok(response);
            }
        }
        read(api, slot, readable, query).await
    }))
}

/// Returns a response that needs no read of plants, if there is one: 304, or the cached list if it is current.
fn without_reading(
    api: &Api,
    readable: &ReadableCollections,
    query: &ListQuery,
    versions: &[Option<Version>],
) -> Result<Option<Response>, ApiError> {
    readable.check_owners_exist(versions)?;
    let cached = api.lists.get(readable.list_id(), readable.state(versions), &query.parameters);
    if let Some(condition) = &query.if_none_match {
        // A cached list knows its tag, which is otherwise a hash to compute.
        let tag = cached.as_ref().map_or_else(|| readable.tag(versions).header(), |list| list.tag.clone());
        if condition.matches(&tag) {
            return Ok(Some(response::plants_not_modified(tag)));
        }
    }
    Ok(cached.map(|list| {
        api.lists.hits.count();
        list.respond()
    }))
}

/// Reads a list from the store, and sends it in the way that its size and the free memory allow.
async fn read(
    api: &'static Api,
    _slot: ReadSlot<'_>,
    readable: ReadableCollections,
    query: ListQuery,
) -> Result<Response, ApiError> {
    api.lists.misses.count();
    let tag = query.parameters.tag.as_deref();
    let mut ranges = query.parameters.ranges(&readable);
    let limit = query.parameters.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut chunk = JsonChunk::new(readable.collections(), query.parameters.include, b'[', CHUNK_BYTES);
    let listed =
        api.store.list(&mut ranges, tag, limit, |index, id, name, tag| chunk.push(index, id, name, tag)).await?;
    readable.check_owners_exist(&listed.versions)?;
    let mut more = listed.more;
    // The length of a compressed list of several owners would tell one of them about the plants of another.
    let is_compressed = query.accepts_gzip && readable.collections().len() == 1;
    // A step may be short, and the size decides on compression. With a tag, it may have few plants or none.
    while (is_compressed || tag.is_some()) && more && chunk.count < limit && chunk.bytes.len() < COMPRESSION_MIN {
        tokio::task::yield_now().await;
        continue_at(&mut ranges, &listed.versions);
        let rest = limit - chunk.count;
        let step =
            api.store.list(&mut ranges, tag, rest, |index, id, name, tag| chunk.push(index, id, name, tag)).await?;
        if lost_owner(&listed.versions, &step.versions) {
            return Err(ApiError::Unavailable("a user was deleted during a list".to_owned()));
        }
        more = step.more;
    }
    // Plants follow the page, but perhaps none with the tag.
    if let Some(tag) = tag
        && more
        && chunk.count >= limit
    {
        more = limit > 0 && api.store.has_tagged(ranges.clone(), tag).await?;
    }

    let is_whole = !more || chunk.count >= limit;
    let size = chunk.bytes.len();
    let entity_tag = readable.tag(&listed.versions);
    let next = chunk.last.filter(|_| is_whole && more).and_then(|last| query.parameters.next(&readable, last));
    if is_whole && api.lists.has_room_for(size) {
        // In one piece, which later responses share.
        let state = readable.state(&listed.versions);
        let list = CachedList { state, body: api.lists.share(chunk.finish()), next, tag: entity_tag.header() };
        let list = Arc::new(list);
        api.lists.insert(readable.list_id(), query.parameters, Arc::clone(&list));
        return Ok(list.respond());
    }
    let is_small = is_whole && size <= SMALL_CHUNK_BYTES;
    let permit = if is_small { Some(BufferPermit::default()) } else { query.buffers.try_take() };
    let density = chunk.density();
    match permit {
        // In one piece, in a buffer of the connection.
        Some(permit) if is_whole => Ok(response::plants(permit.hold(chunk.finish()), next, entity_tag.header())),
        // In chunks, of which the first is in a buffer of the connection.
        Some(permit) => {
            let mut coding = Coding::negotiated(is_compressed);
            let count = chunk.count;
            let first = coding.encode(chunk.bytes, false).map_err(|error| ApiError::Internal(error.to_string()))?;
            let list = StreamedList::new(api, readable, query, listed.versions, density, coding);
            list.after(permit.hold(first), count, ranges).respond(entity_tag).await
        }
        // In chunks, all of which are read when the client is ready to receive them, because the connection has no free buffer.
        None => {
            let coding = if is_whole { Coding::NotNegotiated } else { Coding::negotiated(is_compressed) };
            StreamedList::new(api, readable, query, listed.versions, density, coding).respond(entity_tag).await
        }
    }
}
