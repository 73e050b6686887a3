//! A bound on open connections: of all clients together, and of each client address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::{ClientAddress, Limits};

/// The connections that are open.
pub(crate) struct ConnectionLimit {
    limits: Arc<Limits>,
    places: Arc<Semaphore>,
    by_address: Mutex<HashMap<ClientAddress, usize>>,
}

/// Which limit a connection is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Total,
    Address,
}

impl ConnectionLimit {
    pub(crate) fn new(limits: &Arc<Limits>) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits.connections));
        Arc::new(Self { limits: Arc::clone(limits), places, by_address: Mutex::default() })
    }

    /// Counts a connection of this client as open until the return value is dropped.
    pub(crate) fn open(self: &Arc<Self>, client: IpAddr) -> Result<OpenConnection, Exceeded> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Exceeded::Total)?;
        let address = ClientAddress::from(client);
        let mut by_address = self.by_address();
        let open = by_address.entry(address).or_default();
        if *open >= self.limits.connections_from(client) {
            return Err(Exceeded::Address);
        }
        *open += 1;
        Ok(OpenConnection { limit: Arc::clone(self), address, _place: place })
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.limits.connections - self.places.available_permits()
    }

    /// Resolves when none is open.
    pub(crate) async fn all_closed(&self) {
        let all = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await;
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<ClientAddress, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open connection.
pub(crate) struct OpenConnection {
    limit: Arc<ConnectionLimit>,
    address: ClientAddress,
    _place: OwnedSemaphorePermit,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.limit.by_address().entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}
