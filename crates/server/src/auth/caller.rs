//! Authentication as a handler argument. Only a [`Caller`] has a user, and every query needs one.
//!
//! A [`Caller`] is the first argument, so that the rest of a request is read only after authentication. The few handlers that
//! need no token take [`Public`] instead.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRef, FromRequestParts};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use plantstore_model::token::Scope;

use super::error::AuthError;
use super::host::check_host;
use super::sessions::Session;
use super::state::Auth;
use crate::observe::Context;

/// Type-level name of the scope that a handler requires.
pub(crate) trait RequiredScope {
    const SCOPE: Option<Scope>;
}

/// Requires `plants:read`.
pub(crate) struct Read;
/// Requires `plants:write`.
pub(crate) struct Write;
/// Requires `plants:delete`.
pub(crate) struct Delete;
/// Requires `tokens:manage`.
pub(crate) struct ManageTokens;
/// Requires `shares:manage`.
pub(crate) struct ManageShares;
/// Requires a valid token. No scope is checked.
pub(crate) struct NoScopeRequired;

impl RequiredScope for Read {
    const SCOPE: Option<Scope> = Some(Scope::Read);
}
impl RequiredScope for Write {
    const SCOPE: Option<Scope> = Some(Scope::Write);
}
impl RequiredScope for Delete {
    const SCOPE: Option<Scope> = Some(Scope::Delete);
}
impl RequiredScope for ManageTokens {
    const SCOPE: Option<Scope> = Some(Scope::ManageTokens);
}
impl RequiredScope for ManageShares {
    const SCOPE: Option<Scope> = Some(Scope::ManageShares);
}
impl RequiredScope for NoScopeRequired {
    const SCOPE: Option<Scope> = None;
}

/// An authenticated user whose token has the scope `S`.
pub(crate) struct Caller<S> {
    pub(crate) session: Arc<Session>,
    scope: PhantomData<S>,
}

impl<App, S> FromRequestParts<App> for Caller<S>
where
    &'static Auth: FromRef<App>,
    App: Send + Sync,
    S: RequiredScope,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AuthError> {
        let auth = <&'static Auth>::from_ref(app);
        let context = Context::of(parts);
        let session = authenticate(auth, &context, &parts.headers).await?;
        context.set_identity(Arc::clone(&session.identity));
        if let Some(quota) = &auth.user_quota {
            quota.count(session.user_id(), &context)?;
        }
        check_host(parts)?;
        match S::SCOPE {
            Some(scope) if !session.scopes.contains(scope) => Err(AuthError::ScopeMissing(scope)),
            _ => Ok(Self { session, scope: PhantomData }),
        }
    }
}

/// Any client; a token is not looked at.
pub(crate) struct Public;

impl<App: Send + Sync> FromRequestParts<App> for Public {
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, AuthError> {
        check_host(parts).map(|()| Self)
    }
}

async fn authenticate(auth: &Auth, context: &Context, headers: &HeaderMap) -> Result<Arc<Session>, AuthError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthError::NoToken)?;
    if values.next().is_some() {
        return Err(AuthError::BadRequest("send exactly one `Authorization` header"));
    }
    let session = match credentials(value)? {
        Some(token) => auth.sessions.find(&auth.store, token).await?,
        None => None,
    };
    session.ok_or_else(|| match auth.failure_limit.take(context.client(), Instant::now()) {
        Ok(_) => {
            auth.failures.count();
            AuthError::InvalidToken
        }
        Err(level) => {
            auth.limited_addresses.count();
            AuthError::TooManyFailures(level.next_in)
        }
    })
}

/// Returns the token of a bearer header; `None` when it is not UTF-8. Another scheme counts as no token.
fn credentials(value: &HeaderValue) -> Result<Option<&str>, AuthError> {
    let bytes = value.as_bytes();
    let (scheme, token) = match bytes.iter().position(|byte| *byte == b' ') {
        Some(space) => bytes.split_at(space),
        None => (bytes, &b""[..]),
    };
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(AuthError::NoToken);
    }
    let token = token.trim_ascii_start();
    Ok(std::str::from_utf8(token).ok())
}
