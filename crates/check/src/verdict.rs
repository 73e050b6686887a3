//! Results of the checks.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Interface,
    /// Rules of the interface, and those that this project adds.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "detail")]
pub enum Verdict {
    Holds,
    /// The expected and the actual behaviour.
    Fails(String),
    /// There is nothing to check, for example because the token lacks a scope.
    #[serde(rename = "not applicable")]
    NotApplicable(String),
    Untried(String),
}

/// Result of a check or of a step of it. The error is a verdict other than [`Verdict::Holds`].
pub(crate) type CheckResult<T = ()> = Result<T, Verdict>;

impl Verdict {
    pub(crate) fn of(result: CheckResult) -> Self {
        result.err().unwrap_or(Self::Holds)
    }

    /// Returns true if the verdict is no violation. A check that could not be tried counts as one.
    pub fn is_kept(&self) -> bool {
        matches!(self, Self::Holds | Self::NotApplicable(_))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails(_) => "fails",
            Self::NotApplicable(_) => "not applicable",
            Self::Untried(_) => "untried",
        }
    }

    /// Returns the reason why the rule is not known to hold.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Holds => None,
            Self::Fails(reason) | Self::NotApplicable(reason) | Self::Untried(reason) => Some(reason),
        }
    }
}

/// A check and its verdict, as `--json` shows them.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    #[serde(rename = "check")]
    pub id: &'static str,
    #[serde(rename = "about")]
    pub group: &'static str,
    pub level: Level,
    #[serde(rename = "what_must_hold")]
    pub description: &'static str,
    #[serde(flatten)]
    pub verdict: Verdict,
}
