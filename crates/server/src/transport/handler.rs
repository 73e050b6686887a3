//! The interface between a listener and the service behind it.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use hyper::header::HeaderName;
use hyper::{Request, Response};

use super::connection_limit::Exceeded;
use super::connection_state::CloseReason;
use super::in_flight::InFlightRequest;
use super::rejection::Rejection;

/// Header field that every response of a handler has.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Handles the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    type Body: ResponseBody;

    /// Returns a handler for a new connection.
    fn for_connection(&self) -> Arc<Self>;

    fn handle(
        self: Arc<Self>,
        request: Request<Body>,
        info: RequestInfo,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Returns the response to input that is not a valid request, as HTTP/1.1 with `Connection: close`.
    fn reject(&self, rejection: Rejection, client: IpAddr, since: Instant) -> Vec<u8>;

    fn observe(&self, event: ConnectionEvent);
}

pub(crate) trait ResponseBody:
    http_body::Body<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static
{
    /// Records that the client does not receive all of the body.
    fn abandon(&mut self);
}

/// Properties of a request that its connection knows.
pub(crate) struct RequestInfo {
    /// The address of the connection, or the one that a trusted proxy names.
    pub(crate) client: IpAddr,
    pub(crate) in_flight: InFlightRequest,
    /// The reason to reject it without routing.
    pub(crate) rejection: Option<Rejection>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionEvent {
    Accepted,
    Closed,
    LimitReached(Exceeded),
    HandshakeFailed,
    /// The server ended the connection.
    Aborted(CloseReason),
}
