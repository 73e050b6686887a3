//! `plantstore restore`: copies a backup into a new store.

use std::path::PathBuf;

use clap::Args;

use super::copy::copy;
use super::runtime::start_log;
use super::store_options::StoreOption;
use super::store_url::store_file;
use plantstore_store::SchemaChange;

/// Copy a backup into a new store of either engine
///
/// The store must not exist, or be an empty database. The backup is not changed. If anything fails, no store is created.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore restore monday.db --store sqlite:new.db
  plantstore restore monday.db --store 'postgres://plants@db.example/plants?sslmode=verify-full'")]
pub(super) struct Options {
    /// The backup, or any other store file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreOption,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        self.store.warn_of_exposure();
        copy(&store_file(self.file)?, &self.store.url()?, SchemaChange::Migrate, "as FILE")
    }
}
