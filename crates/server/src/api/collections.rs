//! The collections that a request is about: of the owner it names, of its caller, or of all owners who share with the caller.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use hyper::http::request::Parts;

use super::entity_tag::EntityTag;
use super::error::ApiError;
use crate::auth::{Auth, Caller, RequiredScope, Session};
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_store::{Actor, Collection, Version};

/// The owner that a request names with `?owner=`, if it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct OwnerName(pub(crate) Option<String>);

impl OwnerName {
    /// Takes the parameter, once.
    pub(crate) fn take(&mut self, value: &str) -> Result<(), ApiError> {
        match self.0.replace(value.to_owned()) {
            Some(_) => Err(ApiError::BadRequest("`owner` is given more than once: name one, or leave it out")),
            None => Ok(()),
        }
    }

    /// Returns the parameter of a URL, behind this separator.
    pub(crate) fn parameter(&self, separator: char) -> String {
        let Some(owner) = &self.0 else { return String::new() };
        let owner: String = form_urlencoded::byte_serialize(owner.as_bytes()).collect();
        format!("{separator}owner={owner}")
    }
}

impl<App: Send + Sync> FromRequestParts<App> for OwnerName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let mut owner = Self::default();
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            if name == "owner" {
                owner.take(&value)?;
            }
        }
        Ok(owner)
    }
}

/// The collections that a list is made of, in the order of the owners' names.
pub(crate) struct Readable {
    session: Arc<Session>,
    range: Range<usize>,
}

impl Readable {
    pub(crate) fn collections(&self) -> &[Collection] {
        &self.session.collections[self.range.clone()]
    }

    pub(crate) fn caller(&self) -> &UserName {
        &self.session.identity.user
    }

    pub(crate) fn owners(&self) -> Vec<UserId> {
        self.collections().iter().map(|collection| collection.owner_id).collect()
    }

    /// Returns an error if a user was deleted: the caller, or the one owner of the list.
    pub(crate) fn check(&self, versions: &[Option<Version>]) -> Result<(), ApiError> {
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

    /// Returns the entity tag of the list at these versions.
    pub(crate) fn tag(&self, versions: &[Option<Version>]) -> EntityTag {
        let owners = self.collections().iter().map(|collection| collection.owner_id);
        EntityTag::of(owners.zip(versions.iter().copied()))
    }
}

/// Returns the collections that the caller may read: all, or that of the owner.
pub(crate) fn readable<S>(caller: &Caller<S>, owner: &OwnerName) -> Result<Readable, ApiError> {
    let session = Arc::clone(&caller.session);
    let range = match &owner.0 {
        None => 0..session.collections.len(),
        Some(owner) => {
            let place = place_of(&session, owner)?;
            place..place + 1
        }
    };
    Ok(Readable { session, range })
}

/// Returns the caller as an author of that owner's plants, if they may change them.
fn actor(session: &Session, owner: &OwnerName) -> Result<Actor, ApiError> {
    let user = session.user_id();
    let Some(owner) = &owner.0 else {
        return Ok(Actor { user, owner: user });
    };
    let collection = &session.collections[place_of(session, owner)?];
    match collection.role {
        Role::Editor => Ok(Actor { user, owner: collection.owner_id }),
        Role::Reader => Err(ApiError::ReaderOnly),
    }
}

/// Finds the collection of an owner. An owner who shares nothing with the caller is not told apart from one who does not exist.
fn place_of(session: &Session, owner: &str) -> Result<usize, ApiError> {
    let found = session.collections.binary_search_by(|known| known.owner.as_str().cmp(owner));
    found.map_err(|_| ApiError::NoCollection)
}

/// A caller who may change the plants that the request is about.
pub(crate) struct Author<S> {
    pub(crate) actor: Actor,
    pub(crate) owner: OwnerName,
    scope: PhantomData<S>,
}

impl<App, S> FromRequestParts<App> for Author<S>
where
    &'static Auth: FromRef<App>,
    App: Send + Sync,
    S: RequiredScope + Send,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::<S>::from_request_parts(parts, app).await?;
        let owner = OwnerName::from_request_parts(parts, app).await?;
        let actor = actor(&caller.session, &owner)?;
        Ok(Self { actor, owner, scope: PhantomData })
    }
}
