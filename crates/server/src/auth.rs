//! Authentication as a handler's argument: without a [`Caller`] there is no user, and without a user no query.
//!
//! A [`Caller`] is taken before anything else of the request is looked at. The few handlers that serve anybody say so by
//! taking [`Public`].

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRequestParts;
use hyper::Version;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use hyper::http::request::Parts;

use super::App;
use super::context::Context;
use super::error::ApiError;
use super::sessions::Session;
use plantstore_model::token::Scope;
use plantstore_model::user::UserId;

/// What a handler needs a token to allow.
pub(crate) trait Need {
    const SCOPE: Option<Scope>;
}

/// Needs `plants:read`.
pub(crate) struct Reading;
/// Needs `plants:write`.
pub(crate) struct Writing;
/// Needs `plants:delete`.
pub(crate) struct Deleting;
/// Needs a valid token, whatever it allows.
pub(crate) struct AnyScope;

impl Need for Reading {
    const SCOPE: Option<Scope> = Some(Scope::Read);
}
impl Need for Writing {
    const SCOPE: Option<Scope> = Some(Scope::Write);
}
impl Need for Deleting {
    const SCOPE: Option<Scope> = Some(Scope::Delete);
}
impl Need for AnyScope {
    const SCOPE: Option<Scope> = None;
}

/// The user a request acts for, whose token allows what the handler needs.
pub(crate) struct Caller<N> {
    pub(super) context: Arc<Context>,
    need: PhantomData<N>,
}

impl<N> Caller<N> {
    pub(super) fn session(&self) -> &Session {
        self.context.session().expect("a caller is made of a session")
    }

    pub(crate) fn user(&self) -> UserId {
        self.session().holder.user_id
    }
}

impl<N: Need + Send> FromRequestParts<&'static App> for Caller<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &&'static App) -> Result<Self, ApiError> {
        let context = Context::of(parts);
        let session = authenticate(app, &context, &parts.headers).await?;
        let session = context.set_session(session);
        if let Some(limit) = &app.user_limit {
            let counted = limit.count(session.holder.user_id, &context);
            counted.inspect_err(|_| app.metrics.limited_users.count())?;
        }
        check_host(parts)?;
        match N::SCOPE {
            Some(scope) if !session.holder.scopes.allow(scope) => Err(ApiError::ScopeMissing(scope)),
            _ => Ok(Self { context, need: PhantomData }),
        }
    }
}

/// Somebody, with or without a token.
pub(crate) struct Public;

impl FromRequestParts<&'static App> for Public {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &&'static App) -> Result<Self, ApiError> {
        check_host(parts).map(|()| Self)
    }
}

async fn authenticate(app: &App, context: &Context, headers: &HeaderMap) -> Result<Arc<Session>, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(ApiError::NoToken)?;
    if values.next().is_some() {
        return Err(ApiError::BadRequest("send exactly one `Authorization` header"));
    }
    let session = match credentials(value)? {
        Some(token) => app.sessions.find(&app.store, token).await?,
        None => None,
    };
    session.ok_or_else(|| match app.auth_failures.take(context.client(), Instant::now()) {
        Ok(_) => {
            app.metrics.auth_failures.count();
            ApiError::InvalidToken
        }
        Err(level) => {
            app.metrics.limited_addresses.count();
            ApiError::TooManyFailures(level.more_in())
        }
    })
}

/// The token of a bearer header; `None` when it is not text. Credentials of another scheme are no credentials.
fn credentials(value: &HeaderValue) -> Result<Option<&str>, ApiError> {
    let bytes = value.as_bytes();
    let (scheme, token) = match bytes.iter().position(|byte| *byte == b' ') {
        Some(space) => bytes.split_at(space),
        None => (bytes, &b""[..]),
    };
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(ApiError::NoToken);
    }
    let token = token.trim_ascii_start();
    Ok(std::str::from_utf8(token).ok())
}

/// HTTP/1.1 asks for exactly one `Host`, of every request; HTTP/2 for the same as `:authority`, or both alike.
pub(super) fn check_host(parts: &Parts) -> Result<(), ApiError> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, more) = (hosts.next(), hosts.next().is_some());
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(ApiError::BadRequest("`Host` must be a host name or an address, and a port if need be"));
    }
    match parts.version {
        Version::HTTP_2 => match (parts.uri.authority(), host) {
            _ if more => Err(ApiError::BadRequest("send one `Host` header at the most")),
            (None, None) => Err(ApiError::BadRequest("send `:authority`, or a `Host` header")),
            (Some(authority), Some(host)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
                Err(ApiError::BadRequest("`Host` must be the same as `:authority`: leave it out"))
            }
            _ => Ok(()),
        },
        version if more || (host.is_none() && version == Version::HTTP_11) => {
            Err(ApiError::BadRequest("send exactly one `Host` header"))
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
