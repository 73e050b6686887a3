//! The service over HTTP: the route table, and what every request goes through.
//!
//! A request: [`serve`] takes its connection, [`Service::answer`] gives it an id and a line in the log, the router finds
//! its handler, the handler's arguments authenticate and read it, the store does it, and one `?` brings back what went
//! wrong as an [`error::ApiError`].

mod auth;
mod collections;
mod connection;
mod connection_limit;
mod console;
mod context;
mod cors;
mod date;
mod docs;
mod error;
mod extract;
mod fixed;
mod hex;
mod http2;
mod idempotency;
mod limits;
mod listing;
mod metrics;
mod negotiation;
mod oidc;
mod openapi;
mod page_budget;
mod plants;
mod probes;
mod rate;
mod readiness;
mod scrape;
mod serve;
mod sessions;
mod shedding;
mod socket;
mod tls;
mod traces;
mod wire;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, StatusCode, Version};
use tower_service::Service as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::auth::{AnyScope, Caller, check_host};
use self::context::{Context, Exchange, REQUEST_ID, TrackedBody};
use self::error::{ApiError, Logged};
use self::limits::{Admission, ClientAddress};
use self::listing::PageCache;
use self::metrics::Metrics;
use self::rate::{RateLimiter, UserLimit};
use self::readiness::Readiness;
use self::serve::{Activity, Working};
use self::sessions::Sessions;
use self::shedding::{RejectionDelay, Scheduler};
use self::traces::{Trace, Tracer};
use self::wire::Line;
use plantstore_store::Store;
use plantstore_telemetry::metrics::{Counter, Page};

pub use self::cors::{Cors, OriginFault};
pub use self::limits::Limits;
pub use self::oidc::{Issuer, IssuerUrl, IssuerUrlFault};
pub use self::openapi::openapi;
pub use self::rate::{Quota, Rate, RateFault};
pub use self::scrape::serve_metrics;
pub use self::serve::{Stopped, serve};
pub use self::tls::{Renewal, Tls, TlsFault};
pub use self::traces::{Collector, Endpoint, EndpointFault, SampleRatio, SampleRatioFault};

/// What the service is to be, beside its store.
pub struct Settings {
    /// Of everything.
    pub limits: Limits,
    /// Whose tokens are accepted beside our own.
    pub issuer: Option<Issuer>,
    /// The origins whose pages may call the service.
    pub cors: Option<Cors>,
    /// Whether the web console is served.
    pub console: bool,
    /// Who is told of requests.
    pub collector: Option<Collector>,
}

/// What all requests share.
pub struct App {
    store: Arc<Store>,
    limits: Arc<Limits>,
    sessions: Sessions,
    readiness: Readiness,
    pages: PageCache,
    reads: Admission,
    reads_shed: Counter,
    writes_shed: Counter,
    scheduler: Scheduler,
    auth_failures: RateLimiter<ClientAddress>,
    user_limit: Option<UserLimit>,
    cors: Option<Cors>,
    console: bool,
    activity: Activity,
    surface: &'static Surface,
    metrics: Metrics,
    tracer: Option<Tracer>,
}

/// What is served on a listener.
struct Surface {
    /// As the log and the metrics name them; the last is for what is none of them.
    routes: &'static [&'static str],
    /// The one of a path.
    route_of: fn(&str) -> &'static str,
}

const PLANTS: Surface = Surface {
    routes: &[
        "/plants",
        "/plants/{id}",
        "/livez",
        "/readyz",
        "/openapi.json",
        "/docs",
        "/docs/{file}",
        "/",
        "/console/{file}",
        "/favicon.ico",
        "-",
    ],
    route_of,
};

