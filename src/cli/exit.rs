//! Exit codes: 0 for success, 1 for failure, 2 for a usage error, and 128 plus the number of a signal that ended the command.

use std::process::ExitCode;

use super::signals::Interrupted;
use super::stdio::print_error;

pub(super) const USAGE_ERROR_CODE: u8 = 2;

/// An error in the command line or the environment.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// Prints the error of a command, if any, and returns its exit code.
pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    print_error(&format!("{error:#}"));
    ExitCode::from(match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => interrupted.exit_code(),
        None if error.is::<UsageError>() => USAGE_ERROR_CODE,
        None => 1,
    })
}
