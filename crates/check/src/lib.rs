//! Conformance checker: verifies through the HTTP interface, with one token, that a live server keeps the contract, and
//! deletes everything it has created.
//!
//! There are two levels of checks: what the interface itself specifies, and what this project specifies beyond that. A check
//! is a function that sends requests through the [`Run`] and returns an outcome. The run tracks every plant before its create
//! is sent, so that it is deleted again however a check ends.

mod check;
mod checks;
mod cleanup_tracker;
mod client;
mod error;
mod finding;
mod observations;
mod options;
mod request;
mod response;
mod run;
mod url;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use plantstore_client::Proxies;
use tokio::sync::mpsc::UnboundedReceiver;

use self::check::Check;
use self::checks::GROUPS;
use self::client::Client;
use self::error::{CheckError, CheckResult};
use self::request::Request;
use self::response::excerpt;
use self::run::Run;

pub use self::client::RequestError;
pub use self::finding::{Finding, Verdict};
pub use self::options::{Level, Options};
pub use self::run::RunError;
pub use self::url::{ServerUrl, ServerUrlError};

/// Timeout of all checks together.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of the cleanup.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs every check of the level. The first interruption ends the checks, and the created plants are still deleted; the
/// second interruption ends the cleanup, too.
pub fn run(
    options: Options,
    interruptions: UnboundedReceiver<()>,
) -> LocalBoxFuture<'static, Result<Vec<Finding>, RunError>> {
    Box::pin(run_checks(options, interruptions))
}

async fn run_checks(options: Options, mut interruptions: UnboundedReceiver<()>) -> Result<Vec<Finding>, RunError> {
    let level = options.level;
    let mut run = Run::start(options, CHECKS_TIMEOUT).await?;
    let mut findings = Vec::new();
    let checks = GROUPS.iter().flat_map(|(group, checks)| checks.iter().map(move |check| (*group, check)));
    let mut interrupted = false;
    for (group, check) in checks.filter(|(_, check)| check.level <= level) {
        let verdict = if interrupted {
            Verdict::Untried("interrupted".to_owned())
        } else {
            tokio::select! {
                outcome = catch_panics(check, &mut run) => outcome.into(),
                Some(()) = interruptions.recv() => {
                    interrupted = true;
                    Verdict::Untried("interrupted".to_owned())
                }
            }
        };
        findings.push(Finding { id: check.id, description: check.description, group, level: check.level, verdict });
    }
    run.extend_deadline(CLEANUP_TIMEOUT);
    let verdict = tokio::select! {
        outcome = run.clean_up() => outcome.into(),
        Some(()) = interruptions.recv() => Verdict::Fails(format!("interrupted: {}", run.remains())),
    };
    let description = "all created plants are deleted again";
    findings.push(Finding { id: "nothing-left", description, group: "always", level: Level::Interface, verdict });
    Ok(findings)
}

/// Runs a check. A panic in it must neither end the other checks nor leave plants behind.
async fn catch_panics(check: &Check, run: &mut Run) -> CheckResult {
    let caught = AssertUnwindSafe((check.run)(run)).catch_unwind().await;
    caught.unwrap_or_else(|_| Err(CheckError::Untried("the check panicked, which is a bug of this program".to_owned())))
}

/// Asks a server whether it is ready for requests.
pub async fn ready(
    url: ServerUrl,
    authorities: Option<PathBuf>,
    proxies: Proxies,
    timeout: Duration,
) -> Result<(), String> {
    let client = Client::new(url, authorities.as_deref(), proxies, timeout).map_err(|fault| fault.to_string())?;
    let response = client.send(&Request::new("GET", "/readyz")).await.map_err(|error| error.to_string())?;
    if response.status == 200 {
        return Ok(());
    }
    Err(format!("not ready: {} with {}", response.status, excerpt(&String::from_utf8_lossy(&response.body))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn check_that_panics_is_untried() {
        let check = Check::new(Level::Full, "x", "x", |_| Box::pin(async { panic!("on purpose") }));
        let mut run = Run::offline();
        assert!(matches!(catch_panics(&check, &mut run).await, Err(CheckError::Untried(_))));
    }
}
