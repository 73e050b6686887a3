//! Errors of the store.

use std::fmt;

use crate::new_file::NewFileError;
use crate::url::StoreUrl;
use plantstore_model::user::UserNameError;

/// Reasons why a store does not open. The messages say what to do and are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store, and none was to be made.
    #[error(
        "there is no store at {0}{looked_for}: name yours with --store; `plantstore serve` makes a new one, and so do \
         `token create` and `import` with --create",
        looked_for = looked_for(.0)
    )]
    Missing(StoreUrl),
    /// The file cannot be made, read or written.
    #[error("cannot open {0}: {1}; name a file in a directory that exists and that this user can write to")]
    Unusable(StoreUrl, String),
    /// The file is something else.
    #[error("{0} is not a plantstore file ({1}): name another file with --store")]
    Foreign(StoreUrl, String),
    /// The file was written by a newer release.
    #[error("{0} was written by a newer plantstore (schema {1}, this one knows {2}): use that release or a later one")]
    Newer(StoreUrl, i64, i64),
    /// The schema is older than this release, and it was not to be changed.
    #[error("the schema of {0} is at version {1}, this release needs {2}: run `plantstore migrate` first")]
    Outdated(StoreUrl, i64, i64),
    /// The database cannot be reached, or does not let us in.
    #[error("cannot connect to {0}: {1}")]
    Unreachable(StoreUrl, String),
    /// The database cannot be used as it is.
    #[error("cannot use {0}: {1}")]
    Unfit(StoreUrl, String),
}

/// The whole path of a file that is named by a part of it, which shows in which directory a command was run.
fn looked_for(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Sqlite(path) if path.is_relative() => {
            std::path::absolute(path).map_or_else(|_| String::new(), |path| format!(" ({})", path.display()))
        }
        StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => String::new(),
    }
}

/// Reasons why an operation failed, in the terms that matter to the caller. The texts are for the log, never for a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The queue of writes is full. Nothing was done.
    #[error("the write queue is full")]
    Overloaded,
    /// There is no room on the disk. Nothing was done; it works again once there is room.
    #[error("storage is full: {0}")]
    Full(String),
    /// The store cannot be used at the moment. Nothing was done.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// A request with the same key is in flight. Nothing was done.
    #[error("a request with the same key is in flight")]
    InFlight,
    /// The change may or may not have happened.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(&'static str),
    /// A new user cannot have this name. Nothing was done.
    #[error("{0}")]
    NewUserName(UserNameError),
    /// A row breaks the rules of the service. It is not copied.
    #[error("{0}; correct this row first, nothing is copied until then")]
    BadRow(BadRow),
    /// The store returned what it never should.
    #[error("store failed: {0}")]
    Internal(String),
}

/// A row that breaks a rule of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    table: &'static str,
    row: String,
    fault: String,
}

impl BadRow {
    pub(crate) fn new(table: &'static str, row: String, fault: String) -> Self {
        Self { table, row, fault }
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "table {}, {}: {}", self.table, self.row, self.fault)
    }
}

/// Reasons why a store cannot be restored into. The messages are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{0} holds {1} already, and is left as it is: name a store that is new or empty")]
    Occupied(StoreUrl, &'static str),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    File(#[from] NewFileError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
