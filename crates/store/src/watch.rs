//! Watched users: wakes tasks when the versions of users may have changed.
//!
//! A write of this process wakes the watchers of its owner at once. Changes by other processes are found by reading the versions
//! of all watched users about once a second; SQLite needs no query for it as long as the file is unchanged. Without watchers,
//! neither costs more than reading a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::plants::Version;
use plantstore_model::user::UserId;

/// Minimum time between two polls, however many changes of users, tokens and shares this process makes.
const POLL_PAUSE: Duration = Duration::from_millis(50);
/// Time after it until the next poll, unless this process makes such a change. A change must be noticed within a second.
const POLL_WAIT: Duration = Duration::from_millis(850);

/// The watched users of a store.
#[derive(Default)]
pub(crate) struct Watches {
    is_watched: AtomicBool,
    users: Mutex<HashMap<UserId, WatchedUser>>,
    /// Wakes the task that reads the versions.
    poll: Notify,
}

#[derive(Default)]
struct WatchedUser {
    /// The version at the last poll; `None` before the first.
    polled: Option<Version>,
    watchers: Vec<Arc<Notify>>,
}

impl WatchedUser {
    fn wake(&self) {
        self.watchers.iter().for_each(|watcher| watcher.notify_one());
    }
}

impl Watches {
    /// Returns a watch, which watches no users yet.
    pub(crate) fn watch(self: &Arc<Self>) -> Watch {
        Watch { watches: Arc::clone(self), users: Vec::new(), changed: Arc::default() }
    }

    /// Waits until the next poll, and returns the users to poll.
    pub(crate) async fn next_poll(&self) -> Vec<UserId> {
        loop {
            sleep(POLL_PAUSE).await;
            let _ = timeout(POLL_WAIT, self.poll.notified()).await;
            if self.is_watched.load(Ordering::SeqCst) {
                return self.users().keys().copied().collect();
            }
        }
    }

    /// Wakes the watchers of a user whose plants this process has changed.
    pub(crate) fn changed(&self, user: UserId) {
        if self.is_watched.load(Ordering::SeqCst)
            && let Some(watched) = self.users().get(&user)
        {
            watched.wake();
        }
    }

    /// Has the versions read soon, because this process has changed users, tokens or shares.
    pub(crate) fn poll_soon(&self) {
        if self.is_watched.load(Ordering::SeqCst) {
            self.poll.notify_one();
        }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<UserId, WatchedUser>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the versions with those of the last poll, and wakes the watchers of users that differ or are deleted. A user who is
    /// polled for the first time may have changed since the watcher read the version.
    pub(crate) fn polled(&self, versions: impl IntoIterator<Item = (UserId, Option<Version>)>) {
        let mut users = self.users();
        for (user, version) in versions {
            if let Some(watched) = users.get_mut(&user)
                && (watched.polled != version || version.is_none())
            {
                watched.polled = version;
                watched.wake();
            }
        }
    }
}

/// A set of users that a task watches.
pub struct Watch {
    watches: Arc<Watches>,
    users: Vec<UserId>,
    changed: Arc<Notify>,
}

impl Watch {
    pub fn users(&self) -> &[UserId] {
        &self.users
    }

    /// Watches these users instead of the previous ones. A version that is read afterwards is current until [`Watch::changed`].
    pub fn set(&mut self, users: Vec<UserId>) {
        if users == self.users {
            return;
        }
        let mut watched = self.watches.users();
        for user in &users {
            watched.entry(*user).or_default().watchers.push(Arc::clone(&self.changed));
        }
        for user in std::mem::replace(&mut self.users, users) {
            if let Some(entry) = watched.get_mut(&user) {
                let own = entry.watchers.iter().position(|watcher| Arc::ptr_eq(watcher, &self.changed));
                own.map(|own| entry.watchers.swap_remove(own));
                if entry.watchers.is_empty() {
                    watched.remove(&user);
                }
            }
        }
        self.watches.is_watched.store(!watched.is_empty(), Ordering::SeqCst);
    }

    /// Resolves when the version of a user may have changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.set(Vec::new());
    }
}
