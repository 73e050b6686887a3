//! The load on the service, and what is left of it after each round.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::journal::Journal;
use crate::machine::wait;
use crate::report::Tally;
use crate::service::{self, Service};
use crate::support::{History, Report, StopOnDrop, Summary, Workload};

const WRITERS: usize = 8;
const LISTERS: usize = 2;
const USERS: usize = 4;
/// The user who has the journal.
const CHRONICLER: usize = USERS;
/// Plants of each user: few, so that writers meet.
const IDS: i64 = 40;
/// What everybody waits between two operations, so that the history of a long campaign can be checked.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a cluster with a leader may refuse writes: until the leader has found a standby, and the proxy the leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// What clients do, and what is known of it over all rounds.
pub(crate) struct Load {
    service: Service,
    workload: Workload,
    history: History,
    journal: Mutex<Journal>,
    /// All writes, as of the last round.
    before: Summary,
    /// The acknowledged writes of the history that were lost: whose they were, and when they were called.
    lost: BTreeSet<(usize, i64, Duration)>,
}

impl Load {
    pub(crate) fn prepare(directory: &Path) -> Result<Self> {
        let service = Service::start(directory, USERS + 1)?;
        let workload = Workload {
            nodes: service::addresses()?,
            tokens: service.tokens[..USERS].to_vec(),
            writers: WRITERS,
            listers: LISTERS,
            ids: IDS,
            pause: PAUSE,
        };
        let (history, journal) = (History::new(), Mutex::default());
        Ok(Self { service, workload, history, journal, before: Summary::default(), lost: BTreeSet::new() })
    }

    /// Runs while `during` does.
    pub(crate) fn run(&self, during: impl FnOnce() -> Result<()>) -> Result<Report> {
        let stop = AtomicBool::new(false);
        let token = &self.service.tokens[CHRONICLER];
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

    /// Waits for a write that is called from now on and acknowledged.
    pub(crate) fn wait_for_write(&self) -> Result<()> {
        // Every writer has one under way at the most.
        let enough = self.history.acknowledged() + WRITERS + 1;
        wait("a write", PATIENCE, || {
            ensure!(self.history.acknowledged() >= enough, "none is acknowledged");
            Ok(())
        })
    }

    /// What became of a round, now that the cluster is whole and nothing is under way any more.
    pub(crate) fn settle(&mut self, round: Report) -> Result<Tally> {
        self.history.settle(self.history.now());
        let mut now = self.history.summary();
        now.acknowledged += self.journal().acknowledged();
        let before = std::mem::replace(&mut self.before, now);
        Ok(Tally {
            gap: round.longest_gap,
            slowest: round.slowest,
            acknowledged: now.acknowledged - before.acknowledged,
            unknown: now.unknown - before.unknown,
            refused: now.rejected - before.rejected,
            lost: self.count_lost()?,
        })
    }

    /// How many writes that were acknowledged are newly missing: of the journal, and of the plants that are not what the
    /// last write has made them. This asks nothing of the checker, so that each proves the other.
    fn count_lost(&mut self) -> Result<usize> {
        let lost = |load: &Self| load.lost.len() + load.journal().lost();
        let before = lost(self);
        let certain = self.history.certain();
        for node in self.workload.nodes.clone() {
            self.journal().compare(&self.service.plants(node, CHRONICLER)?);
            for user in 0..USERS {
                let plants = self.service.plants(node, user)?;
                let of_user = certain.range((user, i64::MIN)..=(user, i64::MAX));
                let missing = of_user.filter(|((_, id), (_, name))| plants.get(id) != name.as_ref());
                self.lost.extend(missing.map(|((user, id), (called, _))| (*user, *id, *called)));
            }
        }
        Ok(lost(self) - before)
    }

    /// What the checker has to say: how many plants have a history that nothing explains, and the first of them.
    pub(crate) fn violations(&self) -> (usize, Option<String>) {
        let violations = self.history.violations();
        (violations.len(), violations.first().map(ToString::to_string))
    }
}
