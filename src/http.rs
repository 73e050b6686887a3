//! The service over HTTP: the route table, and what every request goes through.
//!
//! A request: [`serve`] takes its connection, [`Service::answer`] gives it an id and a line in the log, the router finds
//! its handler, the handler's arguments authenticate and read it, the store does it, and one `?` brings back what went
//! wrong as an [`error::ApiError`].

mod auth;
mod collections;
mod connection;
mod context;
mod cors;
mod error;
mod extract;
mod http2;
mod idempotency;
mod limits;
mod listing;
mod oidc;
mod plants;
mod probes;
mod rate;
mod serve;
mod sessions;
mod socket;
mod tls;
mod wire;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use futures_util::FutureExt as _;
use hyper::header::{ALLOW, CONNECTION, HeaderMap, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, StatusCode, Version};
use tower_service::Service as _;

use self::auth::{AnyScope, Caller, check_host};
use self::context::{Context, Exchange, REQUEST_ID, TrackedBody};
use self::error::{ApiError, Logged};
use self::limits::{Admission, ClientAddress};
use self::listing::PageCache;
use self::rate::{RateLimiter, UserLimit};
use self::serve::{Activity, Working};
use self::sessions::Sessions;
use self::wire::Line;
use crate::store::Store;

pub use self::cors::{Cors, OriginFault};
pub use self::limits::Limits;
pub use self::oidc::{Issuer, IssuerUrl, IssuerUrlFault};
pub use self::rate::{Quota, Rate, RateFault};
pub use self::serve::{Stopped, serve};
pub use self::tls::{Renewal, Tls, TlsFault};

/// What all requests share.
pub struct App {
    store: Arc<Store>,
    limits: Arc<Limits>,
    sessions: Sessions,
    pages: PageCache,
    reads: Admission,
    writes: Admission,
    auth_failures: RateLimiter<ClientAddress>,
    user_limit: Option<UserLimit>,
    cors: Option<Cors>,
    activity: Activity,
}

impl App {
    /// A service on this store, within these limits, that accepts the tokens of this issuer beside its own, for pages of
    /// these origins.
    pub fn new(store: Arc<Store>, limits: Limits, issuer: Option<Issuer>, cors: Option<Cors>) -> Arc<Self> {
        let auth_failures = Quota::new(Rate::per_second(limits.auth_failures_per_second), limits.auth_failures_burst);
        Arc::new(Self {
            sessions: Sessions::new(issuer),
            pages: PageCache::new(if store.sees_every_write() { limits.list_cache_bytes } else { 0 }),
            reads: Admission::new(&limits),
            writes: Admission::new(&limits),
            auth_failures: RateLimiter::new(auth_failures),
            user_limit: limits.user_quota.map(UserLimit::new),
            cors,
            activity: Activity::default(),
            store,
            limits: Arc::new(limits),
        })
    }

    fn draining(&self) -> bool {
        self.activity.draining()
    }

    /// The origin whose pages may read the answer to a request with these headers.
    fn allowed_origin(&self, request: &HeaderMap) -> Option<HeaderValue> {
        self.cors.as_ref()?.allowed(request)
    }

    /// What every answer carries.
    fn common_headers(&self, headers: &mut HeaderMap, context: &Context, allowed_origin: Option<HeaderValue>) {
        headers.insert(HeaderName::from_static(REQUEST_ID), context.id.clone());
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(limit) = &self.user_limit {
            limit.tell(headers, context.level());
        }
        if let Some(cors) = &self.cors {
            cors.tell(headers, allowed_origin);
        }
    }
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/plants", get(plants::list).post(plants::create))
        .route("/plants/{id}", delete(plants::delete))
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

/// The route of a path as the log names it.
fn route_of(path: &str) -> &'static str {
    match path {
        "/plants" => "/plants",
        "/livez" => "/livez",
        "/readyz" => "/readyz",
        _ if path.strip_prefix("/plants/").is_some_and(|id| !id.is_empty() && !id.contains('/')) => "/plants/{id}",
        _ => "-",
    }
}

/// Whoever has no token does not learn which addresses exist either.
async fn no_route(_: Caller<AnyScope>) -> ApiError {
    ApiError::NoRoute
}

async fn method_not_allowed(_: Caller<AnyScope>) -> ApiError {
    ApiError::MethodNotAllowed
}

/// What answers the requests of a connection.
#[derive(Clone)]
struct Service {
    app: Arc<App>,
    router: Router,
}

