//! Limits the buffers that the responses of one connection hold in memory.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of buffers that responses of a connection may hold; unlimited where a connection has one response at a time.
#[derive(Clone, Default)]
pub(crate) struct BufferBudget(Option<Arc<Semaphore>>);

impl BufferBudget {
    pub(super) fn new(buffers: usize) -> Self {
        Self(Some(Arc::new(Semaphore::new(buffers))))
    }

    /// Returns permission to hold a buffer, unless other responses of the connection hold all of them.
    pub(crate) fn try_take(&self) -> Option<BufferPermit> {
        match &self.0 {
            None => Some(BufferPermit(None)),
            Some(buffers) => Arc::clone(buffers).try_acquire_owned().ok().map(|permit| BufferPermit(Some(permit))),
        }
    }
}

/// Permission to hold one buffer; by default one that takes nothing of a budget.
#[derive(Default)]
pub(crate) struct BufferPermit(Option<OwnedSemaphorePermit>);

impl BufferPermit {
    /// Binds the permit to a buffer: it is released with its last byte.
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
