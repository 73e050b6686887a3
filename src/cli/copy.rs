//! `plantstore copy`: a whole store, from one place or engine to another. Backups and restores are copies, too.

use std::io::{self, Write};

use clap::Args;
use tracing::Level;

use super::progress::Bar;
use super::signals::discard_partial_files_on_end_signal;
use super::words::grouped;
use super::{PATIENCE, run_to_end, store_url, table, warn_of_visible_password};
use plantstore_store::archive::{self, ContentDigest};
use plantstore_store::{OpenError, RestoreTarget, Selection, Snapshot, StoreUrl};
use plantstore_telemetry::logging;

/// Copy a whole store to a new place, from SQLite to PostgreSQL, back, or elsewhere
///
/// All there is at one moment: users, tokens, shares, idempotency keys and plants. What has arrived is read back and its
/// digests compared; if they differ, or anything fails, the new store does not come into being. What is written to the old store
/// meanwhile is not copied: stop its servers first, and start them on the new one.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore copy --from sqlite:plantstore.db --to postgres://plantstore@db.example/plants
  plantstore copy --from postgres://plantstore@db.example/plants --to sqlite:plantstore.db")]
pub(super) struct Options {
    /// The store to copy: sqlite:PATH or postgres://user@host:port/database
    #[arg(long, value_name = "URL")]
    from: String,
    /// The new store: a file that does not exist, or a database that holds no plants and users
    #[arg(long, value_name = "URL")]
    to: String,
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let _log = logging::start(logging::Format::Human, Level::WARN);
        let (from, to) = (store_url("--from", &self.from)?, store_url("--to", &self.to)?);
        warn_of_visible_password("--from", &self.from, "");
        warn_of_visible_password("--to", &self.to, "");
        copy(&from, &to, "with --from")
    }
}

/// Copies, and shows what was copied. `named` is how the store to copy was named, for messages about it.
pub(super) fn copy(from: &StoreUrl, to: &StoreUrl, named: &str) -> anyhow::Result<()> {
    discard_partial_files_on_end_signal()?;
    let mut bar = Bar::new();
    let copied = run_to_end(async {
        // First of all: for one that is not there, nothing is begun.
        let snapshot =
            Snapshot::open(from, Selection::Everything, PATIENCE).await.map_err(|error| advise(error, named))?;
        let target = RestoreTarget::begin(to, PATIENCE).await?;
        Ok(archive::copy(snapshot, target, |progress| bar.update(progress)).await?)
    });
    drop(bar);
    show(&copied?)?;
    writeln!(io::stderr(), "copied {from} to {to}; read back, and nothing differs")?;
    Ok(())
}

fn advise(error: OpenError, named: &str) -> anyhow::Error {
    match error {
        OpenError::Missing(url) => anyhow::anyhow!("there is no store at {url}: name one that exists {named}"),
        OpenError::Foreign(url, why) => anyhow::anyhow!("{url} is not a plantstore file ({why}): name another {named}"),
        other => other.into(),
    }
}

fn show(copied: &ContentDigest) -> anyhow::Result<()> {
    let counts = copied.counts;
    let row = |what: &str, count, digest: archive::Digest| [what.to_owned(), grouped(count), digest.to_string()];
    let rows = [
        row("users", counts.users, copied.users),
        row("tokens", counts.tokens, copied.tokens),
        row("shares", counts.shares, copied.shares),
        row("idempotency keys", counts.keys, copied.keys),
        row("plants", counts.plants, copied.plants),
    ];
    table::print(["", "COPIED", "SHA-256"], &rows, &[])
}
