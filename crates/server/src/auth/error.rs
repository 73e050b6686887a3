//! Errors of authentication and of the other checks before a handler runs.

use plantstore_model::token::Scope;
use plantstore_store::StoreError;

#[derive(Debug)]
pub(crate) enum AuthError {
    NoToken,
    InvalidToken,
    ScopeMissing(Scope),
    /// More than one `Authorization`, or an invalid `Host`. The text is for the client.
    BadRequest(&'static str),
    /// The client address has exceeded the limit on failed authentications; with the seconds until a retry.
    TooManyFailures(u64),
    /// The user has exceeded the quota; with the seconds until a retry.
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
