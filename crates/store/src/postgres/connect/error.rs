//! Maps errors of the database to those of the store.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::StoreError;

/// Error message for a database that does not respond.
pub(crate) const NO_RESPONSE: &str = "the database did not respond in time";
/// Error message for a commit with an unknown outcome.
pub(crate) const LOST_DURING_COMMIT: &str = "the connection to the database was lost during the commit";

/// Error of a statement other than COMMIT, by how to handle it.
pub(crate) enum DatabaseError {
    /// The connection is lost: retry on another one.
    ConnectionLost(String),
    /// A conflict with another transaction: retry.
    Retryable(String),
    /// The database works, but could not reach one of the servers that it distributes its tables to: retry after a pause.
    WorkerLost(String),
    /// A retry would not help.
    Permanent(StoreError),
}

impl DatabaseError {
    pub(crate) fn classify(error: &Error) -> Self {
        let text = describe(error);
        let Some(code) = error.code() else {
            // Without a code, the error is of the connection or of decoding a value.
            return if is_broken(error) {
                Self::ConnectionLost(text)
            } else {
                Self::Permanent(StoreError::Internal(text))
            };
        };
        // A read-only server is no longer the primary; a prepared statement may be missing or outdated.
        if ends_connection(error) || matches!(code.code(), "25006" | "26000") || is_outdated_plan(error) {
            return Self::ConnectionLost(text);
        }
        if is_of_another_server(code) {
            return Self::WorkerLost(text);
        }
        if is_conflict(error) || *code == SqlState::LOCK_NOT_AVAILABLE || is_lost_shard(error) {
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

    /// Returns the error for the caller if there is no time for a retry.
    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::ConnectionLost(text) | Self::Retryable(text) | Self::WorkerLost(text) => {
                StoreError::Unavailable(text)
            }
            Self::Permanent(error) => error,
        }
    }
}

/// Maps the error of a statement that is not retried.
pub(crate) fn store_error(error: &Error) -> StoreError {
    DatabaseError::classify(error).into_error()
}

/// Returns true if a COMMIT that failed with this error was certainly rolled back: because of a conflict, a constraint or a full
/// disk. Other errors may occur while the commit waits for its standby, or mean that the outcome is unknown (40003).
pub(crate) fn certainly_not_committed(error: &Error) -> bool {
    !ends_connection(error)
        && error.code().map(SqlState::code).is_some_and(|code| {
            (code.starts_with("40") && code != "40003") || code.starts_with("23") || code == "53100"
        })
}

/// Returns true if the database rejected a statement and keeps the connection: the transaction will be rolled back.
pub(crate) fn is_rejection(error: &Error) -> bool {
    error.as_db_error().is_some() && !ends_connection(error)
}

/// Returns true if a statement does not suit the tables, such as a table that does not exist, or may not be used.
pub(crate) fn is_about_tables(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("42"))
}

/// Returns true if the database aborted the transaction because of another one. It can be repeated after a ROLLBACK.
pub(crate) fn is_conflict(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

fn ends_connection(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        let parsed = error.parsed_severity();
        let fatal = matches!(parsed, Some(Severity::Fatal | Severity::Panic));
        // Servers that report no severity that can be parsed.
        let unknown = parsed.is_none() && is_of_another_server(error.code());
        fatal || unknown || is_shutdown_of_citus(error)
    })
}

/// Returns true if the server reports an end or a failure of a connection. If the error is not fatal, it is about a connection of
/// the server to another one, such as a worker of Citus.
fn is_of_another_server(code: &SqlState) -> bool {
    code.code().starts_with("57P") || code.code().starts_with("08")
}

/// Returns true if Citus noticed that its server was killed. It reports an internal error, and then ends the connection. The
/// message is never translated.
fn is_shutdown_of_citus(error: &DbError) -> bool {
    *error.code() == SqlState::INTERNAL_ERROR && error.message() == "postmaster was shut down, exiting"
}

/// Returns true if a prepared statement must be prepared again, because a table has changed. Other statements that the server
/// does not support have the same code; they fail again on every connection.
fn is_outdated_plan(error: &Error) -> bool {
    is_from_routine(error, &SqlState::FEATURE_NOT_SUPPORTED, "RevalidateCachedQuery")
}

/// Returns true if Citus has planned a statement for a shard that was split or moved before its execution.
fn is_lost_shard(error: &Error) -> bool {
    is_from_routine(error, &SqlState::INTERNAL_ERROR, "LookupShardIdCacheEntry")
}

/// Compares the name of the routine, because it is never translated.
fn is_from_routine(error: &Error, code: &SqlState, routine: &str) -> bool {
    error.as_db_error().is_some_and(|error| error.code() == code && error.routine() == Some(routine))
}

fn is_broken(error: &Error) -> bool {
    error.is_closed() || error.source().is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// Returns the error message for the log and the operator. It never contains the statement.
pub(crate) fn describe(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => format!("{} ({})", error.message(), error.code().code()),
        (None, Some(source)) => {
            // Without the operating system's error number.
            let source = source.to_string();
            format!("{error}: {}", source.split(" (os error ").next().unwrap_or(&source))
        }
        (None, None) => error.to_string(),
    }
}
