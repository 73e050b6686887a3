//! What a campaign found: a line a round, and what follows from all of them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::cluster::Fault;
use crate::settings::Replication;

/// What became of the operations of one round.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The longest time without an acknowledged write.
    pub(crate) gap: Duration,
    pub(crate) acknowledged: usize,
    /// Sent, and never answered: done or not.
    pub(crate) unknown: usize,
    pub(crate) refused: usize,
    /// Acknowledged, and not to be found afterwards.
    pub(crate) lost: usize,
}

#[derive(Default)]
pub(crate) struct Report {
    total: Tally,
    rounds: usize,
    worst: BTreeMap<Fault, Duration>,
}

impl Report {
    pub(crate) fn add(&mut self, number: usize, fault: Fault, round: &Tally) {
        println!(
            "round {number:3}  {fault:14}  write gap {:4.1} s  acknowledged {:6}  unknown {:4}  refused {:6}  lost {}",
            round.gap.as_secs_f64(),
            round.acknowledged,
            round.unknown,
            round.refused,
            round.lost
        );
        self.rounds += 1;
        self.total.acknowledged += round.acknowledged;
        self.total.unknown += round.unknown;
        self.total.refused += round.refused;
        self.total.lost += round.lost;
        let worst = self.worst.entry(fault).or_default();
        *worst = round.gap.max(*worst);
    }

    /// Prints the totals, and says whether the campaign found what it had to.
    pub(crate) fn conclude(&self, replication: Replication) -> ExitCode {
        let Tally { acknowledged, unknown, refused, lost, .. } = self.total;
        println!(
            "{} rounds: {acknowledged} acknowledged, {unknown} unknown, {refused} refused, {lost} lost",
            self.rounds
        );
        for (fault, gap) in &self.worst {
            println!("worst write gap, {fault}: {:.1} s", gap.as_secs_f64());
        }
        let (good, verdict) = match (replication, lost) {
            (Replication::Synchronous, 0) => (true, "nothing was lost"),
            (Replication::Synchronous, _) => (false, "FAILED: acknowledged writes were lost"),
            (Replication::Asynchronous, 0) => {
                (false, "FAILED: the control lost nothing, so this campaign proves nothing")
            }
            (Replication::Asynchronous, _) => (true, "the control lost acknowledged writes, and the campaign saw it"),
        };
        println!("{verdict}");
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
