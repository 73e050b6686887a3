//! Guard of a request and its response body. It ends the context of the request when the response has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::StatusCode;

use super::context::Context;
use super::state::Observe;
use crate::transport::{InFlightRequest, ResponseBody};

/// A request and its response. Dropping it logs the end and frees the connection for the next request.
pub(crate) struct Exchange {
    context: Arc<Context>,
    status: Option<StatusCode>,
    error: Option<i32>,
    bytes: u64,
    complete: bool,
    observe: &'static Observe,
    _in_flight: InFlightRequest,
}

impl Exchange {
    pub(crate) fn new(context: Arc<Context>, observe: &'static Observe, in_flight: InFlightRequest) -> Self {
        Self { context, status: None, error: None, bytes: 0, complete: false, observe, _in_flight: in_flight }
    }

    pub(crate) fn set_outcome(&mut self, status: StatusCode, error: Option<i32>) {
        self.status = Some(status);
        self.error = error;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.context.end(self.observe, self.status, self.error, self.bytes, self.complete);
    }
}

/// The body of a response, which records its size and its end.
pub(crate) struct TrackedBody {
    inner: Body,
    exchange: Exchange,
}

impl TrackedBody {
    pub(crate) fn new(inner: Body, mut exchange: Exchange) -> Self {
        exchange.complete = http_body::Body::is_end_stream(&inner);
        Self { inner, exchange }
    }
}

impl ResponseBody for TrackedBody {
    fn abandon(&mut self) {
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
