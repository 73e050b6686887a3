//! Authentication and authorisation: the caller of a request, its session and scopes, OpenID Connect, and limits on failed
//! authentications and on the requests of a user.

mod caller;
mod error;
mod host;
mod limits;
mod oidc;
mod rate_limit;
mod sessions;
mod state;
mod user_quota;

pub(crate) use self::caller::{
    Caller, Delete, ManageShares, ManageTokens, NoScopeRequired, Public, Read, RequiredScope, Write,
};
pub(crate) use self::error::AuthError;
pub(crate) use self::host::check_host;
pub use self::limits::AuthLimits;
pub use self::oidc::{Issuer, IssuerUrl, IssuerUrlError};
pub(crate) use self::rate_limit::{Quota, RateLimiter};
pub use self::rate_limit::{Rate, RateError};
pub(crate) use self::sessions::{Credential, Session, SessionSelector};
pub(crate) use self::state::Auth;
