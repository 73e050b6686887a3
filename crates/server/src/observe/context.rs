//! The context of a request, from its first byte to the last byte of its response. At its end, it is counted and traced, and one
//! line of the access log is written.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method, Response, Version};
use plantstore_model::token::TokenId;
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::logging::RequestLine;
use plantstore_telemetry::spans::SpanRecorder;
use tracing::Level;

use super::metrics::{ConnectionMetrics, EndedRequest, Outcome, RequestMetrics};
use super::request_id::request_id;
use super::traces::{Collector, Trace, Tracer};
use crate::transport::{ClientAddress, InFlightRequest, OpenEnded, ResponseBody};

/// The metrics and the tracer that requests and connections report to.
pub(crate) struct Observe {
    pub(crate) requests: RequestMetrics,
    pub(crate) connections: ConnectionMetrics,
    pub(crate) tracer: Option<Tracer>,
}

impl Observe {
    /// Observes requests on the routes with these labels.
    pub(crate) fn new(routes: Vec<&'static str>, collector: Option<Collector>) -> Self {
        let requests = RequestMetrics::new(routes);
        Self { requests, connections: ConnectionMetrics::default(), tracer: collector.map(Tracer::start) }
    }
}

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
    /// The user that the request acts for; set once, because a request is authenticated by one handler.
    pub(crate) identity: OnceLock<Arc<Identity>>,
    /// The `RateLimit` header field, if the user has a quota.
    pub(crate) rate_limit: OnceLock<HeaderValue>,
    pub(crate) trace: Option<Trace>,
    /// A probe, a scrape or a static file, which is logged at debug level if it succeeds.
    pub(crate) routine: bool,
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
        Self {
            id: request_id(headers),
            arrived,
            client,
            method,
            version,
            route,
            identity: OnceLock::new(),
            rate_limit: OnceLock::new(),
            trace: None,
            routine: false,
        }
    }

    /// Returns the recorder of the request's spans, if its trace is recorded.
    pub(crate) fn recorder(&self) -> Option<&SpanRecorder> {
        self.trace.as_ref()?.recorder()
    }

    pub(crate) fn client(&self) -> ClientAddress {
        ClientAddress::from(self.client)
    }

    /// Returns the user that the request acts for, once it is authenticated.
    pub(crate) fn user_id(&self) -> Option<UserId> {
        self.identity.get().map(|identity| identity.user_id)
    }

    pub(crate) fn id(&self) -> &str {
        // Accepted ids and generated ones are ASCII, which the standard library checks for several bytes at a time.
        str::from_utf8(self.id.as_bytes()).unwrap_or_default()
    }

    /// Counts a request whose response has ended, adds it to its trace and writes its line of the access log.
    pub(crate) fn end(&self, observe: &Observe, outcome: &Outcome) {
        let identity = self.identity.get();
        let ended = EndedRequest {
            id: self.id(),
            version: self.version,
            method: self.method.as_ref(),
            route: self.route,
            user: identity.map(|identity| identity.user_id),
            took: self.arrived.elapsed(),
            outcome,
        };
        observe.requests.end(&ended, self.trace.as_ref().and_then(Trace::exemplar));
        if let (Some(tracer), Some(trace)) = (&observe.tracer, &self.trace) {
            tracer.record(trace, &ended);
        }
        let line = RequestLine {
            request_id: ended.id,
            trace_id: self.trace.as_ref().map(|trace| trace.id.to_string()),
            client: self.client,
            http_version: ended.version_number(),
            method: ended.method.map(Method::as_str),
            route: ended.route,
            status: outcome.status.map(|status| status.as_u16()),
            error: outcome.error,
            user: identity.map(|identity| identity.user.as_str()),
            token_id: identity.and_then(|identity| identity.token).map(TokenId::get),
            duration_us: u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX),
            bytes: outcome.bytes,
            complete: outcome.complete,
        };
        let is_routine = self.routine && outcome.error.is_none() && outcome.status.is_some();
        line.log(if is_routine { Level::DEBUG } else { Level::INFO });
    }
}

/// A request and its response. Dropping it logs the end and frees the connection for the next request.
pub(crate) struct Exchange {
    context: Arc<Context>,
    outcome: Outcome,
    observe: &'static Observe,
    _in_flight: InFlightRequest,
}

impl Exchange {
    pub(crate) fn new(context: Arc<Context>, observe: &'static Observe, in_flight: InFlightRequest) -> Self {
        Self { context, outcome: Outcome::default(), observe, _in_flight: in_flight }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Sends a response, with the code of its error. The exchange ends with its body.
    pub(crate) fn respond(mut self, response: Response<Body>, error: Option<i32>) -> Response<TrackedBody> {
        self.outcome.status = Some(response.status());
        self.outcome.error = error;
        self.outcome.complete = http_body::Body::is_end_stream(response.body());
        let is_open_ended = response.extensions().get::<OpenEnded>().is_some();
        response.map(|inner| TrackedBody { inner, exchange: self, is_open_ended })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.context.end(self.observe, &self.outcome);
    }
}

/// The body of a response, which records its size and its end.
pub(crate) struct TrackedBody {
    inner: Body,
    exchange: Exchange,
    /// The response is complete after each of its frames.
    is_open_ended: bool,
}

impl ResponseBody for TrackedBody {
    fn abandon(&mut self) {
        self.exchange.outcome.complete = false;
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(task);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.exchange.outcome.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                self.exchange.outcome.complete = self.is_open_ended || self.inner.is_end_stream();
            }
            Poll::Ready(None) => self.exchange.outcome.complete = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
