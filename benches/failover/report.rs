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
    /// The longest wait for an answer.
    pub(crate) slowest: Duration,
    pub(crate) acknowledged: usize,
    /// Done or not.
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
            "round {number:3}  {fault:14}  write gap {:4.1} s  acknowledged {:5}  unknown {:3}  refused {:5}  \
             slowest answer {:3.1} s  lost {}",
            round.gap.as_secs_f64(),
            round.acknowledged,
            round.unknown,
            round.refused,
            round.slowest.as_secs_f64(),
            round.lost
        );
        self.rounds += 1;
        self.total.acknowledged += round.acknowledged;
        self.total.unknown += round.unknown;
        self.total.refused += round.refused;
        self.total.lost += round.lost;
        self.total.slowest = round.slowest.max(self.total.slowest);
        let worst = self.worst.entry(fault).or_default();
        *worst = round.gap.max(*worst);
    }

    /// Prints the totals, and says whether the campaign found what it had to.
    pub(crate) fn conclude(&self, replication: Replication, (violations, first): (usize, Option<String>)) -> ExitCode {
        let Tally { acknowledged, unknown, refused, lost, slowest, .. } = self.total;
        println!(
            "{} rounds: {acknowledged} acknowledged, {unknown} unknown, {refused} refused; {lost} lost, \
             {violations} violations; slowest answer {:.1} s",
            self.rounds,
            slowest.as_secs_f64()
        );
        for (fault, gap) in &self.worst {
            println!("worst write gap, {fault}: {:.1} s", gap.as_secs_f64());
        }
        if let Some(violation) = first {
            println!("{violation}");
        }
        let found = lost + violations > 0;
        let (good, verdict) = match (replication, found) {
            (Replication::Synchronous, false) => (true, "nothing was lost, and no answer was wrong"),
            (Replication::Synchronous, true) => (false, "FAILED: acknowledged writes were lost, or answers were wrong"),
            (Replication::Asynchronous, false) => {
                (false, "FAILED: the control lost nothing, so this campaign proves nothing")
            }
            (Replication::Asynchronous, true) => {
                (true, "the control lost acknowledged writes, and the campaign saw it")
            }
        };
        println!("{verdict}");
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
