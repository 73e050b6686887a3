//! Listing: its parameters, its cursors, and its answer, whole or streamed.
//!
//! A list is read in steps of [`STEP_BYTES`], each from one moment, with nothing held between them. Later steps leave out
//! plants that were created after the first, so that a list ends and a page never grows past its limit; a plant that
//! existed throughout is always in it.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;

use super::App;
use super::context::Context;
use super::error::ApiError;
use crate::plant::{Plant, PlantId};
use crate::store::{Span, StoreError};
use crate::user::UserId;

/// Bytes of JSON after which a step ends; the plant that crosses the line is the last.
const STEP_BYTES: usize = 64 * 1024;

/// The parameters of a list.
pub(crate) struct ListQuery {
    limit: Option<u32>,
    after: Option<PlantId>,
    include_id: bool,
    context: Arc<Context>,
}

impl FromRequestParts<Arc<App>> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        let mut limit = None;
        let mut after = None;
        let mut include = None;
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "limit" if limit.is_some() => return Err(ApiError::BadLimit("is given more than once")),
                "limit" => limit = Some(parse_limit(&value)?),
                "after" if after.is_some() => return Err(ApiError::BadCursor),
                "after" => after = Some(cursor::decode(&value).ok_or(ApiError::BadCursor)?),
                "include" if include.is_some() || value != "id" => {
                    return Err(ApiError::BadRequest("`include` takes `id`, once"));
                }
                "include" => include = Some(()),
                _ => {}
            }
        }
        Ok(Self { limit, after, include_id: include.is_some(), context: Context::of(parts) })
    }
}

fn parse_limit(text: &str) -> Result<u32, ApiError> {
    let canonical = text == "0" || !text.starts_with('0');
    let digits = canonical && text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = text.parse::<i32>().ok().filter(|_| digits).and_then(|limit| u32::try_from(limit).ok());
    limit.ok_or(ApiError::BadLimit("must be an integer from 0 to 2147483647, without leading zeros"))
}

/// Answers a list: from memory when one step is all of it, streamed otherwise.
pub(crate) async fn answer(app: Arc<App>, user: UserId, query: ListQuery) -> Result<Response, ApiError> {
    let mut span = Span::after(user, query.after);
    let most = query.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut step = Step::new(query.include_id, b'[');
    let slot = app.reads.enter().await?;
    let more = app.store.list(span, most, |id, name, tag| step.push(id, name, tag)).await?;
    drop(slot);

    let Some(last) = step.last.filter(|_| more) else {
        return Ok(respond(Body::from(step.finish()), None));
    };
    if step.count == most {
        let next = query.next(last);
        return Ok(respond(Body::from(step.finish()), next));
    }
    // There is more than one step. Where it ends is settled before the first byte goes out, because the header that
    // names the next page does too.
    let version = app.store.version(user).await?.ok_or(ApiError::InvalidToken)?;
    span = span.past(last).as_of(version);
    let mut next = None;
    if let Some(limit) = query.limit {
        let taken = u32::try_from(step.count).unwrap_or(u32::MAX);
        if let Some(end) = app.store.boundary(span, limit - taken).await? {
            span = span.through(end);
            next = query.next(end);
        }
    }
    let (rows, first) = (step.rows_of_next(), Some(step.bytes));
    let rest = Rest { app, user, span, rows, include_id: query.include_id, context: query.context, first };
    Ok(respond(Body::from_stream(stream::try_unfold(Some(rest), Rest::step)), next))
}

impl ListQuery {
    /// The `Link` to the page after the plant with this id. A page of no plants leads nowhere.
    fn next(&self, last: PlantId) -> Option<HeaderValue> {
        let limit = self.limit?;
        let include = if self.include_id { "&include=id" } else { "" };
        let link = format!("</plants?limit={limit}&after={}{include}>; rel=\"next\"", cursor::encode(last));
        HeaderValue::try_from(link).ok()
    }
}

fn respond(body: Body, next: Option<HeaderValue>) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// One step of a list as JSON: every plant behind its separator.
struct Step {
    include_id: bool,
    separator: u8,
    bytes: Vec<u8>,
    count: usize,
    last: Option<PlantId>,
}

