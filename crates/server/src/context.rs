//! What is known of a request from its first byte to the last byte of its answer: one line of the log.

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version};

use super::App;
use super::hex::write_hex;
use super::limits::ClientAddress;
use super::metrics::Ended;
use super::rate::Level;
use super::serve::Working;
use super::sessions::Session;
use super::traces::{Request, Trace};
use plantstore_model::token::{TOKEN_PREFIX, TokenId};
use plantstore_telemetry::spans::Notes;

/// The header that names a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// Longest request id taken over from a client.
const REQUEST_ID_MAX: usize = 128;

/// The facts of one request, shared by all who handle it.
pub(crate) struct Context {
    pub(crate) id: HeaderValue,
    /// When its first byte arrived.
    pub(crate) arrived: Instant,
    client: IpAddr,
    /// `None` for what never became a request.
    method: Option<Method>,
    version: Version,
    route: &'static str,
    session: OnceLock<Arc<Session>>,
    /// What is left of the user's quota, when there is one.
    level: OnceLock<Level>,
    trace: Option<Trace>,
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
        let id = headers.get(REQUEST_ID).filter(|id| is_sane(id)).cloned().unwrap_or_else(new_request_id);
        let (session, level) = (OnceLock::new(), OnceLock::new());
        Self { id, arrived, client, method, version, route, session, level, trace: None }
    }

    /// The same as part of a trace.
    pub(crate) fn within(self, trace: Option<Trace>) -> Self {
        Self { trace, ..self }
    }

    /// Where what is done for it is noted, if anybody asks.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.trace.as_ref()?.notes()
    }

    /// The context that the server puts into every request.
    pub(crate) fn of(parts: &Parts) -> Arc<Self> {
        let context = parts.extensions.get::<Arc<Self>>();
        Arc::clone(context.expect("the server gives every request a context"))
    }

    pub(crate) fn client(&self) -> ClientAddress {
        ClientAddress::from(self.client)
    }

    /// Keeps whom the request acts for. Once: a request is authenticated by one handler.
    pub(crate) fn set_session(&self, session: Arc<Session>) -> &Session {
        self.session.get_or_init(|| session)
    }

    /// Whom the request acts for, once that is known.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.get().map(AsRef::as_ref)
    }

    pub(crate) fn set_level(&self, level: Level) {
        // Set once, as the session is.
        let _ = self.level.set(level);
    }

    pub(crate) fn level(&self) -> Option<Level> {
        self.level.get().copied()
    }

    pub(crate) fn id(&self) -> &str {
        // Sane ids and ours are ASCII.
        self.id.to_str().unwrap_or_default()
    }

    /// Counts a request whose answer has ended, tells its trace of it and gives it its one line in the log; without a status
    /// when it never got one.
    pub(crate) fn end(&self, app: &App, status: Option<StatusCode>, error: Option<i32>, bytes: u64, complete: bool) {
        let took = self.arrived.elapsed();
        let (method, route) = (self.method.as_ref(), self.route);
        app.metrics.ended(&Ended { method, route, status, error, bytes, complete, took });
        let session = self.session();
        if let (Some(tracer), Some(trace)) = (&app.tracer, &self.trace) {
            let user = session.map(|session| session.holder.user_id);
            let (id, arrived) = (self.id(), self.arrived);
            tracer.tell(trace, &Request { id, method, route, status, error, user, bytes, complete, arrived });
        }
        tracing::info!(
            request_id = self.id(),
            trace_id = self.trace.as_ref().map(|trace| trace.id.to_string()),
            client = %self.client,
            http = version_number(self.version),
            method = method.map(Method::as_str),
            route,
            status = status.map(|status| status.as_u16()),
            error,
            user = session.map(|session| session.holder.user.as_str()),
            token = session.and_then(Session::token).map(TokenId::get),
            duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            bytes,
            complete,
            "request"
        );
    }
}

fn version_number(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte);
    // It is logged, so it must not be what somebody takes for a place to put their token.
    let token = bytes.windows(TOKEN_PREFIX.len()).any(|window| window == TOKEN_PREFIX.as_bytes());
    (1..=REQUEST_ID_MAX).contains(&bytes.len()) && bytes.iter().all(plain) && !token
}

/// A new id: what is random of this process, then a number.
pub(crate) fn new_request_id() -> HeaderValue {
    static PROCESS: LazyLock<String> = LazyLock::new(|| {
        // Without randomness the ids are still distinct within the process.
        format!("{:016x}", getrandom::u64().unwrap_or(0))
    });
    let mut id = [0; 28];
    let (process, number) = id.split_at_mut(PROCESS.len());
    process.copy_from_slice(PROCESS.as_bytes());
    write_hex(next_number().into(), number);
    HeaderValue::from_bytes(&id).expect("hexadecimal digits are a header value")
}

/// A number that this process has not used yet. A thread takes many at a time, so that it has to ask the others rarely.
fn next_number() -> u64 {
    const TAKEN_TOGETHER: u64 = 1_024;
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let exhausted = next.get().is_multiple_of(TAKEN_TOGETHER);
        let number = if exhausted { TAKEN.fetch_add(TAKEN_TOGETHER, Ordering::Relaxed) } else { next.get() };
        next.set(number + 1);
        number
    })
}

/// One request and its answer: whatever becomes of them, its end is logged and its connection is free again.
pub(crate) struct Exchange {
    context: Arc<Context>,
    status: Option<StatusCode>,
    error: Option<i32>,
    bytes: u64,
    complete: bool,
    working: Working,
}

impl Exchange {
    pub(crate) fn new(context: Arc<Context>, working: Working) -> Self {
        Self { context, status: None, error: None, bytes: 0, complete: false, working }
    }

    pub(crate) fn answered(&mut self, status: StatusCode, error: Option<i32>) {
        self.status = Some(status);
        self.error = error;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.context.end(self.working.app(), self.status, self.error, self.bytes, self.complete);
    }
}

/// An answer's body, which knows when it has ended.
pub(crate) struct TrackedBody {
    inner: Body,
    exchange: Exchange,
}

impl TrackedBody {
    pub(crate) fn new(inner: Body, mut exchange: Exchange) -> Self {
        exchange.complete = http_body::Body::is_end_stream(&inner);
        Self { inner, exchange }
    }

    /// Notes that not all of it reaches the client, although it was handed over.
    pub(crate) fn abandon(&mut self) {
        self.exchange.complete = false;
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
                self.exchange.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                self.exchange.complete = self.inner.is_end_stream();
            }
            Poll::Ready(None) => self.exchange.complete = true,
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
