//! Authentication as a handler argument. Only a [`Caller`] has a user, and every query needs one.
//!
//! A [`Caller`] is the first argument, so that the rest of a request is read only after authentication. The few handlers that
//! need no token take [`Public`] instead.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRef, FromRequestParts};
use hyper::Version;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use plantstore_model::token::Scope;
use plantstore_store::Store;
use plantstore_telemetry::metrics::{Counter, Exposition};

use super::oidc::Issuer;
use super::rate_limit::{RateLimiter, UserQuota};
use super::sessions::{AuthError, Session, Sessions};
use crate::observe::Context;
use crate::options::{AuthLimits, Rate};
use crate::transport::ClientAddress;

/// The state of authentication: cached sessions, and limits on clients and users.
pub(crate) struct Auth {
    store: Arc<Store>,
    pub(crate) sessions: Sessions,
    failure_limit: RateLimiter<ClientAddress>,
    pub(crate) user_quota: Option<UserQuota>,
    failures: Counter,
    limited_addresses: Counter,
}

impl Auth {
    pub(crate) fn new(store: Arc<Store>, issuer: Option<Issuer>, limits: &AuthLimits) -> Self {
        let failure_rate = Rate::per_second(limits.auth_failure_rate);
        let quota = |rate: Rate| UserQuota::new(rate, limits.rate_burst.unwrap_or(rate.number));
        Self {
            store,
            sessions: Sessions::new(issuer),
            failure_limit: RateLimiter::new(failure_rate, limits.auth_failure_burst),
            user_quota: limits.rate_limit.map(quota),
            failures: Counter::default(),
            limited_addresses: Counter::default(),
        }
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_auth_failures_total", "Requests with an invalid token.")
            .sample(&[], self.failures.get());
        let limited_users = self.user_quota.as_ref().map_or(0, |quota| quota.rejected.get());
        exposition
            .counter("plantstore_requests_rate_limited_total", "Requests rejected with status 429, by limit.")
            .sample(&[("limit", "auth_failures".into())], self.limited_addresses.get())
            .sample(&[("limit", "user".into())], limited_users);
        self.sessions.write_metrics(exposition);
    }
}

/// Type-level name of the scope that a handler requires.
pub(crate) trait RequiredScope {
    const SCOPE: Option<Scope>;
}

macro_rules! required_scopes {
    ($($name:ident = $scope:expr;)*) => {$(
        pub(crate) struct $name;

        impl RequiredScope for $name {
            const SCOPE: Option<Scope> = $scope;
        }
    )*};
}

required_scopes! {
    Read = Some(Scope::Read);
    Write = Some(Scope::Write);
    Delete = Some(Scope::Delete);
    ManageTokens = Some(Scope::ManageTokens);
    ManageShares = Some(Scope::ManageShares);
    NoScopeRequired = None;
}

/// An authenticated user whose token has the scope `S`.
pub(crate) struct Caller<S> {
    pub(crate) session: Arc<Session>,
    scope: PhantomData<S>,
}

impl<App, S> FromRequestParts<App> for Caller<S>
where
    &'static Auth: FromRef<App>,
    Arc<Context>: FromRef<App>,
    App: Send + Sync,
    S: RequiredScope,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AuthError> {
        let auth = <&'static Auth>::from_ref(app);
        let context = Arc::<Context>::from_ref(app);
        let session = authenticate(auth, &context, &parts.headers).await?;
        let _ = context.identity.set(Arc::clone(&session.identity));
        if let Some(quota) = &auth.user_quota {
            quota.count(session.user_id(), &context).map_err(AuthError::TooManyRequests)?;
        }
        check_host(parts)?;
        match S::SCOPE {
            Some(scope) if !session.scopes.contains(scope) => Err(AuthError::ScopeMissing(scope)),
            _ => Ok(Self { session, scope: PhantomData }),
        }
    }
}

/// The token of a caller, whose session is looked up again while a long response is sent.
pub(crate) struct CallerToken {
    auth: &'static Auth,
    token: Box<[u8]>,
}

impl<App: Send + Sync> FromRequestParts<App> for CallerToken
where
    &'static Auth: FromRef<App>,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AuthError> {
        let value = parts.headers.get(AUTHORIZATION).ok_or(AuthError::NoToken)?;
        Ok(Self { auth: <&'static Auth>::from_ref(app), token: credentials(value)?.into() })
    }
}

impl CallerToken {
    /// Returns the session as the store has it now, also to requests that follow; an error if the token is not valid any more.
    pub(crate) async fn look_up(&self) -> Result<Arc<Session>, AuthError> {
        let session = self.auth.sessions.find(&self.auth.store, &self.token, Some(Instant::now())).await?;
        session.ok_or(AuthError::InvalidToken)
    }

    /// Checks, without a look-up, that the session is still valid as far as the issuer's keys are concerned.
    pub(crate) fn holds(&self, session: &Session) -> bool {
        self.auth.sessions.holds(session)
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
    let session = auth.sessions.find(&auth.store, credentials(value)?, None).await?;
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

/// Returns the token of a bearer header. Another scheme counts as no token.
fn credentials(value: &HeaderValue) -> Result<&[u8], AuthError> {
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at(bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len()));
    if scheme.eq_ignore_ascii_case(b"bearer") { Ok(token.trim_ascii_start()) } else { Err(AuthError::NoToken) }
}

/// Checks the host of a request. HTTP/1.1 requires exactly one `Host`. HTTP/2 requires `:authority` or `Host`, and that they
/// are equal if there are both.
pub(crate) fn check_host(parts: &Parts) -> Result<(), AuthError> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    let more = hosts.next().is_some();
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(AuthError::BadRequest("`Host` must be a host name or an address, with or without a port"));
    }
    match parts.version {
        Version::HTTP_2 => match (parts.uri.authority(), host) {
            _ if more => Err(AuthError::BadRequest("send at most one `Host` header")),
            (None, None) => Err(AuthError::BadRequest("send `:authority`, or a `Host` header")),
            (Some(authority), Some(host)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
                Err(AuthError::BadRequest("`Host` must be the same as `:authority`: leave it out"))
            }
            _ => Ok(()),
        },
        version if more || (host.is_none() && version == Version::HTTP_11) => {
            Err(AuthError::BadRequest("send exactly one `Host` header"))
        }
        _ => Ok(()),
    }
}

/// Checks the characters of a host and its port (RFC 9110, 7.2). An empty one is allowed.
fn is_host(value: &[u8]) -> bool {
    let host = match value.iter().rposition(|byte| *byte == b':') {
        Some(colon) if value[colon + 1..].iter().all(u8::is_ascii_digit) => &value[..colon],
        _ => value,
    };
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte);
    match host.strip_prefix(b"[") {
        Some(address) => {
            address.strip_suffix(b"]").is_some_and(|address| address.iter().all(|byte| *byte == b':' || in_name(byte)))
        }
        None => host.iter().all(in_name),
    }
}
