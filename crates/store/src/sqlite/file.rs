//! The database file: checkpoints of its write-ahead log, and detection of a file that was deleted, moved or replaced.
//!
//! SQLite's automatic checkpoint is off, because it hides a failed sync. A thread copies the WAL into the database while the writer
//! continues. Under constant load it never copies all of it, and only a fully copied WAL can be reset. Past [`WAL_LIMIT_FRAMES`] the
//! writer itself copies the rest and resets the WAL. No write is executed meanwhile, so this must be short: it follows a copy of the
//! thread, which has also synced what it copied. SQLite itself syncs the database only when the whole WAL is copied.
//!
//! SQLite continues to use the open file after its path names another one, so all later writes would be lost at the next start.
//! Therefore the device and inode of the path are compared with those of the open file: after every commit, before it is
//! acknowledged, and periodically by the checkpoint thread.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::mem::{self, ManuallyDrop};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::connection::{
    BUSY_TIMEOUT, DISK_ADVICE, connect, describe, exit_after_failed_sync, exit_process, start_thread,
};
use crate::error::StoreError;
use plantstore_telemetry::metrics::{Exposition, Gauge, Histogram, TIMES};

/// Mode of a file that its group or all users can write to.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Number of pending frames (4 KiB each) past which a checkpoint runs: 8 MiB.
const CHECKPOINT_FRAMES: i64 = 2_048;
/// Bytes of a frame: a page and its header.
const FRAME_BYTES: i64 = 4_096 + 24;
/// Number of frames past which the writer resets the WAL: 32 MiB.
const WAL_LIMIT_FRAMES: i64 = 8_192;
/// Size to which the file is truncated after a reset, in bytes.
const WAL_FILE_LIMIT: i64 = WAL_LIMIT_FRAMES * 4_096 * 2;
/// Delay before the next attempt after a blocked reset.
const RESET_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which the database file is checked while nothing is written.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a reset for readers, which are short unless they belong to another program.
const RESET_TIMEOUT: Duration = Duration::from_millis(20);
/// Timeout for readers and other writers when the WAL is truncated before the process exits.
const TRUNCATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Copies as many frames as possible without blocking.
const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies all frames and resets the WAL.
const RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";
/// Copies all frames and truncates the WAL to zero bytes.
const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

struct WalState {
    busy: bool,
    frames: i64,
    copied: i64,
}

impl WalState {
    /// Returns the number of frames that are not in the database yet.
    fn pending(&self) -> i64 {
        self.frames - self.copied
    }
}

/// Returns the state of the WAL. It does not use a `PRAGMA`, which SQLite would compile for each commit.
fn wal_state(connection: &Connection) -> Option<WalState> {
    let (frames, copied) = connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::NOOP).ok()?;
    Some(WalState { busy: false, frames: frames.into(), copied: copied.into() })
}

fn checkpoint(connection: &Connection, pragma: &str) -> Option<WalState> {
    let found = connection.prepare_cached(pragma).and_then(|mut statement| {
        statement.query_row([], |row| Ok(WalState { busy: row.get(0)?, frames: row.get(1)?, copied: row.get(2)? }))
    });
    match found {
        Ok(wal) => Some(wal),
        // For example a full disk. The frames stay in the WAL, and the next checkpoint copies them.
        Err(error) => {
            exit_after_failed_sync(&error);
            tracing::warn!(error = describe(&error), "checkpoint failed, will be retried");
            None
        }
    }
}

/// Runs a checkpoint if many frames are pending. For connections that write without a checkpoint thread.
pub(super) fn checkpoint_if_large(connection: &Connection) {
    if wal_state(connection).is_some_and(|wal| wal.pending() > CHECKPOINT_FRAMES) {
        checkpoint(connection, PASSIVE);
    }
}

/// Truncates the WAL, unless another connection blocks that.
fn truncate(connection: &Connection) {
    let _ = connection.busy_timeout(TRUNCATE_TIMEOUT);
    if checkpoint(connection, TRUNCATE).is_none_or(|wal| wal.busy) {
        tracing::error!("cannot truncate the write-ahead log: remove it before another file is used in this place");
    }
}

