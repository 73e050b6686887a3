//! The interface between a listener and what answers its requests.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use hyper::{Request, Response};

use super::connection_limit::Exceeded;
use super::connection_state::CloseReason;
use super::in_flight::InFlightRequest;
use super::rejection::Rejection;

/// The header field that every response of a handler has. By it, responses that the HTTP library writes on its own are
/// recognised.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// Answers the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    type Body: ResponseBody;

    /// Returns the handler for another connection.
    fn for_connection(&self) -> Arc<Self>;

    fn handle(
        self: Arc<Self>,
        request: Request<Body>,
        info: RequestInfo,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Returns the response to bytes that never became a request, as HTTP/1.1 with `Connection: close`.
    fn reject(&self, rejection: Rejection, client: IpAddr, since: Instant) -> Vec<u8>;

    fn observe(&self, event: ConnectionEvent);
}

/// The body of a response.
pub(crate) trait ResponseBody:
    http_body::Body<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static
{
    /// Records that not all of it reaches the client, although it was handed over.
    fn abandon(&mut self);
}

/// A request as its connection sees it.
pub(crate) struct RequestInfo {
    pub(crate) client: IpAddr,
    pub(crate) in_flight: InFlightRequest,
    /// The reason to reject it before it is routed.
    pub(crate) rejection: Option<Rejection>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionEvent {
    Accepted,
    Closed,
    LimitReached(Exceeded),
    HandshakeFailed,
    /// The server ended the connection.
    Ended(CloseReason),
}
