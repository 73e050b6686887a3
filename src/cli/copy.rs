//! `plantstore copy`: copies a whole store to another place or engine. `backup` and `restore` use the same function.

use std::io::{self, Write};

use clap::Args;

use super::format::group_digits;
use super::progress::ProgressBar;
use super::runtime::{block_on, start_log};
use super::signals::discard_partial_files_on_end_signal;
use super::store_options::STORE_TIMEOUT;
use super::store_url::{parse_store_url, warn_of_exposure};
use super::table::{
    self,
    Column::{Number, Text},
};
use plantstore_store::transfer::{self, ContentDigest, RestoreTarget, Selection, Snapshot, TableDigest};
use plantstore_store::{OpenError, SchemaChange, StoreUrl};

/// Copy a whole store to a new place or engine, for example from SQLite to PostgreSQL
///
/// Copies a consistent snapshot of all users, tokens, shares, idempotency keys and plants. The copy is read back and its digests
/// are compared; if they differ, or anything fails, no new store is created. Later writes to the old store are not copied: stop
/// its servers first, and start them on the new one.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore copy --from sqlite:plantstore.db --to 'postgres://ada@db/plants?sslmode=verify-full'
  plantstore copy --from 'postgres://ada@db/plants?sslmode=verify-full' --to sqlite:plantstore.db")]
pub(super) struct Options {
    /// The store to copy: sqlite:PATH or postgres://user@host:port/database
    #[arg(long, value_name = "URL")]
    from: String,
    /// The new store: a file that does not exist, or a database without plants and users
    #[arg(long, value_name = "URL")]
    to: String,
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let _log = start_log();
        let (from, to) = (parse_store_url("--from", &self.from)?, parse_store_url("--to", &self.to)?);
        warn_of_exposure("--from", &self.from, "");
        warn_of_exposure("--to", &self.to, "");
        copy(&from, &to, SchemaChange::Create, "with --from")
    }
}

/// Copies a store and prints the counts. With [`SchemaChange::Migrate`], the source may be a file of an earlier release, which is
/// not changed. `origin` says how the user named the source, for error messages.
pub(super) fn copy(from: &StoreUrl, to: &StoreUrl, schema_change: SchemaChange, origin: &str) -> anyhow::Result<()> {
    discard_partial_files_on_end_signal()?;
    let mut bar = ProgressBar::new();
    let copied = block_on(async {
        // The source is opened first, so that nothing is created if it does not exist.
        let snapshot = match (from, schema_change) {
            (StoreUrl::Sqlite(file), SchemaChange::Migrate) => Snapshot::open_backup(file),
            _ => Snapshot::open(from, Selection::Everything, STORE_TIMEOUT).await,
        };
        let snapshot = snapshot.map_err(|error| advise(error, origin))?;
        let target = RestoreTarget::begin(to, schema_change, STORE_TIMEOUT).await?;
        Ok(transfer::copy(snapshot, target, |progress| bar.update(progress)).await?)
    });
    drop(bar);
    print_counts(&copied?)?;
    writeln!(io::stderr(), "copied {from} to {to}; read back, and nothing differs")?;
    Ok(())
}

fn advise(error: OpenError, origin: &str) -> anyhow::Error {
    match error {
        OpenError::Missing(url) => anyhow::anyhow!("there is no store at {url}: name one that exists {origin}"),
        OpenError::NotPlantstore(url, why) => {
            anyhow::anyhow!("{url} is not a plantstore file ({why}): name another {origin}")
        }
        other => other.into(),
    }
}

fn print_counts(copied: &ContentDigest) -> anyhow::Result<()> {
    let row = |table: &TableDigest| [table.title.to_owned(), group_digits(table.rows), table.digest.to_string()];
    let rows: Vec<_> = copied.tables.iter().map(row).collect();
    table::print([Text(""), Number("COPIED"), Text("SHA-256")], &rows)
}