/// Resets the WAL. Returns true if another connection blocked that.
fn reset(writer: &Connection) -> bool {
    let timeout = writer.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    let _ = writer.busy_timeout(RESET_TIMEOUT);
    let found = checkpoint(writer, RESTART);
    let _ = writer.busy_timeout(timeout.map_or(BUSY_TIMEOUT, |timeout| Duration::from_millis(timeout.into())));
    match found {
        // Frames are -1 if the thread is running a checkpoint; then the next commit retries.
        Some(WalState { busy: true, frames: 0.., copied }) => {
            tracing::warn!(
                frames_copied = copied,
                "the WAL cannot be reset: a reader holds an old snapshot of the file, or another process is writing"
            );
            true
        }
        Some(_) => false,
        None => true,
    }
}

/// The writer's handle on the checkpointing thread.
pub(crate) struct Checkpointer {
    /// Set until this is dropped.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// True from the wake-up of the thread until it has copied the WAL.
    copying: Arc<AtomicBool>,
    /// True from the wake-up of the thread until the writer has noticed that it has copied the WAL.
    woken: bool,
    not_before: Option<Instant>,
    metrics: Arc<WalMetrics>,
}

impl Checkpointer {
    /// Starts the thread that runs the checkpoints for the writer's connection.
    pub(crate) fn start(
        path: &Path,
        file: &Arc<DatabaseFile>,
        writer: &Connection,
        metrics: &Arc<WalMetrics>,
    ) -> rusqlite::Result<Self> {
        writer.pragma_update(None, "journal_size_limit", WAL_FILE_LIMIT)?;
        let connection = connect(path)?;
        let (wake, wakes) = channel();
        let copying = Arc::<AtomicBool>::default();
        let (file, copies, counted) = (Arc::clone(file), Arc::clone(&copying), Arc::clone(metrics));
        let thread = start_thread("checkpoint", move || run(&connection, &wakes, &file, &copies, &counted));
        let metrics = Arc::clone(metrics);
        Ok(Self { wake: Some(wake), thread: Some(thread), copying, woken: false, not_before: None, metrics })
    }

    /// Checks the size of the WAL. The writer calls this between two transactions.
    pub(crate) fn after_commit(&mut self, writer: &Connection) {
        let Some(wal) = wal_state(writer) else { return };
        self.metrics.bytes.set(wal.frames * FRAME_BYTES);
        self.metrics.pending_bytes.set(wal.pending() * FRAME_BYTES);
        if self.copying.load(Ordering::Acquire) {
            return;
        }
        let just_copied = mem::take(&mut self.woken);
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        let is_reset = wal.frames > WAL_LIMIT_FRAMES && due;
        if is_reset && just_copied {
            let begun = Instant::now();
            let blocked = reset(writer);
            self.metrics.restart_checkpoints.time(begun.elapsed());
            self.not_before = blocked.then(|| Instant::now() + RESET_PAUSE);
        } else if is_reset || wal.pending() > CHECKPOINT_FRAMES {
            self.woken = true;
            self.copying.store(true, Ordering::Release);
            let _ = self.wake.as_ref().map(|wake| wake.send(()));
        }
    }
}

