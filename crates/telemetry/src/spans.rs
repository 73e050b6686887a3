//! Records the spans of a request in a task-local list. Without a recorder, a span costs one look-up.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Spans of one request at most; further ones are not recorded.
const SPANS_MAX: usize = 32;

tokio::task_local! {
    static RECORDER: SpanRecorder;
}

#[derive(Clone, Copy, Debug)]
pub struct RecordedSpan {
    pub name: &'static str,
    pub start: Instant,
    pub end: Instant,
}

#[derive(Clone, Debug, Default)]
pub struct SpanRecorder(Arc<Mutex<Vec<RecordedSpan>>>);

impl SpanRecorder {
    pub async fn during<T>(&self, future: impl Future<Output = T>) -> T {
        RECORDER.scope(self.clone(), future).await
    }

    pub fn take(&self) -> Vec<RecordedSpan> {
        std::mem::take(&mut self.spans())
    }

    fn spans(&self) -> MutexGuard<'_, Vec<RecordedSpan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[must_use]
pub fn begin() -> ActiveSpan {
    ActiveSpan(RECORDER.try_with(|_| Instant::now()).ok())
}

pub fn record(name: &'static str, start: Instant, end: Instant) {
    // Fails when the request is not recorded.
    let _ = RECORDER.try_with(|recorder| {
        let mut spans = recorder.spans();
        if spans.len() < SPANS_MAX {
            spans.push(RecordedSpan { name, start, end });
        }
    });
}

#[derive(Clone, Copy, Debug)]
pub struct ActiveSpan(Option<Instant>);

impl ActiveSpan {
    pub fn start(self) -> Option<Instant> {
        self.0
    }

    pub fn end(self, name: &'static str) {
        if let Some(start) = self.0 {
            record(name, start, Instant::now());
        }
    }
}
