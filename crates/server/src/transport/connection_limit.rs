//! Limits the number of open connections, in total and per client address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::client_address::ClientAddress;
use super::limits::TransportLimits;

pub(super) struct ConnectionLimit {
    total: usize,
    permits: Semaphore,
    open: AtomicUsize,
    by_address: Mutex<HashMap<ClientAddress, usize>>,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Total,
    Address,
}

impl ConnectionLimit {
    pub(super) fn new(limits: &TransportLimits) -> Self {
        let total = limits.max_connections;
        Self { total, permits: Semaphore::new(total), open: AtomicUsize::new(0), by_address: Mutex::default() }
    }

    /// Counts a connection of this client, which may have `max_connections`, as open until the return value is dropped.
    pub(super) fn open(&self, client: IpAddr, max_connections: usize) -> Result<ConnectionPermit<'_>, Exceeded> {
        let permit = self.permits.try_acquire().map_err(|_| Exceeded::Total)?;
        let address = ClientAddress::from(client);
        let mut by_address = self.by_address();
        let open = by_address.entry(address).or_default();
        if *open >= max_connections {
            return Err(Exceeded::Address);
        }
        *open += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(ConnectionPermit { limit: self, address, _permit: permit })
    }

    /// Returns the number of open connections.
    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Resolves when no connection is open.
    pub(super) async fn all_closed(&self) {
        let all = u32::try_from(self.total).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<ClientAddress, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct ConnectionPermit<'a> {
    limit: &'a ConnectionLimit,
    address: ClientAddress,
    _permit: SemaphorePermit<'a>,
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
        if let Entry::Occupied(mut open) = self.limit.by_address().entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}
