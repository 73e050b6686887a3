//! `plantstore migrate`: creates a store or brings its schema up to date.

use std::io::{self, Write};

use clap::{Args, ValueEnum};

use super::runtime::block_on;
use super::store_options::{STORE_TIMEOUT, StoreOption};
use plantstore_store::{SchemaChange, Store};

/// Create a store, or update its schema, for servers that run with --no-migrate
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore migrate
  plantstore migrate --store 'postgres://plantstore@db.example/plants?sslmode=verify-full'
  plantstore migrate --distribute citus --store 'postgres://plants@db/plants?sslmode=verify-full'")]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreOption,
    /// Also distribute the tables over the workers of this extension of PostgreSQL
    #[arg(long, value_name = "EXTENSION")]
    distribute: Option<Extension>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Extension {
    Citus,
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.store.with(SchemaChange::Migrate, async |_| Ok(writeln!(io::stderr(), "the schema is up to date")?))?;
        match self.distribute {
            Some(Extension::Citus) => self.distribute(),
            None => Ok(()),
        }
    }

    fn distribute(&self) -> anyhow::Result<()> {
        let url = self.store.url()?;
        let tables = block_on(async { Ok(Store::distribute(&url, STORE_TIMEOUT).await?) })?;
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
