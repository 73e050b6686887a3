//! Whether a live server keeps the contract: a visit by one token, from outside, that leaves nothing behind.
//!
//! Checks are of two levels: what the interface itself promises, and what this project decided where it is silent. Each
//! is a function that asks the server through the [`Visit`] and ends with a verdict. The visit notes every plant before
//! it is sent, so that what was created is deleted again however a check ends.

mod access;
mod answer;
mod answers;
mod client;
mod creates;
mod deletes;
mod ledger;
mod lists;
mod pages;
mod refusals;
mod retries;
mod seen;
mod visit;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::UnboundedReceiver;

use self::answer::shown;
use self::client::{Ask, Client};
use self::visit::Visit;
use plantstore_client::trust::TrustFault;

pub use self::client::{Failure, ServerUrl, ServerUrlFault};

/// All checks together.
const CHECKS_PATIENCE: Duration = Duration::from_secs(300);
/// Deleting what was created, and looking for what is left.
const CLEANING_PATIENCE: Duration = Duration::from_secs(60);

/// Which promises are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Those of the interface.
    Interface,
    /// Those, and what this project decided where the interface is silent.
    Full,
}

/// What became of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server does as it must.
    Holds,
    /// It does not: what was expected, and what came.
    Fails(String),
    /// There is nothing to check here, for example because the token lacks a scope.
    NotApplicable(String),
    /// It could not be tried.
    Untried(String),
}

/// A check and its verdict.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name for machines.
    pub id: &'static str,
    /// What must hold, for people.
    pub words: &'static str,
    /// What it is about.
    pub group: &'static str,
    /// Who promises it.
    pub level: Level,
    /// Whether it holds.
    pub verdict: Verdict,
}

/// Whom to visit, and how.
pub struct Options {
    /// Where the server is.
    pub url: ServerUrl,
    /// The token to visit it with.
    pub token: String,
    /// Authorities to trust instead of the system's.
    pub authorities: Option<PathBuf>,
    /// For one answer.
    pub timeout: Duration,
    /// Which promises are checked.
    pub level: Level,
}

/// Why there is nothing to report. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum VisitFault {
    /// Nobody to trust.
    #[error(transparent)]
    Trust(#[from] TrustFault),
    /// No answer at all.
    #[error("{0}: is the server there, and is the address right?")]
    NoServer(Failure),
    /// The token is not accepted.
    #[error("the server does not accept the token: {0}")]
    Refused(String),
    /// No names without it.
    #[error("the system's random source failed")]
    NoRandomSource,
}

/// Why a check does not hold.
#[derive(Clone, Debug)]
enum Trouble {
    Broken(String),
    NotApplicable(String),
    Untried(String),
}

type Outcome<T = ()> = Result<T, Trouble>;

/// One promise, and how it is tried.
struct Check {
    id: &'static str,
    words: &'static str,
    level: Level,
    run: for<'a> fn(&'a mut Visit) -> BoxFuture<'a, Outcome>,
}

/// What there is to check, in this order: what later checks rely on comes first.
const GROUPS: &[(&str, &[Check])] = &[
    ("create", creates::CHECKS),
    ("delete", deletes::CHECKS),
    ("refusal", refusals::CHECKS),
    ("list", lists::CHECKS),
    ("page", pages::CHECKS),
    ("access", access::CHECKS),
    ("retry", retries::CHECKS),
    ("answer", answers::CHECKS),
    // These look at all answers to those before them.
    ("always", seen::CHECKS),
];

impl Check {
    const fn new(
        level: Level,
        id: &'static str,
        words: &'static str,
        run: for<'a> fn(&'a mut Visit) -> BoxFuture<'a, Outcome>,
    ) -> Self {
        Self { id, words, level, run }
    }
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Holds,
            Err(Trouble::Broken(why)) => Self::Fails(why),
            Err(Trouble::NotApplicable(why)) => Self::NotApplicable(why),
            Err(Trouble::Untried(why)) => Self::Untried(why),
        }
    }
}

/// Visits a server and tries every check of the level. The first interruption ends the checks, and what was created is
/// deleted all the same; the second ends that, too.
pub async fn run(options: Options, mut interruptions: UnboundedReceiver<()>) -> Result<Vec<Finding>, VisitFault> {
    let level = options.level;
    let mut visit = Visit::begin(options, CHECKS_PATIENCE).await?;
    let mut findings = Vec::new();
    let checks = GROUPS.iter().flat_map(|(group, checks)| checks.iter().map(move |check| (*group, check)));
    let mut interrupted = false;
    for (group, check) in checks.filter(|(_, check)| check.level <= level) {
        let verdict = if interrupted {
            Verdict::Untried("interrupted".to_owned())
        } else {
            tokio::select! {
                outcome = judged(check, &mut visit) => outcome.into(),
                Some(()) = interruptions.recv() => {
                    interrupted = true;
                    Verdict::Untried("interrupted".to_owned())
                }
            }
        };
        findings.push(Finding { id: check.id, words: check.words, group, level: check.level, verdict });
    }
    visit.grant(CLEANING_PATIENCE);
    let verdict = tokio::select! {
        outcome = visit.clean_up() => outcome.into(),
        Some(()) = interruptions.recv() => Verdict::Fails(format!("interrupted: {}", visit.remains())),
    };
    let words = "everything that was created is deleted again";
    findings.push(Finding { id: "nothing-left", words, group: "always", level: Level::Interface, verdict });
    Ok(findings)
}

/// A fault of ours in one check must neither end the others nor leave plants behind.
async fn judged(check: &Check, visit: &mut Visit) -> Outcome {
    let caught = AssertUnwindSafe((check.run)(visit)).catch_unwind().await;
    caught.unwrap_or_else(|_| {
        Err(Trouble::Untried("the check itself failed, which is a fault of this program".to_owned()))
    })
}

/// Asks whether a server is ready for requests.
pub async fn ready(url: ServerUrl, authorities: Option<PathBuf>, timeout: Duration) -> Result<(), String> {
    let client = Client::new(url, authorities.as_deref(), timeout).map_err(|fault| fault.to_string())?;
    let answer = client.ask(&Ask::new("GET", "/readyz")).await.map_err(|failure| failure.to_string())?;
    if answer.status == 200 {
        return Ok(());
    }
    Err(format!("not ready: {} with {}", answer.status, shown(&String::from_utf8_lossy(&answer.body))))
}

/// The moment that is this far away.
fn deadline(patience: Duration) -> Instant {
    Instant::now() + patience
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn a_check_that_panics_is_untried() {
        let check = Check::new(Level::Full, "x", "x", |_| Box::pin(async { panic!("on purpose") }));
        let mut visit = Visit::nowhere();
        assert!(matches!(judged(&check, &mut visit).await, Err(Trouble::Untried(_))));
    }

    #[test]
    fn names_are_unique() {
        let ids = GROUPS.iter().flat_map(|(_, checks)| checks.iter().map(|check| check.id));
        let mut known = BTreeSet::from(["nothing-left"]);
        ids.for_each(|id| assert!(known.insert(id), "{id} is there twice"));
    }
}
