//! Options that select a store, shared by the commands that open one.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;

use super::environment::origin;
use super::runtime::{block_on, start_log};
use super::store_url::{parse_store_url, warn_of_exposure};
use plantstore_store::{OpenOptions, SchemaChange, Store, StoreUrl};

/// Time limit of a command for a busy store.
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

/// Options of commands that list the contents of a store.
#[derive(Args)]
pub(super) struct ListCommandOptions {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) store: StoreOption,
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
            let options = OpenOptions {
                schema_change,
                write_queue: 1,
                readers: 1,
                admin_timeout: STORE_TIMEOUT,
                timeout: STORE_TIMEOUT,
                await_server: false,
            };
            let (store, created) = Store::open(&url, options).await?;
            if created {
                writeln!(io::stderr(), "created a new store: {url}")?;
            }
            let result = work(&store).await;
            store.close().await;
            result
        })
    }
}
