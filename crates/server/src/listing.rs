//! Listing: its parameters, and its answer, remembered, whole or streamed.
//!
//! A list is read in steps of [`STEP_BYTES`], each from one moment, with nothing held between them. Later steps leave out
//! plants that were created after the first, so that a list ends and a page never grows past its limit; a plant that
//! existed throughout is always in it. A step is read when the client has room for it; where the responses of a connection
//! hold as many pages as they may ([`PageBudget`]), the steps of the others are small.

mod cache;
mod cursor;
mod streamed;
mod tag;

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;

use self::cache::Page;
pub(crate) use self::cache::PageCache;
use self::cursor::Cursor;
use self::streamed::{FirstPage, Streamed};
pub(crate) use self::tag::{IfNoneMatch, Tag};
use super::App;
use super::collections::{OwnerName, Readable};
use super::context::Context;
use super::error::ApiError;
use super::page_budget::{PageBudget, PagePermit};
use plantstore_model::plant::{Plant, PlantId};
use plantstore_store::{Collection, PlantRange, Version};

/// Bytes of JSON after which a step ends; the plant that crosses the line is the last. Mostly that is within 64 KiB, a size
/// that the buffer reaches by doubling.
const STEP_BYTES: usize = 60 * 1024;
/// The same where other responses of the connection hold as many pages as they may.
const SMALL_STEP_BYTES: usize = 3 * 1024;

/// Header fields of an answer, about: room that is made at once.
const HEADERS_USUAL: usize = 12;

/// What of its plants a client wants to see, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct View {
    owner: OwnerName,
    limit: Option<u32>,
    after: Option<Cursor>,
    include: Include,
}

/// What is shown of a plant beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Include {
    id: bool,
    owner: bool,
}

/// The parameters of a list.
pub(crate) struct ListQuery {
    view: View,
    if_none_match: Option<IfNoneMatch>,
    context: Arc<Context>,
    pages: PageBudget,
}

impl FromRequestParts<&'static App> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &&'static App) -> Result<Self, ApiError> {
        let mut view = View::default();
        let mut include = None;
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "limit" if view.limit.is_some() => return Err(ApiError::BadLimit("is given more than once")),
                "limit" => view.limit = Some(parse_limit(&value)?),
                "after" if view.after.is_some() => return Err(ApiError::BadCursor),
                "after" => view.after = Some(Cursor::decode(&value).ok_or(ApiError::BadCursor)?),
                "include" if include.is_some() => return Err(BAD_INCLUDE),
                "include" => include = Some(Include::parse(&value)?),
                "owner" => view.owner.take(&value)?,
                _ => {}
            }
        }
        view.include = include.unwrap_or_default();
        let if_none_match = IfNoneMatch::of(&parts.headers);
        let pages = parts.extensions.get::<PageBudget>().cloned().unwrap_or_default();
        Ok(Self { view, if_none_match, context: Context::of(parts), pages })
    }
}

const BAD_INCLUDE: ApiError = ApiError::BadRequest("`include` takes `id`, `owner` or `id,owner`, once");

impl Include {
    fn parse(text: &str) -> Result<Self, ApiError> {
        match text {
            "id" => Ok(Self { id: true, owner: false }),
            "owner" => Ok(Self { id: false, owner: true }),
            "id,owner" | "owner,id" => Ok(Self { id: true, owner: true }),
            _ => Err(BAD_INCLUDE),
        }
    }

    /// As it stands in the address of the next page.
    fn parameter(self) -> &'static str {
        match (self.id, self.owner) {
            (false, false) => "",
            (true, false) => "&include=id",
            (false, true) => "&include=owner",
            (true, true) => "&include=id,owner",
        }
    }
}

fn parse_limit(text: &str) -> Result<u32, ApiError> {
    let canonical = text == "0" || !text.starts_with('0');
    let digits = canonical && text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = text.parse::<i32>().ok().filter(|_| digits).and_then(|limit| u32::try_from(limit).ok());
    limit.ok_or(ApiError::BadLimit("must be an integer from 0 to 2147483647, without leading zeros"))
}

impl View {
    /// A cursor without an owner was given out for a list of one: here, of the caller's own plants.
    fn settle(&mut self, readable: &Readable) {
        if let ([_, _, ..], Some(cursor)) = (readable.collections(), &mut self.after) {
            cursor.owner.get_or_insert_with(|| readable.caller().clone());
        }
    }

    /// Bytes of the texts in it.
    fn bytes(&self) -> usize {
        let after = self.after.as_ref().and_then(|cursor| cursor.owner.as_ref());
        after.map_or(0, |owner| owner.as_str().len()) + self.owner.0.as_ref().map_or(0, String::len)
    }

    /// What is to be read of each collection.
    fn spans(&self, readable: &Readable) -> Vec<PlantRange> {
        let span = |collection: &Collection| {
            let all = PlantRange::all_of(collection.owner_id);
            match &self.after {
                None => all,
                Some(Cursor { id, owner: Some(owner) }) if collection.owner > *owner => all.starting_at(*id),
                Some(Cursor { id, .. }) => all.past(*id),
            }
        };
        readable.collections().iter().map(span).collect()
    }

    /// The `Link` to the page after this plant. A page of no plants leads nowhere.
    fn next(&self, readable: &Readable, (id, place): (PlantId, usize)) -> Option<HeaderValue> {
        let limit = self.limit?;
        let owner = match readable.collections() {
            [_] => None,
            several => Some(several[place].owner.clone()),
        };
        let after = Cursor { id, owner }.encode();
        let include = self.include.parameter();
        let owner = self.owner.parameter('&');
        HeaderValue::try_from(format!("</plants?limit={limit}&after={after}{include}{owner}>; rel=\"next\"")).ok()
    }
}

