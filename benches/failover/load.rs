//! Load on the service, and verification of its effects after each round.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::journal::Journal;
use crate::machine::wait;
use crate::report::RoundResult;
use crate::service::{self, ServiceNodes};
use crate::support::{History, Report, StopOnDrop, Summary, Workload};

const WRITERS: usize = 8;
const LISTERS: usize = 2;
const WATCHERS: usize = 2;
const USERS: usize = 4;
/// Index of the user who owns the journal.
const JOURNAL_USER: usize = USERS;
/// Number of ids per user: few, so that writers conflict.
const IDS: i64 = 40;
/// Pause of each client between two operations, so that the history of a long campaign can be checked.
const PAUSE: Duration = Duration::from_millis(10);
/// Timeout for writes after a failover: until the leader has a standby, and the proxy has found the leader.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Clients of the service, and the history of their operations over all rounds.
pub(crate) struct Load {
    service: ServiceNodes,
    workload: Workload,
    history: History,
    journal: Mutex<Journal>,
    /// Totals at the end of the last round.
    before: Summary,
    /// Lost acknowledged writes: user, plant id and time of the call.
    lost: BTreeSet<(usize, i64, Duration)>,
}

impl Load {
    pub(crate) fn prepare(directory: &Path, seed: u64) -> Result<Self> {
        let service = ServiceNodes::start(directory, USERS + 1)?;
        let workload = Workload {
            nodes: service::addresses()?,
            tokens: service.tokens[..USERS].to_vec(),
            writers: WRITERS,
            listers: LISTERS,
            watchers: WATCHERS,
            ids: IDS,
            pause: PAUSE,
            uses_all_operations: true,
        };
        let (history, journal) = (History::with_seed(seed), Mutex::default());
        Ok(Self { service, workload, history, journal, before: Summary::default(), lost: BTreeSet::new() })
    }

    /// Runs the load while `during` runs.
    pub(crate) fn run(&self, during: impl FnOnce() -> Result<()>) -> Result<Report> {
        let stop = AtomicBool::new(false);
        let token = &self.service.tokens[JOURNAL_USER];
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| self.journal().write(&self.workload.nodes, token, &stop));
            let (result, report) = self.workload.run(&self.history, during);
            result.map(|()| report)
        })
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a write that begins from now on is acknowledged.
    pub(crate) fn wait_for_write(&self) -> Result<()> {
        // Every writer has at most one write in flight.
        let enough = self.history.acknowledged() + WRITERS + 1;
        wait("a write", TIMEOUT, || {
            ensure!(self.history.acknowledged() >= enough, "none is acknowledged");
            Ok(())
        })
    }

    /// Evaluates a round. Call this when the cluster is healthy and no operation is in flight.
    pub(crate) fn evaluate(&mut self, round: Report) -> Result<RoundResult> {
        self.history.settle(self.history.now());
        let mut now = self.history.summary();
        now.acknowledged += self.journal().acknowledged();
        let before = std::mem::replace(&mut self.before, now);
        Ok(RoundResult {
            gap: round.longest_gap,
            slowest: round.slowest,
            acknowledged: now.acknowledged - before.acknowledged,
            unknown: now.unknown - before.unknown,
            rejected: now.rejected - before.rejected,
            lost: self.count_lost()?,
        })
    }

    /// Returns the number of newly lost acknowledged writes: entries of the journal, and plants that differ from their last
    /// write. Independent of the history checker, so that each verifies the other.
    fn count_lost(&mut self) -> Result<usize> {
        let lost = |load: &Self| load.lost.len() + load.journal().lost();
        let before = lost(self);
        let certain = self.history.certain();
        for node in self.workload.nodes.clone() {
            self.journal().compare(&self.service.plants(node, JOURNAL_USER)?);
            for user in 0..USERS {
                let plants = self.service.plants(node, user)?;
                let of_user = certain.range((user, i64::MIN)..=(user, i64::MAX));
                let missing = of_user.filter(|((_, id), (_, name))| plants.get(id) != name.as_ref());
                self.lost.extend(missing.map(|((user, id), (called, _))| (*user, *id, *called)));
            }
        }
        Ok(lost(self) - before)
    }

    /// Returns the number of plants whose history is not linearizable, and the first of them.
    pub(crate) fn violations(&self) -> (usize, Option<String>) {
        let violations = self.history.violations();
        (violations.len(), violations.first().map(ToString::to_string))
    }
}
