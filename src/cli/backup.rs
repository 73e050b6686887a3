//! `plantstore backup`: copies a whole store into one file.

use std::path::PathBuf;

use clap::Args;

use super::copy::copy;
use super::runtime::start_log;
use super::store_options::StoreOption;
use super::store_url::store_file;
use plantstore_store::SchemaChange;

/// Copy the whole store into a file, while servers continue to write
///
/// The file is an SQLite store, whichever engine it comes from: a consistent snapshot that is verified and readable only by its
/// owner. It appears when it is complete. `restore` copies it into a new store; `serve --store sqlite:FILE` serves it.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore backup monday.db
  plantstore backup monday.db --store 'postgres://plantstore@db.example/plants?sslmode=verify-full'")]
pub(super) struct Options {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreOption,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        self.store.warn_of_exposure();
        copy(&self.store.url()?, &store_file(self.file)?, SchemaChange::Create, &self.store.origin())
    }
}
