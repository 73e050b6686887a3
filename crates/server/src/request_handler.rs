//! Handling of every request: its context, early rejections, the call of its handler, and common header fields.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Version};

use crate::api::{Api, ApiError, Cors, ErrorReport, RequestState, is_preflight, preflight, probes};
use crate::auth::check_host;
use crate::observe::{Context, Exchange, Observe, Outcome, Trace, TrackedBody};
use crate::transport::{ConnectionEvent, Handler, REQUEST_ID, Rejection, RequestInfo};
use crate::web;

/// The label of paths without a route.
pub(crate) const NO_ROUTE: &str = "-";
/// A year, for this host alone: other hosts of the domain may have no TLS.
const HSTS: &str = "max-age=31536000";

/// Routes a request and calls its handler.
pub(crate) type Respond = Box<dyn Fn(Request<Body>, RequestState) -> BoxFuture<'static, Response> + Send + Sync>;

/// Handles the requests of a listener.
pub(crate) struct RequestHandler {
    pub(crate) api: &'static Api,
    pub(crate) observe: Observe,
    pub(crate) cors: Option<Cors>,
    pub(crate) console: bool,
    /// Tell browsers to use TLS only.
    pub(crate) hsts: bool,
    /// Returns the label of a path's route.
    pub(crate) label_of: fn(&str) -> &'static str,
    /// Returns true for the label of a route whose successful requests are logged at debug level.
    pub(crate) is_routine: fn(&str) -> bool,
    pub(crate) respond: Respond,
}

impl Handler for RequestHandler {
    type Body = TrackedBody;

    /// Everything that needs the request is done before the future is created, so that it is small.
    fn handle(&'static self, request: Request<Body>, info: RequestInfo) -> impl Future<Output = Response<TrackedBody>> {
        let RequestInfo { client, in_flight, rejection } = info;
        let arrived = in_flight.arrived;
        let (parts, body) = request.into_parts();
        let route = (self.label_of)(parts.uri.path());
        let trace = Trace::of(self.observe.tracer.as_ref(), &parts.headers, arrived);
        let method = Some(parts.method.clone());
        let mut context = Context::new(&parts.headers, client, arrived, parts.version, method, route);
        context.trace = trace;
        context.routine = (self.is_routine)(route);
        let context = Arc::new(context);
        let exchange = Exchange::new(Arc::clone(&context), &self.observe, in_flight);
        let rejection = rejection.filter(|rejection| !is_served_anyway(*rejection, parts.uri.path()));
        let allowed_origin = self.allowed_origin(&parts.headers);
        let is_head = parts.method == Method::HEAD;
        let is_navigation = self.console && web::is_navigation(&parts);
        let response: BoxFuture<'static, Response> = if let Some(rejection) = rejection {
            Box::pin(ready(ApiError::from(rejection).into_response()))
        } else if allowed_origin.is_some() && is_preflight(&parts) {
            Box::pin(ready(check_host(&parts).map(|()| preflight()).into_response()))
        } else {
            self.respond(Request::from_parts(parts, body), context)
        };
        async move {
            // A panic is logged where it happens.
            let responded = AssertUnwindSafe(response).catch_unwind().await;
            let mut response =
                responded.unwrap_or_else(|_panic| ApiError::Internal("panic".to_owned()).into_response());
            let mut report = response.extensions_mut().remove::<ErrorReport>();
            if is_navigation && report.as_ref().is_some_and(ErrorReport::is_unauthorized) {
                response = web::not_found();
                report = response.extensions_mut().remove();
            }
            let context = exchange.context();
            if let Some(ErrorReport { code, detail: Some(detail), .. }) = &report {
                tracing::error!(request_id = context.id(), error = code, detail, "request failed");
            }
            if report.as_ref().is_some_and(|report| report.overloaded) {
                // Boxed, because it is rare, and so the future of every request stays small.
                Box::pin(self.api.rejection_delay.wait(context)).await;
            }
            if self.api.transport.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            self.add_common_headers(response.headers_mut(), context, allowed_origin);
            response.headers_mut().insert(DATE, date_header());
            if is_head {
                remove_body(&mut response);
            }
            exchange.respond(response, report.map(|report| report.code))
        }
    }

    fn reject(&self, rejection: Rejection, client: IpAddr, since: Instant) -> Vec<u8> {
        let error = ApiError::from(rejection);
        let (status, mut headers, body) = error.render();
        let request = HeaderMap::new();
        let context = Context::new(&request, client, since, Version::HTTP_11, None, NO_ROUTE);
        self.add_common_headers(&mut headers, &context, self.allowed_origin(&request));
        if rejection == Rejection::NotEncrypted {
            // RFC 6797 forbids it in a response without encryption.
            headers.remove(STRICT_TRANSPORT_SECURITY);
        }
        let mut head = format!("HTTP/1.1 {status}\r\n");
        for (name, value) in headers.iter().filter(|(name, _)| *name != CONNECTION) {
            // Writing to a string does not fail, and our header values are text.
            let _ = write!(head, "{name}: {}\r\n", value.to_str().unwrap_or_default());
        }
        let date = date_header();
        let date = date.to_str().unwrap_or_default();
        let _ = write!(head, "connection: close\r\ncontent-length: {}\r\ndate: {date}\r\n\r\n", body.len());
        let outcome =
            Outcome { status: Some(status), error: Some(error.code()), bytes: body.len() as u64, complete: true };
        context.end(&self.observe, &outcome);
        [head.as_bytes(), &body].concat()
    }

    fn observe(&self, event: ConnectionEvent) {
        self.observe.connections.record(event);
    }
}

