//! Reference of the benchmark for HTTP: a minimal server with the same HTTP library that serves a list from memory, and parses
//! the body of a create and sends the plant back, without tokens and without a store.
//!
//! `bare FILE` serves the bytes of FILE at `/plants` and prints its address.

use axum::Router;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tower_service::Service;

const LIST_HEADERS: [(HeaderName, &str); 2] =
    [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "private, no-cache")];

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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("name the file whose bytes are served")?;
    let list = Bytes::from(std::fs::read(file)?);
    let router = Router::new().route("/plants", get(async move || (LIST_HEADERS, list.clone())).post(create));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    #[expect(clippy::print_stdout, reason = "the benchmark waits for this line")]
    {
        println!("Listening on http://{}", listener.local_addr()?);
    }
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let router = router.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| router.clone().call(request.map(Body::new)));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
