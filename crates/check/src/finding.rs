//! Results of the checks.

use crate::error::{CheckError, CheckResult};
use crate::options::Level;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    /// The expected and the actual behaviour.
    Fails(String),
    /// There is nothing to check, for example because the token lacks a scope.
    NotApplicable(String),
    /// The check could not be run.
    Untried(String),
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub id: &'static str,
    /// The rule that is checked.
    pub description: &'static str,
    pub group: &'static str,
    pub level: Level,
    pub verdict: Verdict,
}

impl From<CheckResult> for Verdict {
    fn from(outcome: CheckResult) -> Self {
        match outcome {
            Ok(()) => Self::Holds,
            Err(CheckError::Failed(reason)) => Self::Fails(reason),
            Err(CheckError::NotApplicable(reason)) => Self::NotApplicable(reason),
            Err(CheckError::Untried(reason)) => Self::Untried(reason),
        }
    }
}
