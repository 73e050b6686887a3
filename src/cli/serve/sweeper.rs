//! Background removal of the plants of deleted users and of expired idempotency keys.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::cli::user::SWEEP_PAUSE;
use plantstore_store::{SWEEP_DELAY, Store};

/// Time between two sweeps when there was nothing to remove.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Sweeps the store from a thread of its own.
pub(super) struct Sweeper {
    stop: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Sweeper {
    pub(super) fn start(store: &Arc<Store>) -> Self {
        // A weak reference, so that the store can close: what is left is removed after the next start.
        let store = Arc::downgrade(store);
        let runtime = tokio::runtime::Handle::current();
        let ((stop, stopped), (end, ended)) = (mpsc::channel(), oneshot::channel());
        std::thread::spawn(move || {
            // The store requires this delay before the first sweep.
            let mut pause = SWEEP_DELAY;
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Some(store) = store.upgrade()
            {
                // A failed sweep is retried the next time and does not affect the other.
                let [plants, keys] =
                    runtime.block_on(async { [store.sweep_deleted_users().await, store.sweep_expired_keys().await] });
                let removed = plants.unwrap_or(0) + keys.unwrap_or(0);
                pause = if removed > 0 { SWEEP_PAUSE } else { SWEEP_INTERVAL };
            }
            let _ = end.send(());
        });
        Self { stop, ended }
    }

    /// Stops after the current step.
    pub(super) async fn finish(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}
