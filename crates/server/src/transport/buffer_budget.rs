//! Limits the number of buffers that the responses of one connection hold in memory.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Budget of buffers for the responses of a connection; by default unlimited, for a connection with one response at a time.
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
