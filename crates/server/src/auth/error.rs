//! Reasons to reject a request before its handler runs.

use plantstore_model::token::Scope;
use plantstore_store::StoreError;

#[derive(Debug)]
pub(crate) enum AuthError {
    NoToken,
    InvalidToken,
    ScopeMissing(Scope),
    /// More than one `Authorization`, or a wrong `Host`. The text is for the client.
    BadRequest(&'static str),
    /// Too many failed authentications of the client address; with the seconds after which to retry.
    TooManyFailures(u64),
    /// The user has exceeded the quota; with the seconds after which to retry.
    TooManyRequests(u64),
    NoIssuerKeys,
    Unavailable(String),
    Store(StoreError),
}

impl From<StoreError> for AuthError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
