//! Keeping the WAL bounded without making writers wait.
//!
//! A thread of its own copies the WAL into the database while the writer goes on. Under unbroken load it never catches up
//! entirely, and only a WAL that is copied entirely can be started afresh: past [`WAL_LIMIT_FRAMES`] the writer itself
//! copies the little that is left and starts it afresh. SQLite's own automatic checkpoint is off, because it hides a
//! failed sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::fault::{describe, end_process, is_failed_sync};
use super::{BUSY_PATIENCE, connect};

/// Commits between two runs of the thread.
const COMMITS_PER_RUN: u32 = 64;
/// Frames (of a page each, 4 KiB) past which the writer starts the WAL afresh: 32 MiB.
const WAL_LIMIT_FRAMES: i64 = 8_192;
/// To this size the file is cut when it is started afresh.
const WAL_FILE_LIMIT: i64 = WAL_LIMIT_FRAMES * 4_096 * 2;
/// How long starting afresh may wait for readers: they are quick, unless another program holds the file.
const RESTART_PATIENCE: Duration = Duration::from_millis(20);
/// After that failed: how long until it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The writer's handle on the checkpointing thread.
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
    /// Frames in the WAL when the thread last looked.
    frames: Arc<AtomicI64>,
    commits: u32,
    not_before: Option<Instant>,
}

impl Checkpointer {
    /// Takes over the checkpoints of the writer's connection.
    pub(super) fn start(path: &Path, writer: &Connection) -> rusqlite::Result<Self> {
        for (name, value) in [("wal_autocheckpoint", 0), ("journal_size_limit", WAL_FILE_LIMIT)] {
            writer.pragma_update(None, name, value)?;
        }
        let connection = connect(path)?;
        let frames = Arc::new(AtomicI64::new(0));
        let (wake, woken) = sync_channel(1);
        let shared = Arc::clone(&frames);
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || run(&connection, &woken, &shared))
            .unwrap_or_else(|error| end_process("cannot start the checkpoint thread", &error.to_string()));
        Ok(Self { wake, thread, frames, commits: 0, not_before: None })
    }

    /// Called by the writer between two transactions.
    pub(super) fn after_commit(&mut self, writer: &Connection) {
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_PER_RUN) {
            // A full channel means that the thread is about to look anyway.
            let _ = self.wake.try_send(());
        }
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if self.frames.load(Ordering::Relaxed) > WAL_LIMIT_FRAMES && due {
            self.not_before = self.restart(writer).then(|| Instant::now() + RETRY_AFTER);
        }
    }

    /// Copies what is left and starts the WAL afresh; true when something was in the way.
    fn restart(&mut self, writer: &Connection) -> bool {
        let _ = writer.busy_timeout(RESTART_PATIENCE);
        let found = checkpoint(writer, "PRAGMA wal_checkpoint(RESTART)");
        let _ = writer.busy_timeout(BUSY_PATIENCE);
        match found {
            Some(Progress { busy: false, .. }) => {
                self.frames.store(0, Ordering::Relaxed);
                false
            }
            Some(Progress { frames, .. }) => {
                let mib = frames * 4_096 / (1 << 20);
                tracing::warn!(wal_mib = mib, "the WAL cannot be reset: a reader holds an old snapshot of the file");
                true
            }
            None => true,
        }
    }

    pub(super) fn finish(self) {
        drop(self.wake);
        let _ = self.thread.join();
    }
}

fn run(connection: &Connection, woken: &Receiver<()>, frames: &AtomicI64) {
    while woken.recv().is_ok() {
        if let Some(progress) = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)") {
            frames.store(progress.frames, Ordering::Relaxed);
        }
    }
}

struct Progress {
    busy: bool,
    frames: i64,
}

fn checkpoint(connection: &Connection, pragma: &str) -> Option<Progress> {
    let found = connection.query_row(pragma, [], |row| Ok(Progress { busy: row.get(0)?, frames: row.get(1)? }));
    match found {
        Ok(progress) => Some(progress),
        Err(error) if is_failed_sync(&error) => {
            end_process("the disk failed to keep what was written", &describe(&error));
        }
        // A full disk, for one: the WAL keeps what is not copied, and the next run tries again.
        Err(error) => {
            tracing::warn!(error = describe(&error), "a checkpoint failed and will be tried again");
            None
        }
    }
}
