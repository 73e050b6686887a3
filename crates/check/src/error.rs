//! Errors of checks.

#[derive(Clone, Debug)]
pub(crate) enum CheckError {
    Failed(String),
    NotApplicable(String),
    Untried(String),
}

pub(crate) type CheckResult<T = ()> = Result<T, CheckError>;

impl CheckError {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Failed(text) | Self::NotApplicable(text) | Self::Untried(text) => text,
        }
    }
}
