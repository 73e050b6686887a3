//! The spans of one request.

use hyper::{Method, StatusCode, Version};

use super::id::{SpanId, TraceId};
use plantstore_model::user::UserId;

/// The span of a request, and its children.
pub(super) struct RequestSpans {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) parent: Option<SpanId>,
    /// The client's `tracestate`.
    pub(super) state: Option<String>,
    pub(super) version: Version,
    pub(super) method: Option<Method>,
    pub(super) route: &'static str,
    pub(super) status: Option<StatusCode>,
    pub(super) error: Option<i32>,
    pub(super) user: Option<UserId>,
    pub(super) request_id: String,
    pub(super) bytes: u64,
    pub(super) complete: bool,
    pub(super) time: Interval,
    pub(super) children: Vec<Child>,
}

pub(super) struct Child {
    pub(super) span: SpanId,
    pub(super) name: &'static str,
    pub(super) time: Interval,
}

/// Start and end in nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(super) struct Interval {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl RequestSpans {
    pub(super) fn count(&self) -> u64 {
        1 + self.children.len() as u64
    }
}
