//! Options that select a store, shared by the commands that open one, store URLs, and the passwords of their databases.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::environment::{UsageError, origin, variable};
use super::process::{block_on, start_log};
use super::table::{self, Column};
use super::terminal::{is_dash, print_json};
use plantstore_store::{OpenOptions, Opened, PostgresUrl, SchemaChange, Store, StoreUrl};

pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub(super) struct StoreOption {
    /// The store: sqlite:PATH, or postgres://user@host:port/database?sslmode=verify-full. Without TLS, a password is sent in clear
    /// text only with sslmode=disable, and without verify-full a host other than this machine logs a warning
    // Parsed by the command, because the parser's message would repeat a URL that may contain a password.
    #[arg(
        long,
        value_name = "URL",
        env = "PLANTSTORE_STORE",
        default_value = "sqlite:plantstore.db",
        hide_env_values = true
    )]
    store: String,
}

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct CreateOption {
    /// Create the store if it does not exist
    #[arg(long)]
    create: bool,
}

#[derive(Args)]
pub(super) struct ListCommandOptions {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) store: StoreOption,
}

impl ListCommandOptions {
    /// Prints the items as JSON, or as rows under their headings.
    pub(super) fn print<T: Serialize, const N: usize>(
        &self,
        items: &[T],
        columns: [Column; N],
        row: impl Fn(&T) -> [String; N],
    ) -> anyhow::Result<()> {
        if self.json {
            return print_json(&items);
        }
        table::print(columns, &items.iter().map(row).collect::<Vec<_>>())
    }
}

impl CreateOption {
    pub(super) fn schema_change(self) -> SchemaChange {
        if self.create { SchemaChange::Create } else { SchemaChange::None }
    }
}

impl StoreOption {
    pub(super) fn url(&self) -> anyhow::Result<StoreUrl> {
        parse_store_url(&origin("--store"), &self.store)
    }

    /// Returns the source of the URL, for messages that ask for another.
    #[expect(clippy::unused_self, reason = "it describes this option")]
    pub(super) fn origin(&self) -> String {
        match origin("--store").as_str() {
            option @ "--store" => format!("with {option}"),
            variable => format!("in {variable}"),
        }
    }

    pub(super) fn warn_of_exposure(&self) {
        warn_of_exposure("--store", &self.store, ", or PLANTSTORE_STORE");
    }

    /// Opens the store, which a server may be using, and runs `work` on it.
    pub(super) fn with<T>(
        &self,
        schema_change: SchemaChange,
        work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _log = start_log();
        let url = self.url()?;
        self.warn_of_exposure();
        block_on(async {
            let options = OpenOptions::of_command(schema_change, STORE_TIMEOUT);
            let Opened { store, is_new } = Store::open(&url, options).await?;
            if is_new {
                writeln!(io::stderr(), "created a new store: {url}")?;
            }
            let result = work(&store).await;
            store.close().await;
            result
        })
    }
}

/// Parses the store URL given with this option and adds the database password.
pub(super) fn parse_store_url(option: &str, text: &str) -> anyhow::Result<StoreUrl> {
    let mut url = text.parse().map_err(|error| UsageError(format!("{option}: {error}")))?;
    if let StoreUrl::Postgres(url) = &mut url {
        find_password(url)?;
    }
    Ok(url)
}

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
