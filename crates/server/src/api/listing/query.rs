//! A request for a list or a plant as a handler argument: its parameters, and cursors of paged lists. Cursors are opaque to
//! clients, have a checksum, and grant no access.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use plantstore_model::plant::{PlantId, TAG_MAX_CHARS};
use plantstore_model::text::Hex;
use plantstore_model::user::UserName;
use plantstore_store::{CollectionAccess, PlantRange};

use crate::api::collections::{OwnerParameter, ReadableCollections, parameter, parameters};
use crate::api::error::ApiError;
use crate::api::representation::{IfNoneMatch, accepts_gzip};
use crate::observe::Context;
use crate::transport::BufferBudget;

/// Format of the rest of the cursor.
const ID_ALONE: &str = "01";
const ID_AND_OWNER: &str = "02";
const ID_CHARS: usize = 16;
const CHECKSUM_CHARS: usize = 8;

const BAD_INCLUDE: ApiError = ApiError::BadRequest("`include` takes `id`, `owner` or `id,owner`, once");
const BAD_TAG: ApiError = ApiError::BadRequest("`tag` takes one tag of at most 200 characters, once");

/// A list request: its parameters, and the buffers of its connection.
pub(crate) struct ListQuery {
    pub(crate) parameters: ListOptions,
    pub(super) if_none_match: Option<IfNoneMatch>,
    pub(super) accepts_gzip: bool,
    pub(super) context: Arc<Context>,
    pub(super) buffers: BufferBudget,
}

impl<App: Send + Sync> FromRequestParts<App> for ListQuery
where
    Arc<Context>: FromRef<App>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let mut options = ListOptions::default();
        let mut include = None;
        for (name, value) in parameters(parts) {
            match &*name {
                "limit" if options.limit.is_some() => return Err(ApiError::BadLimit("is given more than once")),
                "limit" => options.limit = Some(parse_limit(&value)?),
                "after" if options.after.is_some() => return Err(ApiError::BadCursor),
                "after" => options.after = Some(Cursor::decode(&value).ok_or(ApiError::BadCursor)?),
                "include" if include.is_some() => return Err(BAD_INCLUDE),
                "include" => include = Some(Include::parse(&value)?),
                "owner" => options.owner.set(&value)?,
                "tag" if options.tag.is_some() || value.chars().count() > TAG_MAX_CHARS => return Err(BAD_TAG),
                "tag" => options.tag = Some(value.into_owned()),
                _ => {}
            }
        }
        options.include = include.unwrap_or_default();
        let if_none_match = IfNoneMatch::of(&parts.headers);
        let buffers = parts.extensions.get::<BufferBudget>().cloned().unwrap_or_default();
        let accepts_gzip = accepts_gzip(&parts.headers);
        Ok(Self { parameters: options, if_none_match, accepts_gzip, context: Arc::from_ref(app), buffers })
    }
}

/// A request for one plant: its parameters except for the id.
pub(crate) struct PlantQuery {
    pub(crate) owner: OwnerParameter,
    pub(super) include: Include,
    pub(super) if_none_match: Option<IfNoneMatch>,
}

impl<App: Send + Sync> FromRequestParts<App> for PlantQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let mut owner = OwnerParameter::default();
        let mut include = None;
        for (name, value) in parameters(parts) {
            match &*name {
                "include" if include.is_some() => return Err(BAD_INCLUDE),
                "include" => include = Some(Include::parse(&value)?),
                "owner" => owner.set(&value)?,
                _ => {}
            }
        }
        let if_none_match = IfNoneMatch::of(&parts.headers);
        Ok(Self { owner, include: include.unwrap_or_default(), if_none_match })
    }
}

/// The parameters that determine a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ListOptions {
    pub(crate) owner: OwnerParameter,
    pub(super) limit: Option<u32>,
    after: Option<Cursor>,
    pub(super) include: Include,
    /// Lists only plants with this tag.
    pub(super) tag: Option<String>,
}

/// The optional fields of each plant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Include {
    pub(super) id: bool,
    pub(super) owner: bool,
}

impl Include {
    fn parse(text: &str) -> Result<Self, ApiError> {
        match text {
            "id" => Ok(Self { id: true, owner: false }),
            "owner" => Ok(Self { id: false, owner: true }),
            "id,owner" | "owner,id" => Ok(Self { id: true, owner: true }),
            _ => Err(BAD_INCLUDE),
        }
    }

