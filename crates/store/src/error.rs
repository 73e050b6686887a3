//! Errors of the store.

use crate::new_file::NewFileError;
use crate::url::StoreUrl;
use plantstore_model::user::UserNameError;

/// Errors of opening a store. The messages are for the operator and say what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "there is no store at {0}{looked_for}: name yours with --store; `plantstore serve` and `plantstore migrate` create a \
         new one, and so do `token create` and `import` with --create",
        looked_for = looked_for(.0)
    )]
    Missing(StoreUrl),
    #[error("cannot open {0}: {1}; name a file in a directory that exists and that this user can write to")]
    Unusable(StoreUrl, String),
    #[error("{0} is not a plantstore file ({1}): name another file with --store")]
    NotPlantstore(StoreUrl, String),
    #[error("{0} was written by a newer plantstore (schema {1}, this one knows {2}): use that release or a later one")]
    Newer(StoreUrl, i64, i64),
    #[error("the schema of {0} is at version {1}, this release needs {2}: run `plantstore migrate` first")]
    Outdated(StoreUrl, i64, i64),
    #[error("cannot connect to {0}: {1}")]
    Unreachable(StoreUrl, String),
    #[error("cannot use {0}: {1}")]
    Unfit(StoreUrl, String),
}

/// Returns the absolute path of a file that is named by a relative one, to show in which directory the command was run.
fn looked_for(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Sqlite(path) if path.is_relative() => {
            std::path::absolute(path).map_or_else(|_| String::new(), |path| format!(" ({})", path.display()))
        }
        StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => String::new(),
    }
}

/// Errors of operations, by what they mean for the caller: nothing was changed, but for [`Self::OutcomeUnknown`]. The texts are for
/// the log and the operator, never for a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the write queue is full")]
    Overloaded,
    #[error("storage is full: {0}")]
    Full(String),
    #[error("store unavailable: {0}")]
    Unavailable(String),
    #[error("a request with the same key is in flight")]
    InFlight,
    /// The change may or may not have been committed.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(&'static str),
    #[error("{0}")]
    NewUserName(UserNameError),
    #[error("{0}; correct this row first, nothing is copied until then")]
    BadRow(String),
    #[error("store failed: {0}")]
    Internal(String),
}

/// Errors of restoring a store. The messages are for the operator.
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
