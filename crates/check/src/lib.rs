//! Conformance checker: verifies through the HTTP interface, with one token, that a live server keeps the contract, and
//! deletes everything it has created.
//!
//! There are two levels of checks: what the interface itself specifies, and what this project specifies beyond that. A check
//! is a function that sends requests through the [`Run`] and returns an outcome. The run tracks every plant before its create
//! is sent, so that it is deleted again however a check ends.

mod checks;
mod cleanup_tracker;
mod client;
mod response;
mod run;
mod verdict;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use plantstore_client::Server;
use tokio::sync::mpsc::UnboundedReceiver;

use self::checks::GROUPS;
use self::client::{Client, Request};
use self::response::excerpt;
use self::run::Run;
use self::verdict::CheckResult;

pub use self::client::RequestError;
pub use self::run::RunError;
pub use self::verdict::{Finding, Level, Verdict};

pub struct Options {
    pub server: Server,
    pub token: String,
    /// Timeout of one request.
    pub timeout: Duration,
    pub level: Level,
}

const CHECKS_TIMEOUT: Duration = Duration::from_secs(300);
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs every check of the level. An interruption ends the checks but not the cleanup; a second one ends that, too.
pub async fn run(options: Options, mut interruptions: UnboundedReceiver<()>) -> Result<Vec<Finding>, RunError> {
    let Options { server, token, timeout, level } = options;
    let client = Client::new(server, Some(token), timeout)?;
    let mut run = Run::start(client, CHECKS_TIMEOUT).await?;
    let mut findings = Vec::new();
    let checks = GROUPS.iter().flat_map(|(group, checks)| checks.iter().map(move |check| (*group, check)));
    let mut interrupted = false;
    for (group, check) in checks.filter(|(_, check)| check.level <= level) {
        let verdict = tokio::select! {
            result = catch_panics((check.run)(&mut run)), if !interrupted => Verdict::of(result),
            Some(()) = interruptions.recv(), if !interrupted => {
                interrupted = true;
                Verdict::Untried("interrupted".to_owned())
            }
            else => Verdict::Untried("interrupted".to_owned()),
        };
        findings.push(Finding { id: check.id, description: check.description, group, level: check.level, verdict });
    }
    run.extend_deadline(CLEANUP_TIMEOUT);
    let verdict = tokio::select! {
        result = run.clean_up() => Verdict::of(result),
        Some(()) = interruptions.recv() => Verdict::Fails(format!("interrupted: {}", run.remains())),
    };
    let description = "all created plants are deleted again";
    findings.push(Finding { id: "nothing-left", description, group: "always", level: Level::Interface, verdict });
    Ok(findings)
}

/// Runs a check. A panic in it must neither end the other checks nor leave plants behind.
async fn catch_panics(check: impl Future<Output = CheckResult>) -> CheckResult {
    let caught = AssertUnwindSafe(check).catch_unwind().await;
    caught.unwrap_or_else(|_| Err(Verdict::Untried("the check panicked, which is a bug of this program".to_owned())))
}

pub async fn ready(server: Server, timeout: Duration) -> Result<(), String> {
    let client = Client::new(server, None, timeout).map_err(|fault| fault.to_string())?;
    let response = client.send(&Request::new("GET", "/readyz").anonymous()).await.map_err(|error| error.to_string())?;
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
        assert!(matches!(catch_panics(async { panic!("on purpose") }).await, Err(Verdict::Untried(_))));
    }
}
