//! Store URLs on the command line, and the passwords of their databases.

use std::path::PathBuf;

use super::exit::UsageError;
use super::stdio::is_dash;
use plantstore_store::{PostgresUrl, StoreUrl};

/// Parses the store URL given with this option and adds the database password.
pub(super) fn parse_store_url(option: &str, text: &str) -> anyhow::Result<StoreUrl> {
    let mut url = text.parse().map_err(|error| UsageError(format!("{option}: {error}")))?;
    if let StoreUrl::Postgres(url) = &mut url {
        find_password(url)?;
    }
    Ok(url)
}

/// Returns the URL of the store in this file.
pub(super) fn store_file(path: PathBuf) -> Result<StoreUrl, UsageError> {
    if is_dash(&path) {
        return Err(UsageError("a store cannot be read or written through a pipe: name a file".to_owned()));
    }
    Ok(StoreUrl::Sqlite(path))
}

/// Logs a warning if the URL has a password and is an argument, which every user of the machine can read, and one if an attacker
/// on the network could pretend to be the database. `alternative` continues the list of better places for a password.
pub(super) fn warn_of_exposure(option: &str, text: &str, alternative: &str) {
    let Ok(StoreUrl::Postgres(url)) = text.parse() else { return };
    if let Some(host) = url.unverified_host() {
        tracing::warn!(
            host,
            "the database is not verified, so an attacker on the network can read and change the plants: use sslmode=verify-full"
        );
    }
    if url.has_password() && std::env::args().any(|argument| argument.ends_with(text)) {
        tracing::warn!(
            "the password in {option} is visible to all users of this machine: \
             put it into PGPASSWORD, a file named by PGPASSFILE{alternative}"
        );
    }
}

/// Adds the password to a URL without one, from the same places as PostgreSQL's own programs.
fn find_password(url: &mut PostgresUrl) -> anyhow::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "variables of PostgreSQL, not options of this program")]
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if url.has_password() {
        return Ok(());
    }
    if let Some(password) = variable("PGPASSWORD") {
        url.set_password(&password.to_string_lossy());
    } else if let Some(file) = variable("PGPASSFILE") {
        url.set_password_from(&PathBuf::from(file))?;
    } else if let Some(file) = variable("HOME").map(|home| PathBuf::from(home).join(".pgpass"))
        && file.exists()
    {
        // Errors are ignored, because the user did not name this file, and the database may need no password.
        let _ = url.set_password_from(&file);
    }
    Ok(())
}