impl App {
    /// A service on this store, with these settings. It stays until the process ends, so that every request can have it
    /// for the asking: counting who has it would make all threads write to one place.
    pub fn new(store: Arc<Store>, settings: Settings) -> &'static Self {
        let Settings { limits, issuer, cors, console, collector } = settings;
        let (sessions, tracer) = (Sessions::new(issuer), collector.map(Tracer::start));
        Box::leak(Box::new(Self { sessions, cors, console, tracer, ..Self::on_surface(&PLANTS, store, limits) }))
    }

    /// Hands what waits for the collector to it; to be called when no request is at work any more.
    pub async fn flush_traces(&self) {
        if let Some(tracer) = &self.tracer {
            tracer.finish().await;
        }
    }

    /// What serves this surface, for tokens of our own and pages of our own origin.
    fn on_surface(surface: &'static Surface, store: Arc<Store>, limits: Limits) -> Self {
        let auth_failures = Quota::new(Rate::per_second(limits.auth_failures_per_second), limits.auth_failures_burst);
        Self {
            sessions: Sessions::new(None),
            readiness: Readiness::default(),
            pages: PageCache::new(if store.caches_versions() { limits.list_cache_bytes } else { 0 }),
            reads: Admission::new(&limits),
            reads_shed: Counter::default(),
            writes_shed: Counter::default(),
            scheduler: Scheduler::current(),
            auth_failures: RateLimiter::new(auth_failures),
            user_limit: limits.user_quota.map(UserLimit::new),
            cors: None,
            console: false,
            activity: Activity::default(),
            surface,
            metrics: Metrics::new(surface.routes),
            tracer: None,
            store,
            limits: Arc::new(limits),
        }
    }

    /// Writes what the service counts, but for what the store does.
    fn write_metrics(&self, page: &mut Page) {
        self.metrics.write(page);
        self.activity.write_metrics(page);
        self.reads.write_metrics(page);
        page.counter(
            "plantstore_requests_shed_total",
            "Requests rejected with 503 because there was no capacity for them.",
        )
        .sample(&[("kind", "read".into())], self.reads.shed() + self.reads_shed.get())
        .sample(&[("kind", "write".into())], self.writes_shed.get());
        self.pages.write_metrics(page);
        self.sessions.write_metrics(page);
        if let Some(tracer) = &self.tracer {
            tracer.write_metrics(page);
        }
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

/// The operations: what is here is in the OpenAPI document, and the other way round.
fn routes() -> OpenApiRouter<&'static App> {
    OpenApiRouter::new()
        .routes(routes!(plants::list, plants::create))
        .routes(routes!(plants::delete))
        .routes(routes!(probes::livez))
        .routes(routes!(probes::readyz))
        .routes(routes!(docs::openapi))
}

fn router(app: &'static App) -> Router {
    let console = if app.console { console::routes() } else { Router::new() };
    Router::from(routes())
        .merge(docs::pages())
        .merge(console)
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

/// The route of a path as [`PLANTS`] lists it.
fn route_of(path: &str) -> &'static str {
    match path {
        "/plants" => "/plants",
        "/livez" => "/livez",
        "/readyz" => "/readyz",
        "/openapi.json" => "/openapi.json",
        "/docs" | "/docs/" => "/docs",
        "/" => "/",
        "/favicon.ico" => "/favicon.ico",
        _ if path.starts_with("/console/") => "/console/{file}",
        _ if path.strip_prefix("/plants/").is_some_and(|id| !id.is_empty() && !id.contains('/')) => "/plants/{id}",
        _ if path.starts_with("/docs/") => "/docs/{file}",
        _ => "-",
    }
}

/// Whoever has no token does not learn which addresses exist either.
async fn no_route(_: Caller<AnyScope>) -> ApiError {
    ApiError::NoRoute
}

/// The router adds the methods afterwards, as `Allow`; [`name_methods`] puts them into the error.
async fn method_not_allowed(_: Caller<AnyScope>) -> ApiError {
    ApiError::MethodNotAllowed(String::new())
}

/// Names the methods of an address in the error about a wrong one. The router adds `Allow` to every response of its fallback;
/// the others must not have it.
fn name_methods(mut response: Response) -> Response {
    let allowed = response.headers_mut().remove(ALLOW);
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let methods = allowed.as_ref().and_then(|methods| methods.to_str().ok()).unwrap_or_default();
    ApiError::MethodNotAllowed(methods.to_owned()).into_response()
}

/// What answers the requests of a connection.
struct Service {
    app: &'static App,
    /// Each connection has one of its own, and the lock is held for no longer than a call takes to begin: it needs the router
    /// to itself, and one for each request would again be counted in one place.
    router: Mutex<Router>,
    rejections: RejectionDelay,
}

impl Service {
    fn new(app: &'static App, router: Router) -> Self {
        Self { app, router: Mutex::new(router), rejections: RejectionDelay::default() }
    }

    fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for another connection.
    fn fork(&self) -> Arc<Self> {
        Arc::new(Self::new(self.app, self.router().clone()))
    }

