//! The context of a request, from its first byte to the last byte of its response. At its end, one line of the access log is
//! written.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version};
use plantstore_model::token::TokenId;
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::logging::ACCESS_LOG;
use plantstore_telemetry::spans::SpanRecorder;

use super::address_text::AddressText;
use super::request_id::request_id;
use super::request_metrics::EndedRequest;
use super::state::Observe;
use super::traces::{Trace, TracedRequest};
use crate::transport::ClientAddress;

/// The user that a request acts for, and the token that it was authenticated with.
pub(crate) struct Identity {
    pub(crate) user: UserName,
    pub(crate) user_id: UserId,
    /// `None` for a token of an issuer.
    pub(crate) token: Option<TokenId>,
}

pub(crate) struct Context {
    pub(crate) id: HeaderValue,
    /// Arrival of the first byte; over HTTP/2, of the end of the head.
    pub(crate) arrived: Instant,
    client: IpAddr,
    /// `None` for bytes that never became a request.
    method: Option<Method>,
    version: Version,
    route: &'static str,
    identity: OnceLock<Arc<Identity>>,
    /// The `RateLimit` header field, if the user has a quota.
    rate_limit: OnceLock<HeaderValue>,
    trace: Option<Trace>,
    /// A probe, a scrape or a static file, of which only errors are of interest.
    routine: bool,
}

impl Context {
    pub(crate) fn new(
        headers: &HeaderMap,
        client: IpAddr,
        arrived: Instant,
        version: Version,
        method: Option<Method>,
        route: &'static str,
    ) -> Self {
        let (identity, rate_limit) = (OnceLock::new(), OnceLock::new());
        Self {
            id: request_id(headers),
            arrived,
            client,
            method,
            version,
            route,
            identity,
            rate_limit,
            trace: None,
            routine: false,
        }
    }

    /// Makes the request part of a trace.
    pub(crate) fn with_trace(self, trace: Option<Trace>) -> Self {
        Self { trace, ..self }
    }

    /// Logs the request at debug level if it succeeds.
    pub(crate) fn with_routine(self, routine: bool) -> Self {
        Self { routine, ..self }
    }

    /// Returns the recorder of the request's spans, if its trace is recorded.
    pub(crate) fn recorder(&self) -> Option<&SpanRecorder> {
        self.trace.as_ref()?.recorder()
    }

    /// Returns the context that the service puts into every request.
    pub(crate) fn of(parts: &Parts) -> Arc<Self> {
        let context = parts.extensions.get::<Arc<Self>>();
        Arc::clone(context.expect("the server gives every request a context"))
    }

    pub(crate) fn client(&self) -> ClientAddress {
        ClientAddress::from(self.client)
    }

    /// Records the user that the request acts for; once, because a request is authenticated by one handler.
    pub(crate) fn set_identity(&self, identity: Arc<Identity>) {
        let _ = self.identity.set(identity);
    }

    /// Returns the user that the request acts for, once it is authenticated.
    pub(crate) fn user_id(&self) -> Option<UserId> {
        self.identity.get().map(|identity| identity.user_id)
    }

    /// Records the `RateLimit` header field of the response.
    pub(crate) fn set_rate_limit(&self, value: HeaderValue) {
        let _ = self.rate_limit.set(value);
    }

    pub(crate) fn rate_limit(&self) -> Option<&HeaderValue> {
        self.rate_limit.get()
    }

    pub(crate) fn id(&self) -> &str {
        // Accepted ids and generated ones are ASCII.
        self.id.to_str().unwrap_or_default()
    }

    /// Counts a request whose response has ended, adds it to its trace and writes its line of the access log; without a status
    /// when it never got a response.
    pub(crate) fn end(
        &self,
        observe: &Observe,
        status: Option<StatusCode>,
        error: Option<i32>,
        bytes: u64,
        complete: bool,
    ) {
        let took = self.arrived.elapsed();
        let (method, route) = (self.method.as_ref(), self.route);
        let exemplar = self.trace.as_ref().and_then(Trace::exemplar);
        observe.requests.end(&EndedRequest { method, route, status, error, bytes, complete, took, exemplar });
        let identity = self.identity.get();
        if let (Some(tracer), Some(trace)) = (&observe.tracer, &self.trace) {
            let user = identity.map(|identity| identity.user_id);
            let id = self.id();
            tracer.record(trace, &TracedRequest { id, method, route, status, error, user, bytes, complete });
        }
        macro_rules! log_request {
            ($level:ident) => {
                tracing::$level!(
                    target: ACCESS_LOG,
                    request_id = self.id(),
                    trace_id = self.trace.as_ref().map(|trace| trace.id.to_string()),
                    client = AddressText::of(self.client).as_str(),
                    http_version = version_number(self.version),
                    method = method.map(Method::as_str),
                    route,
                    status = status.map(|status| status.as_u16()),
                    error,
                    user = identity.map(|identity| identity.user.as_str()),
                    token_id = identity.and_then(|identity| identity.token).map(TokenId::get),
                    duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                    bytes,
                    complete,
                    "request"
                )
            };
        }
        if self.routine && error.is_none() && status.is_some() {
            log_request!(debug);
        } else {
            log_request!(info);
        }
    }
}

fn version_number(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
