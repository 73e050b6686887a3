//! Removes what nobody needs any more, beside a running server.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use plantstore_store::{SWEEP_DELAY, Store};

/// How often what nobody needs any more is looked for, and what others get to write between two steps of removing it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// What removes, in a thread of its own, what nobody needs any more.
pub(super) struct Sweeper {
    stop: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Sweeper {
    pub(super) fn start(store: &Arc<Store>) -> Self {
        // Not kept open by this: what is left to remove, the next start removes.
        let store = Arc::downgrade(store);
        let runtime = tokio::runtime::Handle::current();
        let ((stop, stopped), (end, ended)) = (mpsc::channel(), oneshot::channel());
        std::thread::spawn(move || {
            // The first time after what the contract of the store asks for.
            let mut pause = SWEEP_DELAY;
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Some(store) = store.upgrade()
            {
                // What fails now is tried again the next time, and keeps nothing else from being removed.
                let [plants, keys] = runtime.block_on(async { [store.sweep().await, store.sweep_keys().await] });
                let removed = plants.unwrap_or(0) + keys.unwrap_or(0);
                pause = if removed > 0 { SWEEP_PAUSE } else { SWEEP_INTERVAL };
            }
            let _ = end.send(());
        });
        Self { stop, ended }
    }

    /// Ends it after the step that it is at.
    pub(super) async fn finish(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}
