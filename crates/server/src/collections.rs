//! Whose plants a request is about: those of the owner it names, of its caller, or of everybody who shares with them.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;

use super::App;
use super::auth::{Caller, Need};
use super::context::Context;
use super::error::ApiError;
use super::listing::Tag;
use super::sessions::Session;
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

    /// As it stands in an address, behind this separator.
    pub(crate) fn parameter(&self, separator: char) -> String {
        let Some(owner) = &self.0 else { return String::new() };
        let owner: String = form_urlencoded::byte_serialize(owner.as_bytes()).collect();
        format!("{separator}owner={owner}")
    }
}

impl FromRequestParts<&'static App> for OwnerName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &&'static App) -> Result<Self, ApiError> {
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
    context: Arc<Context>,
    which: Range<usize>,
}

impl Readable {
    fn session(&self) -> &Session {
        self.context.session().expect("only a caller reads")
    }

    pub(crate) fn collections(&self) -> &[Collection] {
        &self.session().collections[self.which.clone()]
    }

    pub(crate) fn caller(&self) -> &UserName {
        &self.session().holder.user
    }

    pub(crate) fn owners(&self) -> Vec<UserId> {
        self.collections().iter().map(|collection| collection.owner_id).collect()
    }

    /// Refuses what is gone: the caller, or the one owner that the list was to be of.
    pub(crate) fn check(&self, versions: &[Option<Version>]) -> Result<(), ApiError> {
        for (collection, _) in self.collections().iter().zip(versions).filter(|(_, version)| version.is_none()) {
            if collection.owner_id == self.session().holder.user_id {
                return Err(ApiError::InvalidToken);
            }
            if self.which.len() == 1 {
                return Err(ApiError::NoCollection);
            }
        }
        Ok(())
    }

    /// The tag of the list at these versions.
    pub(crate) fn tag(&self, versions: &[Option<Version>]) -> Tag {
        let owners = self.collections().iter().map(|collection| collection.owner_id);
        Tag::of(owners.zip(versions.iter().copied()))
    }
}

impl<N> Caller<N> {
    /// What the caller may read of what the request is about.
    pub(crate) fn readable(&self, owner: &OwnerName) -> Result<Readable, ApiError> {
        let which = match &owner.0 {
            None => 0..self.session().collections.len(),
            Some(owner) => {
                let place = self.place_of(owner)?;
                place..place + 1
            }
        };
        Ok(Readable { context: Arc::clone(&self.context), which })
    }

    /// The caller among the plants of that owner, if they may change them.
    fn writing_to(&self, owner: &OwnerName) -> Result<Actor, ApiError> {
        let user = self.user();
        let Some(owner) = &owner.0 else {
            return Ok(Actor { user, owner: user });
        };
        let collection = &self.session().collections[self.place_of(owner)?];
        match collection.role {
            Role::Editor => Ok(Actor { user, owner: collection.owner_id }),
            Role::Reader => Err(ApiError::ReaderOnly),
        }
    }

    /// An owner who shares nothing with the caller is the same to them as one who does not exist.
    fn place_of(&self, owner: &str) -> Result<usize, ApiError> {
        let collections = &self.session().collections;
        collections.binary_search_by(|known| known.owner.as_str().cmp(owner)).map_err(|_| ApiError::NoCollection)
    }
}

/// A caller at work among the plants that the request is about, which they may change.
pub(crate) struct Author<N> {
    pub(crate) actor: Actor,
    pub(crate) owner: OwnerName,
    need: PhantomData<N>,
}

impl<N: Need + Send> FromRequestParts<&'static App> for Author<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &&'static App) -> Result<Self, ApiError> {
        let caller = Caller::<N>::from_request_parts(parts, app).await?;
        let owner = OwnerName::from_request_parts(parts, app).await?;
        let actor = caller.writing_to(&owner)?;
        Ok(Self { actor, owner, need: PhantomData })
    }
}
