//! The parameters of a list request.

use hyper::header::HeaderValue;
use plantstore_model::plant::PlantId;
use plantstore_store::{CollectionAccess, PlantRange};

use super::cursor::Cursor;
use crate::api::collections::{OwnerParameter, ReadableCollections};
use crate::api::error::ApiError;

/// The parameters that determine a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ListOptions {
    pub(super) owner: OwnerParameter,
    pub(super) limit: Option<u32>,
    pub(super) after: Option<Cursor>,
    pub(super) include: Include,
}

/// The optional fields of each plant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Include {
    pub(super) id: bool,
    pub(super) owner: bool,
}

pub(super) const BAD_INCLUDE: ApiError = ApiError::BadRequest("`include` takes `id`, `owner` or `id,owner`, once");

impl Include {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
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

pub(super) fn parse_limit(text: &str) -> Result<u32, ApiError> {
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
        after.map_or(0, |owner| owner.as_str().len()) + self.owner.0.as_ref().map_or(0, String::len)
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
        HeaderValue::try_from(format!("</plants?limit={limit}&after={after}{include}{owner}>; rel=\"next\"")).ok()
    }
}
