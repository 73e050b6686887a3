//! Access to collections: which plants a request may read or change, and the identity and state of its list. A collection is all
//! plants of one owner.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;

use super::error::ApiError;
use super::representation::EntityTag;
use crate::auth::Session;
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_store::{CollectionAccess, Version, WriteContext};

/// The optional parameter `?owner=`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct OwnerParameter(pub(crate) Option<String>);

impl OwnerParameter {
    /// Sets the value; a second one is an error.
    pub(crate) fn set(&mut self, value: &str) -> Result<(), ApiError> {
        match self.0.replace(value.to_owned()) {
            Some(_) => Err(ApiError::BadRequest("`owner` is given more than once: name one, or leave it out")),
            None => Ok(()),
        }
    }

    /// Returns the parameter for a URL, preceded by `separator`; nothing if no owner is set.
    pub(crate) fn parameter(&self, separator: char) -> String {
        self.0.as_deref().map(|owner| parameter(&format!("{separator}owner="), owner)).unwrap_or_default()
    }
}

/// Returns a parameter for a URL. `name` includes the characters before and after it, as in `&tag=`.
pub(crate) fn parameter(name: &str, value: &str) -> String {
    form_urlencoded::byte_serialize(value.as_bytes()).fold(name.to_owned(), |text, part| text + part)
}

/// Iterates over the names and values of the parameters of a request. Those without escapes, which nearly all are, are not decoded.
pub(crate) fn parameters(request: &Parts) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let mut rest = request.uri.query();
    let parameters = std::iter::from_fn(move || {
        let (parameter, others) = split_once(rest?, b'&');
        rest = others;
        Some(parameter)
    });
    let is_escape = |byte: u8| matches!(byte, b'%' | b'+');
    parameters.filter_map(move |text| match split_once(text, b'=') {
        (name, Some(value)) if !text.bytes().any(is_escape) => Some((name.into(), value.into())),
        _ => form_urlencoded::parse(text.as_bytes()).next(),
    })
}

/// Splits a short text at an ASCII character, in fewer instructions than that of the standard library.
fn split_once(text: &str, at: u8) -> (&str, Option<&str>) {
    match text.bytes().position(|byte| byte == at) {
        Some(place) => (&text[..place], Some(&text[place + 1..])),
        None => (text, None),
    }
}

impl<App: Send + Sync> FromRequestParts<App> for OwnerParameter {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let mut owner = Self::default();
        for (name, value) in parameters(parts) {
            if name == "owner" {
                owner.set(&value)?;
            }
        }
        Ok(owner)
    }
}

/// The collections of a list, sorted by the owners' names.
pub(crate) struct ReadableCollections {
    session: Arc<Session>,
    range: Range<usize>,
}

impl ReadableCollections {
    pub(crate) fn collections(&self) -> &[CollectionAccess] {
        &self.session.collections[self.range.clone()]
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn caller(&self) -> &UserName {
        &self.session.identity.user
    }

    pub(crate) fn user_id(&self) -> UserId {
        self.session.user_id()
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = UserId> {
        self.collections().iter().map(|collection| collection.owner_id)
    }

    /// Returns an error if the caller was deleted, or the owner of a list with a single owner.
    pub(crate) fn check_owners_exist(&self, versions: &[Option<Version>]) -> Result<(), ApiError> {
        for (collection, _) in self.collections().iter().zip(versions).filter(|(_, version)| version.is_none()) {
            if collection.owner_id == self.session.user_id() {
                return Err(ApiError::InvalidToken);
            }
            if self.range.len() == 1 {
                return Err(ApiError::NoCollection);
            }
        }
        Ok(())
    }

    /// Identifies the list, whatever it contains.
    pub(crate) fn list_id(&self) -> ListId {
        match self.collections() {
            [collection] => ListId::OneOwner(collection.owner_id),
            _ => ListId::AllReadableBy(self.session.user_id()),
        }
    }

    pub(crate) fn state(&self, versions: &[Option<Version>]) -> ListState {
        match (self.collections(), versions) {
            ([collection], [Some(version)]) => ListState::One(collection.owner_id, *version),
            _ => ListState::Several(self.tag(versions)),
        }
    }

    /// Returns the entity tag of the list at these versions.
    pub(crate) fn tag(&self, versions: &[Option<Version>]) -> EntityTag {
        EntityTag::of(self.owners().zip(versions.iter().copied()))
    }
}

/// Identifies a list, whatever it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListId {
    /// The plants of one owner.
    OneOwner(UserId),
    /// All plants that this user may read, of several owners.
    AllReadableBy(UserId),
}

/// Identifies what a list contains: its owners and their versions. It never stands for different plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListState {
    /// The usual case, without a hash.
    One(UserId, Version),
    Several(EntityTag),
}

/// Returns the collections that the caller may read: that of the given owner, or all.
pub(crate) fn readable(session: &Arc<Session>, owner: &OwnerParameter) -> Result<ReadableCollections, ApiError> {
    let session = Arc::clone(session);
    let range = match &owner.0 {
        None => 0..session.collections.len(),
        Some(owner) => {
            let index = index_of(&session, owner)?;
            index..index + 1
        }
    };
    Ok(ReadableCollections { session, range })
}

/// Returns one collection that the caller may read: that of the given owner, or the caller's own.
pub(crate) fn one_readable(session: &Arc<Session>, owner: &OwnerParameter) -> Result<ReadableCollections, ApiError> {
    match &owner.0 {
        Some(_) => readable(session, owner),
        None => readable(session, &OwnerParameter(Some(session.identity.user.as_str().to_owned()))),
    }
}

/// Returns the context of a write to the owner's plants, if the caller may change them.
pub(super) fn write_context(session: &Session, owner: &OwnerParameter) -> Result<WriteContext, ApiError> {
    let user = session.user_id();
    let Some(owner) = &owner.0 else {
        return Ok(WriteContext { user, owner: user });
    };
    let collection = &session.collections[index_of(session, owner)?];
    match collection.role {
        Role::Editor => Ok(WriteContext { user, owner: collection.owner_id }),
        Role::Reader => Err(ApiError::ReaderOnly),
    }
}

/// Finds the collection of an owner. The error is the same for an owner who does not exist and for one who shares nothing with
/// the caller.
fn index_of(session: &Session, owner: &str) -> Result<usize, ApiError> {
    let found = session.collections.binary_search_by(|known| known.owner.as_str().cmp(owner));
    found.map_err(|_| ApiError::NoCollection)
}
