//! Rounds of a fault and the report of their result. `scripts/faults` sets the number of rounds and the seed, and collects the
//! reports.

use std::io::Write as _;
use std::sync::Mutex;

use super::postgres::runs_on_citus;
use super::{Engine, History, Random, Summary};

/// A fault that is injected repeatedly. Its result is reported when it is dropped.
pub(crate) struct Fault {
    name: String,
    /// Number of rounds to run.
    pub(crate) rounds: usize,
    seed: u64,
    result: Mutex<FaultResult>,
}

#[derive(Default)]
struct FaultResult {
    rounds: usize,
    operations: usize,
    acknowledged: usize,
    lost: usize,
    wrong: usize,
    is_control: bool,
}

/// Returns a variable that `scripts/faults` sets.
fn setting(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "set by scripts/faults; no option of the program")]
    std::env::var(format!("FAULT_{name}")).ok()
}

/// Returns the factor by which a campaign has more rounds than the suite.
pub(crate) fn campaign_factor() -> usize {
    setting("FACTOR").map_or(1, |factor| factor.parse().expect("a number"))
}

/// Returns the seed of the campaign's random numbers.
fn campaign_seed() -> u64 {
    setting("SEED").map_or(0, |seed| seed.parse().expect("a number"))
}

impl History {
    pub(crate) fn new() -> Self {
        Self::with_seed(campaign_seed())
    }
}

/// Returns the programs of earlier releases that `scripts/faults` names.
pub(crate) fn previous_releases() -> Vec<String> {
    setting("OLD").map_or(Vec::new(), |programs| programs.split(':').map(str::to_owned).collect())
}

impl Fault {
    /// Creates a fault with this number of rounds in the suite.
    pub(crate) fn new(name: &str, rounds: usize) -> Self {
        let citus = if runs_on_citus() { " (Citus)" } else { "" };
        Self {
            name: format!("{name}{citus}"),
            rounds: rounds * campaign_factor(),
            seed: campaign_seed(),
            result: Mutex::default(),
        }
    }

    /// Runs this many times as many rounds in a campaign, because they cost little.
    pub(crate) fn with_more_in_campaign(mut self, factor: usize) -> Self {
        self.rounds *= if campaign_factor() > 1 { factor } else { 1 };
        self
    }

    /// Creates a fault of tests that run on both engines.
    pub(crate) fn on(engine: Engine, name: &str, rounds: usize) -> Self {
        Self::new(
            &format!("{name}, {}", if matches!(engine, Engine::Sqlite) { "SQLite" } else { "PostgreSQL" }),
            rounds,
        )
    }

    /// Returns it as a control: a planted fault, in which the harness must find a lost write or a wrong result.
    pub(crate) fn into_control(self) -> Self {
        self.result().is_control = true;
        self
    }

    fn result(&self) -> std::sync::MutexGuard<'_, FaultResult> {
        self.result.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Begins a round, and returns its random numbers.
    pub(crate) fn begin_round(&self) -> Random {
        let mut result = self.result();
        result.rounds += 1;
        Random::new(self.seed << 32 | result.rounds as u64)
    }

    /// Counts operations of clients, of which some were acknowledged writes.
    pub(crate) fn count(&self, operations: usize, acknowledged: usize) {
        let mut result = self.result();
        result.operations += operations;
        result.acknowledged += acknowledged;
    }

    pub(crate) fn count_history(&self, summary: &Summary) {
        self.count(summary.operations, summary.acknowledged);
    }

    /// Fails the test, because an acknowledged write is missing.
    #[track_caller]
    pub(crate) fn assert_stored(&self, is_stored: bool, message: &str) {
        if !is_stored {
            self.found_lost();
            panic!("an acknowledged write is missing: {message}");
        }
    }

    /// Returns true if a control has found a lost write or a wrong result.
    pub(crate) fn has_found(&self) -> bool {
        let result = self.result();
        result.lost + result.wrong > 0
    }

    /// Records that a control has found lost writes.
    pub(crate) fn found_lost(&self) {
        self.result().lost += 1;
    }

    /// Records that a control has found a wrong result.
    pub(crate) fn found_wrong(&self) {
        self.result().wrong += 1;
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let Some(file) = setting("REPORTS") else { return };
        let FaultResult { rounds, operations, acknowledged, lost, wrong, is_control } = *self.result();
        let failed = usize::from(std::thread::panicking() && lost == 0 && !is_control);
        let report = serde_json::json!({
            "fault": self.name, "control": is_control, "rounds": rounds, "operations": operations,
            "acknowledged": acknowledged, "lost": lost, "wrong": wrong + failed, "seed": self.seed,
        });
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        file.and_then(|mut file| file.write_all(format!("{report}\n").as_bytes())).expect("the report is written");
    }
}
