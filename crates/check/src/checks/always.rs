//! Rules for every response, checked at the end.

use crate::check::Check;
use crate::error::{CheckError, Outcome};
use crate::options::Level;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "error-shape", "errors are JSON with an int32 `error` and a `message`", |run| {
        Box::pin(async { verdict(run.observations.malformed_error.as_ref()) })
    }),
    Check::new(Level::Interface, "no-server-error", "no request is answered with a server error", |run| {
        Box::pin(async { verdict(run.observations.server_error.as_ref()) })
    }),
    Check::new(Level::Full, "error-numbers", "error numbers are those of the table and start with the status", |run| {
        Box::pin(async { verdict(run.observations.wrong_code.as_ref()) })
    }),
    Check::new(
        Level::Full,
        "error-members",
        "an error has exactly two members, and its message says something",
        |run| Box::pin(async { verdict(run.observations.extra_members.as_ref()) }),
    ),
    Check::new(Level::Full, "request-id-always", "every answer has an X-Request-Id", |run| {
        Box::pin(async { verdict(run.observations.no_request_id.as_ref()) })
    }),
    Check::new(Level::Full, "nosniff-always", "every answer has X-Content-Type-Options: nosniff", |run| {
        Box::pin(async { verdict(run.observations.no_nosniff.as_ref()) })
    }),
];

fn verdict(error: Option<&CheckError>) -> Outcome {
    error.map_or(Ok(()), |error| Err(error.clone()))
}
