//! Authentication and authorisation: the caller of a request, its session and scopes, OpenID Connect, and limits on failed
//! authentications and on the requests of a user.

mod caller;
mod oidc;
mod rate_limit;
mod sessions;

pub(crate) use self::caller::{
    Auth, Caller, CallerToken, Delete, ManageShares, ManageTokens, NoScopeRequired, Public, Read, RequiredScope, Write,
    check_host,
};
pub use self::oidc::{Issuer, IssuerUrl, IssuerUrlError};
pub(crate) use self::rate_limit::RateLimiter;
pub(crate) use self::sessions::{AuthError, Credential, Session, SessionSelector};