    /// Returns the parameter of the next page's URL.
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

impl ListOptions {
    /// Adds the caller as owner to a cursor without one: it is from a list before other users shared their plants.
    pub(super) fn complete_cursor(&mut self, readable: &ReadableCollections) {
        if let ([_, _, ..], Some(cursor)) = (readable.collections(), &mut self.after) {
            cursor.owner.get_or_insert_with(|| readable.caller().clone());
        }
    }

    /// Returns the size of its strings on the heap.
    pub(super) fn bytes(&self) -> usize {
        let after = self.after.as_ref().and_then(|cursor| cursor.owner.as_ref());
        let strings = [&self.owner.0, &self.tag].into_iter().flatten().map(String::len);
        after.map_or(0, |owner| owner.as_str().len()) + strings.sum::<usize>()
    }

    /// Returns the range to read from each collection.
    pub(super) fn ranges(&self, readable: &ReadableCollections) -> Vec<PlantRange> {
        let range = |collection: &CollectionAccess| {
            let all = PlantRange::all_of(collection.owner_id);
            match &self.after {
                None => all,
                Some(Cursor { id, owner: Some(owner) }) if collection.owner > *owner => all.starting_at(*id),
                Some(Cursor { id, .. }) => all.past(*id),
            }
        };
        readable.collections().iter().map(range).collect()
    }

    /// Returns the `Link` to the page after this plant; `None` for a list without limit.
    pub(super) fn next(&self, readable: &ReadableCollections, (id, index): (PlantId, usize)) -> Option<HeaderValue> {
        let limit = self.limit?;
        let owner = match readable.collections() {
            [_] => None,
            several => Some(several[index].owner.clone()),
        };
        let after = Cursor { id, owner }.encode();
        let include = self.include.parameter();
        let owner = self.owner.parameter('&');
        let tag = self.tag.as_deref().map(|tag| parameter("&tag=", tag)).unwrap_or_default();
        HeaderValue::try_from(format!("</plants?limit={limit}&after={after}{include}{owner}{tag}>; rel=\"next\"")).ok()
    }
}

/// The last plant of a page, after which the next begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cursor {
    id: PlantId,
    /// The owner of that plant; `None` in the list of a single owner.
    owner: Option<UserName>,
}

impl Cursor {
    fn encode(&self) -> String {
        let kind = if self.owner.is_some() { ID_AND_OWNER } else { ID_ALONE };
        let owner = self.owner.as_ref().map_or("", UserName::as_str);
        let mut text = format!("{kind}{:016x}{}", self.id.get(), Hex(owner.as_bytes()));
        text.push_str(&checksum(&text));
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let (body, _checksum) = text.split_at_checked(text.len().checked_sub(CHECKSUM_CHARS)?)?;
        let (kind, rest) = body.split_at_checked(ID_ALONE.len())?;
        let (id, owner) = rest.split_at_checked(ID_CHARS)?;
        let id = u64::from_str_radix(id, 16).ok().map(|bits| PlantId::new(bits.cast_signed()))?;
        let owner = if kind == ID_AND_OWNER { Some(UserName::parse(&decode_hex(owner)?).ok()?) } else { None };
        // Rejects a wrong checksum, other spellings of the digits, and trailing characters.
        let cursor = Self { id, owner };
        (cursor.encode() == text).then_some(cursor)
    }
}

fn decode_hex(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_cursors_are_rejected() {
        let with_checksum = |body: &str| format!("{body}{}", checksum(body));
        let bodies = [
            "",
            "01 02 0100000000000000 01000000000000002a61 02000000000000002a 02000000000000002a6 02000000000000002aff",
            "02000000000000002a+1 03000000000000002a 01000000000000é 01+00000000000002a",
        ];
        let bodies = bodies.iter().flat_map(|bodies| bodies.split(' '));
        let without_checksum = ["", "0", "é", "ééééééééééééé", "01000000000000002a"];
        for malformed in bodies.map(with_checksum).chain(without_checksum.map(str::to_owned)) {
            assert_eq!(Cursor::decode(&malformed), None, "{malformed}");
        }
    }
}
