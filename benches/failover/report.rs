//! Report of a campaign: one line per round, and the conclusion.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::cluster::ClusterFault;
use crate::settings::Replication;

/// Result of one round.
#[derive(Debug, Default)]
pub(crate) struct RoundResult {
    /// The longest time without an acknowledged write.
    pub(crate) gap: Duration,
    /// The longest response time.
    pub(crate) slowest: Duration,
    pub(crate) acknowledged: usize,
    /// Writes with an unknown outcome.
    pub(crate) unknown: usize,
    pub(crate) rejected: usize,
    /// Acknowledged writes that are missing afterwards.
    pub(crate) lost: usize,
}

#[derive(Default)]
pub(crate) struct CampaignReport {
    total: RoundResult,
    rounds: usize,
    worst: BTreeMap<ClusterFault, Duration>,
}

impl CampaignReport {
    pub(crate) fn add(&mut self, number: usize, fault: ClusterFault, round: &RoundResult) {
        println!(
            "round {number:3}  {fault:14}  write gap {:4.1} s  acknowledged {:5}  unknown {:3}  rejected {:5}  \
             slowest response {:3.1} s  lost {}",
            round.gap.as_secs_f64(),
            round.acknowledged,
            round.unknown,
            round.rejected,
            round.slowest.as_secs_f64(),
            round.lost
        );
        self.rounds += 1;
        self.total.acknowledged += round.acknowledged;
        self.total.unknown += round.unknown;
        self.total.rejected += round.rejected;
        self.total.lost += round.lost;
        self.total.slowest = round.slowest.max(self.total.slowest);
        let worst = self.worst.entry(fault).or_default();
        *worst = round.gap.max(*worst);
    }

    /// Prints the totals. Fails unless the result is as expected for the kind of replication.
    pub(crate) fn conclude(
        &self,
        replication: Replication,
        seed: u64,
        (violations, first): (usize, Option<String>),
    ) -> ExitCode {
        let RoundResult { acknowledged, unknown, rejected, lost, slowest, .. } = self.total;
        println!(
            "{} rounds: {acknowledged} acknowledged, {unknown} unknown, {rejected} rejected; {lost} lost, \
             {violations} violations; slowest response {:.1} s; seed {seed}",
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
            (Replication::Synchronous, false) => (true, "nothing was lost, and all responses were consistent"),
            (Replication::Synchronous, true) => {
                (false, "FAILED: acknowledged writes were lost, or responses were inconsistent")
            }
            (Replication::Asynchronous, false) => {
                (false, "FAILED: the control lost nothing, so the campaign proves nothing")
            }
            (Replication::Asynchronous, true) => {
                (true, "the control lost acknowledged writes, and the campaign detected it")
            }
        };
        println!("{verdict}");
        if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
