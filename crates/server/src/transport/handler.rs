//! The interface between a listener and the service behind it.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use bytes::Bytes;
use hyper::header::HeaderName;
use hyper::{Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::connection_state::{CloseReason, Rejection};
use super::state::{Exceeded, InFlightRequest, ShutdownPhase, Transport};

/// Header field that every response of a handler has.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Handles the requests of a listener. It is never dropped: all threads would contend on a reference count.
pub(crate) trait Handler: Send + Sync + 'static {
    type Body: ResponseBody;

    fn handle(
        &'static self,
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

/// Marks, as an extension, a response that lasts until the client or the server ends it. It does not count towards the limit on
/// requests in flight, and a client that disconnects is noticed although nothing is sent.
#[derive(Clone, Copy)]
pub(crate) struct OpenEnded;

/// The client of a connection, and what serves it.
pub(super) struct Peer<H: 'static> {
    pub(super) client: IpAddr,
    pub(super) transport: &'static Transport,
    pub(super) handler: &'static H,
    pub(super) phase: watch::Receiver<ShutdownPhase>,
}

/// Properties of a request that its connection knows.
pub(crate) struct RequestInfo {
    /// The address of the connection, or the one that a trusted proxy names.
    pub(crate) client: IpAddr,
    pub(crate) in_flight: InFlightRequest,
    /// The reason to reject it without routing.
    pub(crate) rejection: Option<Rejection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEvent {
    LimitReached(Exceeded),
    HandshakeFailed,
    /// The server ended the connection.
    Aborted(CloseReason),
}

/// Limit on the buffers that the responses of a connection hold in memory, an extension of its requests; by default unlimited,
/// for a connection with one response at a time.
#[derive(Clone, Default)]
pub(crate) struct BufferBudget(Option<Arc<Semaphore>>);

impl BufferBudget {
    pub(super) fn new(buffers: usize) -> Self {
        Self(Some(Arc::new(Semaphore::new(buffers))))
    }

    /// Takes a permit for one buffer, if one is left.
    pub(crate) fn try_take(&self) -> Option<BufferPermit> {
        match &self.0 {
            None => Some(BufferPermit(None)),
            Some(buffers) => Arc::clone(buffers).try_acquire_owned().ok().map(|permit| BufferPermit(Some(permit))),
        }
    }
}

/// Permit to hold one buffer; by default one that belongs to no budget.
#[derive(Default)]
pub(crate) struct BufferPermit(Option<OwnedSemaphorePermit>);

impl BufferPermit {
    /// Binds the permit to a buffer. It is released when the last reference to the bytes is dropped.
    pub(crate) fn hold(self, bytes: Vec<u8>) -> Bytes {
        match self.0 {
            None => bytes.into(),
            Some(permit) => Bytes::from_owner(Buffer { bytes, _permit: permit }),
        }
    }
}

struct Buffer {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
