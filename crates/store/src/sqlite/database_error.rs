//! Maps SQLite's errors to those of the store.

use rusqlite::{Error, ErrorCode, ffi};

use crate::error::StoreError;

/// Returns whether the disk failed to make written data durable. After that nothing the operating system says of the file can be
/// trusted (it marks the failed pages clean), so the only safe step is to end the process and recover from what is on disk.
pub(super) fn is_failed_sync(error: &Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// The error in the terms of the store's contract. Only for operations that were rolled back.
pub(super) fn store_error(error: &Error) -> StoreError {
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

/// The error of a change that was rolled back, in the same terms; after a failed sync there is no going on.
pub(super) fn after_change(error: &Error) -> StoreError {
    if is_failed_sync(error) {
        end_process("the disk failed to keep what was written", &describe(error));
    }
    store_error(error)
}

/// The error in words, with SQLite's extended code; never holds a value that was bound to a statement.
pub(super) fn describe(error: &Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error} (code {})", code.extended_code),
        None => error.to_string(),
    }
}

/// Ends the process: what was not acknowledged stays unknown to its client, and what was acknowledged is on disk.
pub(super) fn end_process(what: &str, detail: &str) -> ! {
    end_process_with(what, detail, "start it again once the disk is sound", || {})
}

/// Logs the reason and what to do about it, runs `finish`, and ends the process.
pub(super) fn end_process_with(what: &str, detail: &str, advice: &str, finish: impl FnOnce()) -> ! {
    tracing::error!(detail, "{what}: ending the process; {advice}");
    finish();
    std::process::exit(1);
}
