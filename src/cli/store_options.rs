//! Options that select a store, shared by the commands that open one.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;

use super::environment::origin;
use super::runtime::{block_on, start_log};
use super::store_url::{parse_store_url, warn_of_visible_password};
use plantstore_store::{OpenOptions, Store, StoreUrl};

/// Time that a command waits for a busy store, and for a server that writes without a pause.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub(super) struct StoreOption {
    /// Where the plants are kept: sqlite:PATH or postgres://user@host:port/database
    // Parsed by the command, because the parser's message would repeat a URL that may hold a password.
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
    /// Make the store if there is none, instead of rejecting that
    #[arg(long)]
    create: bool,
}

/// Options of commands that list what a store holds.
#[derive(Args)]
pub(super) struct ListOptions {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) store: StoreOption,
}

/// Permission of a command to change the schema of the store that it opens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaChange {
    /// Only the schema of a file is brought up to date.
    None,
    Update,
    /// Creates the store if there is none.
    Create,
}

impl CreateOption {
    pub(super) fn schema_change(self) -> SchemaChange {
        if self.create { SchemaChange::Create } else { SchemaChange::Update }
    }
}

impl StoreOption {
    pub(super) fn url(&self) -> anyhow::Result<StoreUrl> {
        parse_store_url(&origin("--store"), &self.store)
    }

    /// Returns how the store was named, for messages that ask for another.
    #[expect(clippy::unused_self, reason = "an option is asked about itself")]
    pub(super) fn origin(&self) -> String {
        match origin("--store").as_str() {
            option @ "--store" => format!("with {option}"),
            variable => format!("in {variable}"),
        }
    }

    pub(super) fn warn_of_visible_password(&self) {
        warn_of_visible_password("--store", &self.store, ", or PLANTSTORE_STORE");
    }

    /// Opens the store, which a server may be using, and runs `work` on it.
    pub(super) fn with<T>(
        &self,
        change: SchemaChange,
        work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _log = start_log();
        let url = self.url()?;
        self.warn_of_visible_password();
        block_on(async {
            let options = OpenOptions {
                create: change == SchemaChange::Create,
                migrate: change != SchemaChange::None,
                write_queue: 1,
                readers: 1,
                operator_timeout: STORE_TIMEOUT,
                timeout: STORE_TIMEOUT,
                await_server: false,
            };
            let (store, created) = Store::open(&url, options).await?;
            if created {
                writeln!(io::stderr(), "made a new store: {url}")?;
            }
            let result = work(&store).await;
            store.close().await;
            result
        })
    }
}