    /// Answers a request, on the line of its connection if that has one.
    async fn answer(
        self: Arc<Self>,
        request: Request<Body>,
        client: IpAddr,
        line: Option<&Arc<Line>>,
    ) -> hyper::Response<TrackedBody> {
        let working = Working::begin(self.app, line);
        let arrived = working.arrived;
        let (mut parts, body) = request.into_parts();
        let route = (self.app.surface.route_of)(parts.uri.path());
        let trace = Trace::of(self.app.tracer.as_ref(), parts.version, &parts.headers);
        let method = Some(parts.method.clone());
        let context = Context::new(&parts.headers, client, arrived, parts.version, method, route);
        let context = Arc::new(context.within(trace));
        let mut exchange = Exchange::new(Arc::clone(&context), working);
        parts.extensions.insert(Arc::clone(&context));
        let (to_head, takes_a_body) = (parts.method == Method::HEAD, parts.method == Method::POST);
        let may_be_unread = !http_body::Body::is_end_stream(&body);
        let refusal = match parts.version {
            Version::HTTP_2 => http2::refusal(&parts, self.app),
            _ => wire::check_transfer_encoding(&parts.headers).err(),
        };
        let allowed_origin = self.app.allowed_origin(&parts.headers);
        let is_navigation = self.app.console && console::is_navigation(&parts);

        let mut response = if let Some(refusal) = refusal {
            refusal.into_response()
        } else if allowed_origin.is_some() && cors::is_preflight(&parts) {
            check_host(&parts).map(|()| cors::preflight()).into_response()
        } else {
            let request = Request::from_parts(parts, body);
            match context.notes() {
                Some(notes) => notes.during(self.handle(request)).await,
                None => self.handle(request).await,
            }
        };

        if is_navigation && response.status() == StatusCode::UNAUTHORIZED {
            response = console::no_page();
        }
        let logged = response.extensions_mut().remove::<Logged>();
        if let Some(Logged { number, detail: Some(detail), .. }) = &logged {
            tracing::error!(request_id = context.id(), error = number, detail, "request failed");
        }
        if logged.as_ref().is_some_and(|logged| logged.overloaded) {
            // In a box, because it is rare, and so what every request carries around stays small.
            Box::pin(self.rejections.wait()).await;
        }
        if let Some(line) = line
            && may_be_unread
            && (!response.status().is_success() || !takes_a_body)
        {
            line.expect_unread();
        }
        if self.app.draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.app.common_headers(response.headers_mut(), &context, allowed_origin);
        response.headers_mut().insert(DATE, date::now());
        exchange.answered(response.status(), logged.map(|logged| logged.number));
        if to_head {
            leave_out_body(&mut response);
        }
        response.map(|body| TrackedBody::new(body, exchange))
    }

    async fn handle(&self, request: Request<Body>) -> Response {
        let handled = self.router().call(request);
        match AssertUnwindSafe(handled).catch_unwind().await {
            Ok(Ok(response)) => name_methods(response),
            // The panic itself is logged where it happens.
            Err(_panic) => ApiError::Internal("panic".to_owned()).into_response(),
        }
    }
}

/// Makes of an answer the one to `HEAD`, as the router does with its own: what is never sent counts as cut otherwise.
fn leave_out_body(response: &mut Response) {
    let body = std::mem::take(response.body_mut());
    if let Some(length) = http_body::Body::size_hint(&body).exact().filter(|length| *length > 0) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use plantstore_store::{OpenOptions, StoreUrl};

    #[test]
    fn every_route_is_the_route_of_a_path() {
        for route in PLANTS.routes {
            assert_eq!((PLANTS.route_of)(route), *route);
        }
    }

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
        let options = OpenOptions {
            create: true,
            migrate: true,
            write_queue: 1,
            readers: 1,
            operator_timeout: patience,
            timeout: patience,
            await_server: false,
        };
        let (store, _) = Store::open(&url, options).await.expect("a store");
        let quota = Quota::new(Rate::per_second(1), 1);
        let limits = Limits { user_quota: Some(quota), ..Limits::default() };
        let cors = Cors::parse(&["*".to_owned()]).expect("every origin");
        let cors = Some(cors);
        let settings = Settings { limits, issuer: None, cors, console: true, collector: None };
        let app = App::new(Arc::new(store), settings);
        let router = router(app).route("/panic", get(panicking));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(serve::serve_with(listener, None, Service::new(app, router), std::future::pending()));

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
        // Before its file goes: a store whose file is deleted ends the process.
        app.store.close().await;
    }
}
