//! Baseline for `scripts/lists`: a minimal server with the same HTTP library that serves a list from memory, without tokens and
//! without a store.
//!
//! `bare FILE` serves the bytes of FILE at `/plants` and prints its address.

use axum::Router;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tower_service::Service;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("name the file whose bytes are served")?;
    let list = bytes::Bytes::from(std::fs::read(file)?);
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "private, no-cache")];
    let router = Router::new().route("/plants", get(async move || (headers, list.clone())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    #[expect(clippy::print_stdout, reason = "the script that starts it waits for this line")]
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
