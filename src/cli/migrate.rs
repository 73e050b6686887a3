//! `plantstore migrate`: creates a store or brings its schema up to date.

use std::io::{self, Write};

use clap::Args;

use super::store_options::{SchemaChange, StoreOption};

/// Create a store, or update its schema, for servers that run with --no-migrate
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore migrate
  plantstore migrate --store postgres://plantstore@db.example/plants")]
pub(super) struct Options {
    #[command(flatten)]
    store: StoreOption,
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.store.with(SchemaChange::Create, async |_| Ok(writeln!(io::stderr(), "the schema is up to date")?))
    }
}