impl Step {
    fn new(include_id: bool, separator: u8) -> Self {
        Self { include_id, separator, bytes: Vec::with_capacity(1_024), count: 0, last: None }
    }

    fn push(&mut self, id: PlantId, name: &str, tag: Option<&str>) -> ControlFlow<()> {
        self.bytes.push(self.separator);
        self.separator = b',';
        let plant = Plant { id: self.include_id.then_some(id), name, tag };
        // Writing a number and strings to memory does not fail.
        let _ = serde_json::to_writer(&mut self.bytes, &plant);
        self.count += 1;
        self.last = Some(id);
        if self.bytes.len() < STEP_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// More plants than the next step will hold, if they are like these: more need not be asked for.
    fn rows_of_next(&self) -> usize {
        2 * STEP_BYTES * self.count.max(1) / self.bytes.len().max(1)
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count == 0 && self.separator == b'[' {
            self.bytes.push(b'[');
        }
        self.bytes.push(b']');
        self.bytes
    }
}

/// What of a list is still to come.
struct Rest {
    app: Arc<App>,
    user: UserId,
    span: Span,
    rows: usize,
    include_id: bool,
    context: Arc<Context>,
    first: Option<Vec<u8>>,
}

impl Rest {
    /// The next bytes. An error cuts the connection, so that nobody takes the half for the whole.
    async fn step(rest: Option<Self>) -> Result<Option<(Bytes, Option<Self>)>, Cut> {
        let Some(mut rest) = rest else {
            return Ok(None);
        };
        if let Some(first) = rest.first.take() {
            return Ok(Some((first.into(), Some(rest))));
        }
        // A step is always ready: without this, one long list would keep a thread from all other requests.
        tokio::task::yield_now().await;
        let request_id = rest.context.id().to_owned();
        rest.read().await.inspect_err(|error| tracing::error!(request_id, %error, "a list was cut short"))
    }

    async fn read(mut self) -> Result<Option<(Bytes, Option<Self>)>, Cut> {
        let mut step = Step::new(self.include_id, b',');
        let more = self.app.store.list(self.span, self.rows, |id, name, tag| step.push(id, name, tag)).await?;
        if let Some(last) = step.last.filter(|_| more) {
            self.span = self.span.past(last);
            self.rows = step.rows_of_next();
            return Ok(Some((step.bytes.into(), Some(self))));
        }
        // The plants of a deleted user vanish: what is left of them is not the list.
        if self.app.store.version(self.user).await?.is_none() {
            return Err(Cut::UserGone);
        }
        Ok(Some((step.finish().into(), None)))
    }
}

/// Why a list ends before its end.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the user was deleted")]
    UserGone,
}

/// Cursors: opaque to clients, without authority, and refused when anything in them was changed.
mod cursor {
    use crate::plant::PlantId;

    /// Says how the rest is to be read; another order of listing gets another.
    const VERSION: u8 = 1;

    pub(super) fn encode(last: PlantId) -> String {
        let mut text = format!("{VERSION:02x}{:016x}", last.get());
        text.push_str(&check(&text));
        text
    }

    pub(super) fn decode(text: &str) -> Option<PlantId> {
        let (body, checked) = text.split_at_checked(18)?;
        if check(body) != checked {
            return None;
        }
        let id = body.strip_prefix("01")?;
        u64::from_str_radix(id, 16).ok().map(|bits| PlantId::new(bits.cast_signed()))
    }

    fn check(body: &str) -> String {
        format!("{:08x}", crc32fast::hash(body.as_bytes()))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn cursors_round_trip_and_refuse_changes() {
            for id in [i64::MIN, -1, 0, 1, 42, i64::MAX] {
                let text = encode(PlantId::new(id));
                assert_eq!(decode(&text), Some(PlantId::new(id)));
                for index in 0..text.len() {
                    let mut changed = text.clone().into_bytes();
                    changed[index] = if changed[index] == b'0' { b'1' } else { b'0' };
                    assert_eq!(decode(std::str::from_utf8(&changed).expect("ascii")), None);
                }
            }
            for garbage in ["", "0", "é", "ééééééééééééééééééé", "01000000000000002a"] {
                assert_eq!(decode(garbage), None, "{garbage}");
            }
        }
    }
}