impl Service {
    fn new(app: Arc<App>) -> Self {
        Self { router: router(Arc::clone(&app)), app }
    }

    /// Answers a request, on the line of its connection if that has one.
    async fn answer(
        mut self,
        request: Request<Body>,
        client: IpAddr,
        line: Option<&Arc<Line>>,
    ) -> hyper::Response<TrackedBody> {
        let working = Working::begin(&self.app, line);
        let arrived = working.arrived;
        let (mut parts, body) = request.into_parts();
        let route = route_of(parts.uri.path());
        let method = Some(parts.method.clone());
        let context = Arc::new(Context::new(&parts.headers, client, arrived, parts.version, method, route));
        let mut exchange = Exchange::new(Arc::clone(&context), working);
        parts.extensions.insert(Arc::clone(&context));
        let takes_a_body = parts.method == Method::POST;
        let may_be_unread = !http_body::Body::is_end_stream(&body);
        let refusal = if parts.version == Version::HTTP_2 { http2::refusal(&parts, &self.app) } else { None };
        let allowed_origin = self.app.allowed_origin(&parts.headers);

        let mut response = if let Some(refusal) = refusal {
            refusal.into_response()
        } else if allowed_origin.is_some() && cors::is_preflight(&parts) {
            check_host(&parts).map(|()| cors::preflight()).into_response()
        } else {
            self.handle(Request::from_parts(parts, body)).await
        };

        let logged = response.extensions_mut().remove::<Logged>();
        if let Some(Logged { number, detail: Some(detail) }) = &logged {
            tracing::error!(request_id = context.id(), error = number, detail, "request failed");
        }
        if let Some(line) = line
            && may_be_unread
            && (!response.status().is_success() || !takes_a_body)
        {
            line.expect_unread();
        }
        if response.status() != StatusCode::METHOD_NOT_ALLOWED {
            // The router adds it to whatever its fallback answers.
            response.headers_mut().remove(ALLOW);
        }
        if self.app.draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.app.common_headers(response.headers_mut(), &context, allowed_origin);
        exchange.answered(response.status(), logged.map(|logged| logged.number));
        response.map(|body| TrackedBody::new(body, exchange))
    }

    async fn handle(&mut self, request: Request<Body>) -> Response {
        match AssertUnwindSafe(self.router.call(request)).catch_unwind().await {
            Ok(Ok(response)) => response,
            // The panic itself is logged where it happens.
            Err(_panic) => ApiError::Internal("panic".to_owned()).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::store::{OpenOptions, StoreUrl};

    async fn panicking() {
        panic!("{}", "something secret");
    }

    /// No request is known to make the service panic; should one do it, it is an answer like any other, and the
    /// connection goes on.
    #[tokio::test]
    async fn a_panic_is_a_500_in_our_shape() {
        let directory = tempfile::tempdir().expect("a directory");
        let url = StoreUrl::Sqlite(directory.path().join("plants.db"));
        let patience = Duration::from_secs(5);
        let options =
            OpenOptions { create: true, migrate: true, write_queue: 1, readers: 1, patience, timeout: patience };
        let (store, _) = Store::open(&url, options).await.expect("a store");
        let quota = Quota::new(Rate::per_second(1), 1);
        let limits = Limits { user_quota: Some(quota), ..Limits::default() };
        let cors = Cors::parse(&["*".to_owned()]).expect("every origin");
        let app = App::new(Arc::new(store), limits, None, Some(cors));
        let router = router(Arc::clone(&app)).route("/panic", get(panicking));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(serve::serve_with(listener, None, Service { app, router }, std::future::pending()));

        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.write_all(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("a request");
        stream.write_all(b"GET /livez HTTP/1.0\r\nHost: x\r\n\r\n").await.expect("another");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.expect("their answers");
        assert!(answers.starts_with("HTTP/1.1 500 "), "{answers}");
        assert!(answers.contains(r#"{"error":50000,"message":"internal error: the request id finds it in the log"}"#));
        assert!(answers.contains("x-request-id: ") && answers.contains("content-type: application/json"));
        let panicked = answers.split("HTTP/1.").nth(1).expect("the first answer");
        assert!(panicked.contains("ratelimit-policy: ") && panicked.contains("access-control-allow-origin: *"));
        assert!(answers.ends_with(r#"{"status":"live"}"#), "{answers}");
        assert!(!answers.contains("secret"));
    }
}