impl Drop for Checkpointer {
    /// Ends the thread, and waits until its connection is closed.
    fn drop(&mut self) {
        self.wake = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(connection: &Connection, wakes: &Receiver<()>, file: &DatabaseFile, copying: &AtomicBool, metrics: &WalMetrics) {
    loop {
        match wakes.recv_timeout(FILE_CHECK_INTERVAL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                // An error is retried at the next interval.
                let _ = file.verify_or_exit(connection);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun = Instant::now();
        if let Some(wal) = checkpoint(connection, PASSIVE) {
            file.sync_or_exit();
            metrics.pending_bytes.set(wal.pending() * FRAME_BYTES);
        }
        metrics.passive_checkpoints.time(begun.elapsed());
        copying.store(false, Ordering::Release);
    }
}

pub(crate) struct WalMetrics {
    passive_checkpoints: Histogram,
    restart_checkpoints: Histogram,
    bytes: Gauge,
    pending_bytes: Gauge,
}

impl Default for WalMetrics {
    fn default() -> Self {
        Self {
            passive_checkpoints: Histogram::new(&TIMES),
            restart_checkpoints: Histogram::new(&TIMES),
            bytes: Gauge::default(),
            pending_bytes: Gauge::default(),
        }
    }
}

impl WalMetrics {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        exposition
            .histogram(
                "plantstore_checkpoint_duration_seconds",
                "Duration of checkpoints, by mode; a restart blocks writes.",
            )
            .distribution(&[("mode", "passive".into())], &self.passive_checkpoints)
            .distribution(&[("mode", "restart".into())], &self.restart_checkpoints);
        exposition
            .gauge("plantstore_wal_bytes", "Size of the WAL after the last commit.")
            .sample(&[], self.bytes.get());
        exposition
            .gauge("plantstore_wal_pending_bytes", "Part of the WAL that is not yet checkpointed.")
            .sample(&[], self.pending_bytes.get());
    }
}

/// The path of the database, and the identity of the file when it was opened.
pub(crate) struct DatabaseFile {
    /// Absolute, so that a moved working directory counts as a moved file. Links are followed at every check.
    path: PathBuf,
    identity: (u64, u64),
    /// For syncs besides those of SQLite. Never closed: closing any descriptor of a file releases all locks that the process
    /// holds on it, those of SQLite included.
    file: ManuallyDrop<File>,
    /// Set before the process exits. No commit begins afterwards.
    lost: AtomicBool,
}

/// Result of a failed comparison of the path with the open file.
#[derive(Debug, thiserror::Error)]
enum Mismatch {
    #[error("the database file was deleted or moved")]
    Missing,
    #[error("the database file was replaced by another")]
    Replaced,
    #[error("the database file cannot be examined: {0}")]
    Unknown(io::Error),
}

impl DatabaseFile {
    /// Reads the identity of the file at `path`. Call this before the file is opened.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = ManuallyDrop::new(File::open(&path)?);
        let found = file.metadata()?;
        if found.mode() & WRITABLE_BY_OTHERS != 0 {
            tracing::warn!(file = %path.display(), "other users can write to the store: make it private with chmod 600");
        }
        Ok(Self { path, identity: identity(&found), file, lost: AtomicBool::new(false) })
    }

    /// Fails if the path does not name the open file, or cannot be examined.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let found = if self.lost.load(Ordering::SeqCst) { Err(Mismatch::Missing) } else { self.compare() };
        found.map_err(|mismatch| StoreError::Unavailable(mismatch.to_string()))
    }

    /// Fails if the file is known to be lost. Call this with the write lock held, so that no commit follows the last
    /// checkpoint.
    pub(super) fn check_not_lost(&self) -> Result<(), StoreError> {
        let lost = self.lost.load(Ordering::SeqCst);
        if lost { Err(StoreError::Unavailable(Mismatch::Missing.to_string())) } else { Ok(()) }
    }

    /// Fails if the path cannot be examined, and exits the process if the file is lost. Call this after a commit, before it is
    /// acknowledged.
    pub(crate) fn verify_or_exit(&self, connection: &Connection) -> Result<(), StoreError> {
        match self.compare() {
            Ok(()) => Ok(()),
            Err(Mismatch::Unknown(error)) => {
                tracing::warn!(%error, file = %self.path.display(), "the database file cannot be examined");
                Err(StoreError::OutcomeUnknown("the database file cannot be examined"))
            }
            // Another thread is exiting the process.
            Err(_) if self.lost.swap(true, Ordering::SeqCst) => {
                Err(StoreError::OutcomeUnknown("the database file was lost"))
            }
            Err(mismatch) => self.exit(&mismatch, connection),
        }
    }

    /// Exits the process. Before that, copies the write-ahead log into the open file, which may have been moved, and truncates
    /// it: SQLite would otherwise apply it to a file that has replaced this one.
    fn exit(&self, mismatch: &Mismatch, connection: &Connection) -> ! {
        let advice = "stop every server before moving or replacing the file; put it back, or restore a backup in its \
                      place, and start again";
        truncate(connection);
        exit_process(&mismatch.to_string(), &self.path.display().to_string(), advice)
    }

    /// Syncs what was copied into the database. Exits the process if that fails, as after any failed sync.
    fn sync_or_exit(&self) {
        if let Err(error) = self.file.sync_data() {
            exit_process("the disk failed to sync written data", &error.to_string(), DISK_ADVICE);
        }
    }

    fn compare(&self) -> Result<(), Mismatch> {
        match fs::metadata(&self.path) {
            Ok(found) if identity(&found) == self.identity => Ok(()),
            Ok(_) => Err(Mismatch::Replaced),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(Mismatch::Missing)
            }
            Err(error) => Err(Mismatch::Unknown(error)),
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}
