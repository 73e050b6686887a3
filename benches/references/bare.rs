//! Reference of the benchmark for HTTP: a minimal server with the same HTTP library that serves a list from memory, and parses
//! the body of a create and sends the plant back, without a store.
//!
//! `bare FILE` serves the bytes of FILE at `/plants` and prints its address; without tokens, log and deadlines.
//! `bare FILE AUTHORIZATIONS` has the duties of the service in their simplest form: its header fields, the hash of the token and
//! its session, the line of the access log, the deadline for the head of a request, and the read of a file that validates a
//! cached list. AUTHORIZATIONS has a value of `Authorization` on each line.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LINK, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tower_service::Service;

const LIST_HEADERS: [(HeaderName, &str); 2] =
    [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "private, no-cache")];
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that the service reads of the WAL index.
const VALIDATED_BYTES: usize = 96;
/// Time for which lines of the log wait for others, to be written together.
const LOG_DELAY: Duration = Duration::from_millis(50);

#[derive(Deserialize, Serialize)]
struct Plant {
    #[serde(rename = "id", skip_serializing)]
    _id: i64,
    name: String,
    tag: Option<String>,
}

async fn create(body: Bytes) -> Result<([(HeaderName, &'static str); 1], Vec<u8>), StatusCode> {
    let plant: Plant = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let response = serde_json::to_vec(&plant).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(CONTENT_TYPE, "application/json")], response))
}

/// Duties of the service for every request, which the bare server does not have.
struct Duties {
    /// The number of each user by the hash of the token.
    sessions: HashMap<[u8; 32], usize>,
    validated: File,
    requests: AtomicU64,
    log: Mutex<Vec<u8>>,
}

impl Duties {
    fn new(file: &str, authorizations: &str) -> Result<Self, Box<dyn Error>> {
        let lines = std::fs::read_to_string(authorizations)?;
        let tokens = lines.lines().filter_map(|line| line.strip_prefix("Bearer "));
        let sessions = tokens.enumerate().map(|(user, token)| (Sha256::digest(token).into(), user)).collect();
        Ok(Self { sessions, validated: File::open(file)?, requests: AtomicU64::new(0), log: Mutex::default() })
    }

    /// Returns the number of the user, if the token is known and the file can be read.
    fn authenticate(&self, headers: &HeaderMap) -> Option<usize> {
        let token = headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")?;
        let hash: [u8; 32] = Sha256::digest(token).into();
        self.validated.read_exact_at(&mut [0; VALIDATED_BYTES], 0).ok()?;
        self.sessions.get(&hash).copied()
    }

    /// Adds the header fields, and the line of the log.
    fn finish(&self, mut response: Response, method: &Method, user: usize, begun: Instant) -> Response {
        let id = format!("{:028x}", self.requests.fetch_add(1, Ordering::Relaxed));
        let status = response.status().as_u16();
        let micros = begun.elapsed().as_micros();
        let line = format!(
            r#"{{"time":"2026-01-01T00:00:00.000Z","level":"INFO","message":"request","request_id":"{id}","client":"127.0.0.1","http_version":"1.1","method":"{method}","route":"/plants","status":{status},"user":"user-{user}","token_id":{user},"duration_us":{micros},"bytes":0,"complete":true}}"#
        );
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(line.as_bytes());
        log.push(b'\n');
        drop(log);
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(ETAG, HeaderValue::from_static("W/\"0123456789abcdef0123456789abcdef\""));
        headers.insert(VARY, HeaderValue::from_static("Authorization"));
        let next = "</plants?limit=20&after=01000000000000000000000000>; rel=\"next\"";
        headers.insert(LINK, HeaderValue::from_static(next));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    fn write_log(&self) {
        loop {
            std::thread::park_timeout(LOG_DELAY);
            let lines = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
            let _ = std::io::stderr().write_all(&lines);
        }
    }
}

async fn respond(
    mut router: Router,
    duties: Option<Arc<Duties>>,
    request: hyper::Request<Incoming>,
) -> Result<Response, Infallible> {
    let request = request.map(Body::new);
    let Some(duties) = duties else { return router.call(request).await };
    let begun = Instant::now();
    let Some(user) = duties.authenticate(request.headers()) else {
        return Ok(StatusCode::UNAUTHORIZED.into_response());
    };
    let method = request.method().clone();
    let response = router.call(request).await?;
    Ok(duties.finish(response, &method, user, begun))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("name the file whose bytes are served")?;
    let authorizations = arguments.next();
    let duties = authorizations.map(|authorizations| Duties::new(&file, &authorizations)).transpose()?.map(Arc::new);
    if let Some(duties) = duties.clone() {
        std::thread::spawn(move || duties.write_log());
    }
    let list = Bytes::from(std::fs::read(file)?);
    let router = Router::new().route("/plants", get(async move || (LIST_HEADERS, list.clone())).post(create));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    #[expect(clippy::print_stdout, reason = "the benchmark waits for this line")]
    {
        println!("Listening on http://{}", listener.local_addr()?);
    }
    let mut http = http1::Builder::new();
    if duties.is_some() {
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    }
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (router, duties) = (router.clone(), duties.clone());
        let service = service_fn(move |request| respond(router.clone(), duties.clone(), request));
        tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}