impl RequestHandler {
    /// Calls the handler of a request, and records the spans of the request if its trace is recorded.
    fn respond(&self, request: Request<Body>, context: Arc<Context>) -> BoxFuture<'static, Response> {
        let recorder = context.recorder().cloned();
        let response = (self.respond)(request, RequestState { api: self.api, context });
        match recorder {
            Some(recorder) => Box::pin(async move { recorder.during(response).await }),
            None => response,
        }
    }

    /// Returns the origin whose pages may read the response to a request with these headers.
    fn allowed_origin(&self, request: &HeaderMap) -> Option<HeaderValue> {
        self.cors.as_ref()?.allowed(request)
    }

    /// Adds the header fields of every response.
    fn add_common_headers(&self, headers: &mut HeaderMap, context: &Context, allowed_origin: Option<HeaderValue>) {
        headers.insert(REQUEST_ID, context.id.clone());
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.hsts {
            headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HSTS));
        }
        if let Some(quota) = &self.api.auth.user_quota {
            quota.add_headers(headers, context);
        }
        if let Some(cors) = &self.cors {
            cors.add_headers(headers, allowed_origin);
        }
    }
}

/// Checks that a rejection does not concern this path: probes are served however many requests are in flight.
fn is_served_anyway(rejection: Rejection, path: &str) -> bool {
    rejection == Rejection::Overloaded && probes::PATHS.contains(&path)
}

/// Removes the body of a response to `HEAD`. It is never sent, and the access log would report the response as incomplete.
fn remove_body(response: &mut Response) {
    let body = std::mem::take(response.body_mut());
    if let Some(length) = http_body::Body::size_hint(&body).exact().filter(|length| *length > 0) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

thread_local! {
    /// The last value of `Date` of this thread, with its second since the epoch: formatting is slower than reading the clock.
    static LAST_DATE: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// Returns the value of `Date` (RFC 9110, 5.6.7). The HTTP library caches it until the clock reaches the next second: after the
/// clock is set back, all its responses would be dated in the future for that long. Here the value is rendered again whenever the
/// second differs.
fn date_header() -> HeaderValue {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST_DATE.with_borrow_mut(|last| match last {
        Some((rendered, value)) if *rendered == second => value.clone(),
        _ => {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            let value = HeaderValue::try_from(text).expect("a date is a header value");
            *last = Some((second, value.clone()));
            value
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::handler::Handler as _;
    use plantstore_store::{OpenOptions, SchemaChange, Store, StoreUrl};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::auth::Auth;
    use crate::options::{AuthLimits, defaults};
    use crate::server::leak;
    use crate::transport::{self, Transport, TrustedProxies};

    async fn store(file: std::path::PathBuf) -> Arc<Store> {
        let options = OpenOptions::of_command(SchemaChange::Create, Duration::from_secs(5));
        let opened = Store::open(&StoreUrl::Sqlite(file), options).await.expect("a store");
        Arc::new(opened.store)
    }

    /// No request is known to make the service panic; should one do it, it gets a response like any other, and the connection
    /// goes on.
    #[tokio::test]
    async fn a_panic_is_a_500_with_the_usual_body_and_headers() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = store(directory.path().join("plants.db")).await;
        let limits = AuthLimits { rate_limit: "1/s".parse().ok(), ..defaults() };
        let auth = Auth::new(Arc::clone(&store), None, &limits);
        let transport = leak(Transport::new(defaults(), TrustedProxies::default()));
        let api = leak(Api::new(Arc::clone(&store), transport, auth, defaults()));
        let handler = RequestHandler {
            api,
            observe: Observe::new(vec![NO_ROUTE], None),
            cors: Cors::parse(&["*".to_owned()]).ok(),
            console: true,
            hsts: true,
            label_of: |_| NO_ROUTE,
            is_routine: |_| false,
            respond: Box::new(|request, state| match request.uri().path() {
                "/panic" => Box::pin(async { panic!("{}", "something secret") }),
                _ => probes::livez.call(request, state),
            }),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(transport::serve(listener, None, transport, leak(handler), std::future::pending()));

        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("a request");
        stream.write_all(b"GET /livez HTTP/1.0\r\nHost: x\r\n\r\n").await.expect("another");
        let mut responses = String::new();
        stream.read_to_string(&mut responses).await.expect("their responses");
        assert!(responses.starts_with("HTTP/1.1 500 "), "{responses}");
        assert!(
            responses
                .contains(r#"{"error":50000,"message":"internal error: search the server log for the request id"}"#)
        );
        assert!(responses.contains("x-request-id: ") && responses.contains("content-type: application/json"));
        let panicked = responses.split("HTTP/1.").nth(1).expect("the first response");
        assert!(panicked.contains("ratelimit-policy: ") && panicked.contains("access-control-allow-origin: *"));
        assert!(panicked.contains("strict-transport-security: max-age=31536000\r\n"));
        assert!(responses.ends_with(r#"{"status":"live"}"#), "{responses}");
        assert!(!responses.contains("secret"));
        // Before its file is deleted: a store whose file disappears ends the process.
        store.close().await;
    }
}
