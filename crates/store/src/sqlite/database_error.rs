//! Maps SQLite's errors to those of the store.

use rusqlite::{Error, ErrorCode, ffi};

use crate::error::StoreError;

/// Returns true if a sync failed. The operating system then marks the failed pages as clean, so later reads cannot be trusted.
/// The only safe reaction is to exit and recover from what is on disk.
pub(super) fn is_failed_sync(error: &Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// Maps the error of an operation that was rolled back.
pub(crate) fn store_error(error: &Error) -> StoreError {
    let text = describe(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(text),
        // The shared memory file beside the database could not grow.
        Some(ErrorCode::SystemIoFailure)
            if error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE) =>
        {
            StoreError::Full(text)
        }
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory
            | ErrorCode::ReadOnly
            | ErrorCode::FileLockingProtocolFailed,
        ) => StoreError::Unavailable(text),
        _ => StoreError::Internal(text),
    }
}

/// Maps the error of a change that was rolled back. Exits the process after a failed sync.
pub(crate) fn change_error(error: &Error) -> StoreError {
    if is_failed_sync(error) {
        exit_process("the disk failed to sync written data", &describe(error));
    }
    store_error(error)
}

/// Returns the message of the error with SQLite's extended code. It never contains a bound value.
pub(crate) fn describe(error: &Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error} (code {})", code.extended_code),
        None => error.to_string(),
    }
}

/// Exits the process. All acknowledged writes are on disk; the outcome of the others is unknown to their clients.
pub(super) fn exit_process(what: &str, detail: &str) -> ! {
    exit_process_with(what, detail, "restart the service when the disk works again", || {})
}

/// Logs the reason and the advice, runs `finish`, and exits the process.
pub(super) fn exit_process_with(what: &str, detail: &str, advice: &str, finish: impl FnOnce()) -> ! {
    tracing::error!(detail, "{what}: exiting; {advice}");
    finish();
    std::process::exit(1);
}
