//! Commands about a whole store: `plantstore migrate`, `backup`, `restore` and `copy`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::process::{block_on, discard_partial_files_on_end_signal, start_log};
use super::store_options::{STORE_TIMEOUT, StoreOption, parse_store_url, store_file, warn_of_exposure};
use super::table::{
    self,
    Column::{Number, Text},
};
use super::terminal::ProgressBar;
use plantstore_server::value_parser::{group_digits, number};
use plantstore_store::transfer::{self, RestoreTarget, Selection, Snapshot, TableDigest};
use plantstore_store::{OpenError, SchemaChange, Store, StoreUrl};

/// Create a store, or update its schema, for servers that run with --no-migrate
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore migrate
  plantstore migrate --store 'postgres://plantstore@db.example/plants?sslmode=verify-full'
  plantstore migrate --distribute citus --store 'postgres://plants@db/plants?sslmode=verify-full'")]
pub(super) struct Migrate {
    #[command(flatten)]
    store: StoreOption,
    /// Also distribute the tables over the workers of this extension of PostgreSQL
    #[arg(long, value_name = "EXTENSION", value_parser = ["citus"])]
    distribute: Option<String>,
    /// Number of shards that each worker gets when the tables are distributed. One is the cheapest; more can be moved to new
    /// workers without being split
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "distribute", value_parser = number::<u32>(1..=1_000))]
    shards_per_worker: u32,
}

impl Migrate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.store.with(SchemaChange::Migrate, async |_| Ok(writeln!(io::stderr(), "the schema is up to date")?))?;
        if self.distribute.is_some() { self.distribute() } else { Ok(()) }
    }

    fn distribute(&self) -> anyhow::Result<()> {
        let url = self.store.url()?;
        let tables = block_on(async { Ok(Store::distribute(&url, self.shards_per_worker, STORE_TIMEOUT).await?) })?;
        let mut output = io::stderr();
        for table in &tables {
            let already = if table.was_placed { "" } else { " already" };
            writeln!(output, "table {}: {}{already}", table.name, table.placement)?;
        }
        let any_placed = tables.iter().any(|table| table.was_placed);
        let done =
            if any_placed { "the tables are distributed: restart running servers" } else { "nothing to distribute" };
        Ok(writeln!(output, "{done}")?)
    }
}

/// Copy the whole store into a file, while servers continue to write
///
/// The file is an SQLite store, whichever engine it comes from: a consistent snapshot that is verified and readable only by its
/// owner. It appears when it is complete. `restore` copies it into a new store; `serve --store sqlite:FILE` serves it.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore backup monday.db
  plantstore backup monday.db --store 'postgres://plantstore@db.example/plants?sslmode=verify-full'")]
pub(super) struct Backup {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreOption,
}

impl Backup {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        self.store.warn_of_exposure();
        copy(&self.store.url()?, &store_file(self.file)?, SchemaChange::Create, &self.store.origin())
    }
}

/// Copy a backup into a new store of either engine
///
/// The store must not exist, or be an empty database. The backup is not changed. If anything fails, no store is created.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore restore monday.db --store sqlite:new.db
  plantstore restore monday.db --store 'postgres://plants@db.example/plants?sslmode=verify-full'")]
pub(super) struct Restore {
    /// The backup, or any other store file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreOption,
}

impl Restore {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        self.store.warn_of_exposure();
        copy(&store_file(self.file)?, &self.store.url()?, SchemaChange::Migrate, "as FILE")
    }
}

/// Copy a whole store to a new place or engine, for example from SQLite to PostgreSQL
///
/// Copies a consistent snapshot of all users, tokens, shares, idempotency keys and plants. The copy is read back and its digests
/// are compared; if they differ, or anything fails, no new store is created. Later writes to the old store are not copied: stop
/// its servers first, and start them on the new one.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore copy --from sqlite:plantstore.db --to 'postgres://ada@db/plants?sslmode=verify-full'
  plantstore copy --from 'postgres://ada@db/plants?sslmode=verify-full' --to sqlite:plantstore.db")]
pub(super) struct Copy {
    /// The store to copy: sqlite:PATH or postgres://user@host:port/database
    #[arg(long, value_name = "URL")]
    from: String,
    /// The new store: a file that does not exist, or a database without plants and users
    #[arg(long, value_name = "URL")]
    to: String,
}

impl Copy {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let _log = start_log();
        let from = parse_store_url("--from", &self.from)?;
        let to = parse_store_url("--to", &self.to)?;
        warn_of_exposure("--from", &self.from, "");
        warn_of_exposure("--to", &self.to, "");
        copy(&from, &to, SchemaChange::Create, "with --from")
    }
}

/// Copies a store and prints the counts. With [`SchemaChange::Migrate`], the source may be a file of an earlier release, which is
/// not changed. `origin` says how the user named the source, for error messages.
fn copy(from: &StoreUrl, to: &StoreUrl, schema_change: SchemaChange, origin: &str) -> anyhow::Result<()> {
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
    let row = |table: &TableDigest| [table.title.to_owned(), group_digits(table.rows), table.digest.to_string()];
    let rows: Vec<_> = copied?.tables.iter().map(row).collect();
    table::print([Text(""), Number("COPIED"), Text("SHA-256")], &rows)?;
    Ok(writeln!(io::stderr(), "copied {from} to {to}; read back, and nothing differs")?)
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
