//! Collects queued jobs into the batches of the writer.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::plants::{BATCH_MAX, Job};

/// Duration of a commit from which the writer waits for more jobs.
const SLOW_COMMIT: Duration = Duration::from_millis(2);
/// Maximum time that a job waits for others to share its commit.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Collects queued jobs into a batch. If commits are slow, it waits a moment for the callers of the last batch, who often send
/// their next write at once: otherwise two halves of them would alternate, each with its own commit.
pub(super) struct BatchCollector {
    jobs: mpsc::Receiver<Job>,
    /// Number of jobs of the last commit.
    last_size: usize,
    /// Time to wait for more jobs.
    pause: Duration,
}

impl BatchCollector {
    pub(super) fn new(jobs: mpsc::Receiver<Job>) -> Self {
        Self { jobs, last_size: 0, pause: Duration::ZERO }
    }

    /// Returns false if the queue is closed and empty.
    pub(super) async fn collect(&mut self, batch: &mut Vec<Job>) -> bool {
        if self.jobs.recv_many(batch, BATCH_MAX).await == 0 {
            return false;
        }
        if !self.pause.is_zero() {
            self.wait_for_more(batch).await;
        }
        if batch.extract_if(.., |job| matches!(job, Job::Stop)).count() > 0 {
            self.jobs.close();
        }
        true
    }

    async fn wait_for_more(&mut self, batch: &mut Vec<Job>) {
        let deadline = Instant::now() + self.pause;
        // Three quarters are enough, because some callers do not send another write.
        let enough = ((batch.len() + self.last_size) * 3 / 4).min(BATCH_MAX);
        while batch.len() < enough {
            let more = self.jobs.recv_many(batch, BATCH_MAX - batch.len());
            if !matches!(timeout_at(deadline, more).await, Ok(1..)) {
                break;
            }
        }
    }

    pub(super) fn committed(&mut self, jobs: usize, took: Duration) {
        self.last_size = jobs;
        self.pause = if took < SLOW_COMMIT || jobs < 2 { Duration::ZERO } else { (took / 2).min(PAUSE_MAX) };
    }
}