impl ListQuery {
    /// Whose plants it asks for.
    pub(crate) fn owner(&self) -> &OwnerName {
        &self.view.owner
    }
}

/// Answers a list: that nothing has changed, from memory, in one step, or streamed.
pub(crate) async fn answer(app: &'static App, readable: Readable, mut query: ListQuery) -> Result<Response, ApiError> {
    query.view.settle(&readable);
    // Read before the plants are: a list may be newer than its tag says, but never older.
    let known = app.store.cached_versions(&readable.owners());
    if let Some(versions) = &known
        && let Some(response) = at_hand(app, &readable, &query, versions)?
    {
        return Ok(response);
    }
    // In a box, so that a list from memory does not carry around what only reading takes.
    Box::pin(read(app, readable, query, known)).await
}

/// What can be answered without reading a plant, if the owners are at these versions.
fn at_hand(
    app: &App,
    readable: &Readable,
    query: &ListQuery,
    versions: &[Option<Version>],
) -> Result<Option<Response>, ApiError> {
    readable.check(versions)?;
    let tag = readable.tag(versions);
    if query.if_none_match.as_ref().is_some_and(|known| known.matches(tag)) {
        return Ok(Some(not_modified(tag)));
    }
    Ok(app.pages.get(tag, &query.view).map(Page::respond))
}

/// Answers a list out of the store.
async fn read(
    app: &'static App,
    readable: Readable,
    query: ListQuery,
    mut known: Option<Vec<Option<Version>>>,
) -> Result<Response, ApiError> {
    let _slot = app.reads.enter().await?;
    if known.is_none() && query.if_none_match.is_some() {
        let versions = app.store.versions(&readable.owners()).await?;
        if let Some(response) = at_hand(app, &readable, &query, &versions)? {
            return Ok(response);
        }
        known = Some(versions);
    }
    app.pages.missed();
    let mut spans = query.view.spans(&readable);
    let most = query.view.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut step = Step::new(readable.collections(), query.view.include, b'[', STEP_BYTES);
    let listed = app.store.list(&mut spans, most, |place, id, name, tag| step.push(place, id, name, tag)).await?;
    readable.check(&listed.versions)?;
    let tag = readable.tag(known.as_ref().unwrap_or(&listed.versions));

    let (density, size) = (step.density(), step.bytes.len());
    if listed.more && step.count < most {
        let (count, bytes) = (step.count, step.bytes);
        let first = query.pages.try_take().map(|permit| FirstPage { bytes: permit.hold(bytes), count, spans });
        return Streamed::new(app, readable, query, listed.versions, density).respond(first, tag).await;
    }
    let next = step.last.filter(|_| listed.more).and_then(|last| query.view.next(&readable, last));
    if app.pages.has_room_for(size) {
        let page = Page { body: app.pages.share(step.finish()), next, tag: tag.header() };
        app.pages.keep(tag, query.view, &page);
        return Ok(page.respond());
    }
    let permit = if size <= SMALL_STEP_BYTES { Some(PagePermit::default()) } else { query.pages.try_take() };
    if let Some(permit) = permit {
        return Ok(respond(Body::from(permit.hold(step.finish())), next, tag.header()));
    }
    Streamed::new(app, readable, query, listed.versions, density).respond(None, tag).await
}

impl Page {
    fn respond(self) -> Response {
        respond(Body::from(self.body), self.next, self.tag)
    }
}

fn respond(body: Body, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.reserve(HEADERS_USUAL);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    validators(headers, tag);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// The client has it already.
fn not_modified(tag: Tag) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response.headers_mut().reserve(HEADERS_USUAL);
    validators(response.headers_mut(), tag.header());
    response
}

/// What tells a client, and whatever stands between, how long a list holds: until it is asked for again.
fn validators(headers: &mut HeaderMap, tag: HeaderValue) {
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
}

/// One step of a list as JSON: every plant behind its separator.
struct Step<'a> {
    collections: &'a [Collection],
    include: Include,
    separator: u8,
    /// Bytes after which it ends.
    limit: usize,
    bytes: Vec<u8>,
    count: usize,
    last: Option<(PlantId, usize)>,
}

impl<'a> Step<'a> {
    fn new(collections: &'a [Collection], include: Include, separator: u8, limit: usize) -> Self {
        Self { collections, include, separator, limit, bytes: Vec::with_capacity(1_024), count: 0, last: None }
    }

    fn push(&mut self, place: usize, id: PlantId, name: &str, tag: Option<&str>) -> ControlFlow<()> {
        self.bytes.push(self.separator);
        self.separator = b',';
        let owner = self.include.owner.then(|| self.collections[place].owner.as_str());
        let plant = Plant { id: self.include.id.then_some(id), owner, name, tag };
        // Writing a number and strings to memory does not fail.
        let _ = serde_json::to_writer(&mut self.bytes, &plant);
        self.count += 1;
        self.last = Some((id, place));
        if self.bytes.len() < self.limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn density(&self) -> Density {
        Density { plants: self.count.max(1), bytes: self.bytes.len().max(1) }
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count == 0 && self.separator == b'[' {
            self.bytes.push(b'[');
        }
        self.bytes.push(b']');
        self.bytes
    }
}

/// How many plants take how many bytes, as seen in one step.
#[derive(Clone, Copy)]
struct Density {
    plants: usize,
    bytes: usize,
}

impl Density {
    /// More plants than a step of this many bytes will hold, if they are like those: more need not be asked for.
    fn rows_of(self, bytes: usize) -> usize {
        2 * bytes * self.plants / self.bytes + 1
    }
}
