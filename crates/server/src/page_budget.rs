//! A bound on the pages of lists that the responses of one connection hold in memory.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pages that responses of a connection may hold. Without a bound where a connection has one response at a time.
#[derive(Clone, Default)]
pub(crate) struct PageBudget(Option<Arc<Semaphore>>);

impl PageBudget {
    /// A budget of this many pages.
    pub(crate) fn of(pages: usize) -> Self {
        Self(Some(Arc::new(Semaphore::new(pages))))
    }

    /// Permission to hold a page, unless others of the connection hold as many as there may be.
    pub(crate) fn try_take(&self) -> Option<PagePermit> {
        match &self.0 {
            None => Some(PagePermit(None)),
            Some(pages) => Arc::clone(pages).try_acquire_owned().ok().map(|permit| PagePermit(Some(permit))),
        }
    }
}

/// Permission to hold one page; by default one that takes nothing of a budget.
#[derive(Default)]
pub(crate) struct PagePermit(Option<OwnedSemaphorePermit>);

impl PagePermit {
    /// Binds the permit to a page, with whose last byte it is given back.
    pub(crate) fn hold(self, bytes: Vec<u8>) -> Bytes {
        match self.0 {
            None => bytes.into(),
            Some(permit) => Bytes::from_owner(Page { bytes, _permit: permit }),
        }
    }
}

struct Page {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
