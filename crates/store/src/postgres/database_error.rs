//! Maps the database's errors to those of the store.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use crate::error::StoreError;

/// Error text for a database that does not respond.
pub(super) const SILENT: &str = "the database did not answer in time";

/// An error of a statement that is not a commit, by what can be done about it.
pub(super) enum DatabaseError {
    /// The connection is of no use any more: another may be.
    ConnectionLost(String),
    /// The statement lost against others, which says nothing about the next attempt.
    Retryable(String),
    /// Another attempt would not help.
    Permanent(StoreError),
}

impl DatabaseError {
    pub(super) fn classify(error: &Error) -> Self {
        let text = describe(error);
        let Some(code) = error.code() else {
            // Without a code it is not the database that spoke, save for a value that cannot be read.
            return if is_broken(error) {
                Self::ConnectionLost(text)
            } else {
                Self::Permanent(StoreError::Internal(text))
            };
        };
        // A server that has become read-only is no longer the primary; what was prepared may be gone or outdated.
        if ends_connection(error) || matches!(code.code(), "25006" | "26000" | "0A000") {
            return Self::ConnectionLost(text);
        }
        if *code == SqlState::T_R_SERIALIZATION_FAILURE
            || *code == SqlState::T_R_DEADLOCK_DETECTED
            || *code == SqlState::LOCK_NOT_AVAILABLE
        {
            return Self::Retryable(text);
        }
        Self::Permanent(match code.code() {
            "53100" => StoreError::Full(text),
            // Out of memory or of connections, a disk that fails, or a statement that took too long.
            code if code.starts_with("53") || code.starts_with("58") || code == "57014" => {
                StoreError::Unavailable(text)
            }
            _ => StoreError::Internal(text),
        })
    }

    /// Returns the error for the caller when there is no time for another attempt.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::ConnectionLost(text) | Self::Retryable(text) => StoreError::Unavailable(text),
            Self::Permanent(error) => error,
        }
    }
}

/// Returns the error of a statement for a caller that does not try again.
pub(super) fn store_error(error: &Error) -> StoreError {
    DatabaseError::classify(error).into_error()
}

/// Returns whether a commit that failed with this error certainly did not happen: it lost against others, broke a rule, or found
/// no room. Anything else may have come while the commit waited for its standby, or says that the outcome is unknown (40003).
pub(super) fn certainly_not_committed(error: &Error) -> bool {
    !ends_connection(error)
        && error.code().map(SqlState::code).is_some_and(|code| {
            (code.starts_with("40") && code != "40003") || code.starts_with("23") || code == "53100"
        })
}

/// Returns whether the database rejected a statement and goes on: of the transaction that it was in, nothing will happen.
pub(super) fn is_rejection(error: &Error) -> bool {
    error.as_db_error().is_some() && !ends_connection(error)
}

fn ends_connection(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        let parsed = error.parsed_severity();
        let fatal = matches!(parsed, Some(Severity::Fatal | Severity::Panic));
        fatal || error.code().code().starts_with("57P") || error.code().code().starts_with("08")
    })
}

fn is_broken(error: &Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// Returns the error as the log and operators read it: without the statement, which the library never repeats.
pub(super) fn describe(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => format!("{} ({})", error.message(), error.code().code()),
        (None, Some(source)) => {
            // The system's own number says nothing that its words do not.
            let source = source.to_string();
            format!("{error}: {}", source.split(" (os error ").next().unwrap_or(&source))
        }
        (None, None) => error.to_string(),
    }
}
