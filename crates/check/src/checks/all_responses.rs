//! Reports the recorded violations of general rules as checks, at the end of a run.

use crate::check::Check;
use crate::error::{CheckError, CheckResult};
use crate::options::Level;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "error-shape", "errors are JSON with an int32 `error` and a `message`", |run| {
        Box::pin(async { verdict(run.observations.malformed_error.as_ref()) })
    }),
    Check::new(Level::Interface, "no-server-error", "no request gets a server error", |run| {
        Box::pin(async { verdict(run.observations.server_error.as_ref()) })
    }),
    Check::new(Level::Full, "error-codes", "error codes are documented and start with the status", |run| {
        Box::pin(async { verdict(run.observations.wrong_code.as_ref()) })
    }),
    Check::new(Level::Full, "error-members", "an error has exactly two members, and its message is not empty", |run| {
        Box::pin(async { verdict(run.observations.extra_members.as_ref()) })
    }),
    Check::new(Level::Full, "request-id-always", "every response has an X-Request-Id", |run| {
        Box::pin(async { verdict(run.observations.no_request_id.as_ref()) })
    }),
    Check::new(Level::Full, "nosniff-always", "every response has X-Content-Type-Options: nosniff", |run| {
        Box::pin(async { verdict(run.observations.no_nosniff.as_ref()) })
    }),
];

fn verdict(error: Option<&CheckError>) -> CheckResult {
    error.map_or(Ok(()), |error| Err(error.clone()))
}
