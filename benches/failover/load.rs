//! The load: for now rows that `psql` inserts, each through a connection of its own.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::machine::wait;
use crate::report::Tally;
use crate::settings;

const WRITERS: usize = 4;
/// How long a cluster with a leader may refuse writes: until the leader has found a standby, and the proxy the leader.
const PATIENCE: Duration = Duration::from_secs(60);

fn psql(statement: &str) -> Option<String> {
    let output = Command::new("timeout")
        .args(["5", "psql", "-XAtq", &settings::store(), "-c", statement])
        .env("PGCONNECT_TIMEOUT", "2")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// What is known of the rows, over all rounds.
#[derive(Default)]
pub(crate) struct Load {
    next: Arc<AtomicUsize>,
    acknowledged: BTreeSet<usize>,
}

/// A write that was acknowledged.
struct Written {
    row: usize,
    sent: Instant,
    answered: Instant,
}

#[derive(Default)]
struct Round {
    written: Mutex<Vec<Written>>,
    refused: AtomicUsize,
    stop: AtomicBool,
}

impl Round {
    fn written(&self) -> MutexGuard<'_, Vec<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, next: &AtomicUsize) {
        while !self.stop.load(Ordering::Relaxed) {
            let row = next.fetch_add(1, Ordering::Relaxed);
            let sent = Instant::now();
            if psql(&format!("INSERT INTO rows VALUES ({row})")).is_some() {
                // The lock is taken before the time, so that they are in order.
                let mut written = self.written();
                written.push(Written { row, sent, answered: Instant::now() });
            } else {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

pub(crate) struct Running {
    round: Arc<Round>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn prepare() -> Result<Self> {
        wait("a table", PATIENCE, || psql("CREATE TABLE rows (row bigint PRIMARY KEY)").context("no table"))?;
        Ok(Self::default())
    }

    pub(crate) fn start(&self) -> Running {
        let round = Arc::new(Round::default());
        let writer = |_| {
            let (round, next) = (Arc::clone(&round), Arc::clone(&self.next));
            std::thread::spawn(move || round.write(&next))
        };
        let writers = (0..WRITERS).map(writer).collect();
        Running { round, writers }
    }

    /// How many acknowledged rows are not there any more; each is counted once.
    fn lost(&mut self) -> Result<usize> {
        let found = wait("all rows", PATIENCE, || psql("SELECT row FROM rows").context("no rows"))?;
        let found: BTreeSet<usize> = found.lines().filter_map(|line| line.parse().ok()).collect();
        let before = self.acknowledged.len();
        self.acknowledged.retain(|row| found.contains(row));
        Ok(before - self.acknowledged.len())
    }
}

impl Running {
    /// Waits for a write that is sent from now on and acknowledged.
    pub(crate) fn wait_for_write(&self) -> Result<()> {
        let start = Instant::now();
        wait("a write", PATIENCE, || {
            ensure!(self.round.written().iter().any(|written| written.sent > start), "none is acknowledged");
            Ok(())
        })
    }

    pub(crate) fn stop(mut self, load: &mut Load) -> Result<Tally> {
        self.end();
        let written = self.round.written();
        load.acknowledged.extend(written.iter().map(|written| written.row));
        let gap = written.windows(2).map(|pair| pair[1].answered - pair[0].answered).max().unwrap_or_default();
        let refused = self.round.refused.load(Ordering::Relaxed);
        Ok(Tally { gap, acknowledged: written.len(), unknown: 0, refused, lost: load.lost()? })
    }

    fn end(&mut self) {
        self.round.stop.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            let _ = writer.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
