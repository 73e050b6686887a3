//! Import of plants, concurrently with the writes of a server.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::time::{Instant, sleep_until};

use super::checkpointer::Checkpointer;
use super::connection::connect_writer;
use super::database_error::change_error;
use super::database_file::DatabaseFile;
use super::engine::Sqlite;
use crate::error::StoreError;
use crate::transfer::{ImportOutcome, ImportResult, ImportRow};
use crate::version::next_version;
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::UserName;

/// After a batch, the importer pauses for the time that it held the write lock divided by this. A waiting process polls the
/// lock and must find it free at some point.
const LOCK_PAUSE_DIVISOR: u32 = 4;

/// Importer with its own connection and checkpoint thread.
pub struct Importer {
    connection: Connection,
    file: Arc<DatabaseFile>,
    checkpointer: Checkpointer,
    not_before: Instant,
}

impl Sqlite {
    pub(crate) fn importer(&self) -> Result<Importer, StoreError> {
        let start = || {
            let connection = connect_writer(&self.path)?;
            connection.busy_timeout(self.admin_timeout)?;
            let checkpointer = Checkpointer::start(&self.path, &self.file, &connection, &self.metrics)?;
            Ok(Importer { connection, file: Arc::clone(&self.file), checkpointer, not_before: Instant::now() })
        };
        start().map_err(|error| change_error(&error))
    }
}

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Importer {
    pub(crate) async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportResult, StoreError> {
        sleep_until(self.not_before).await;
        let (imported, held) = self.commit(batch, stop).map_err(|error| change_error(&error))?;
        self.file.verify_or_exit(&self.connection)?;
        self.checkpointer.after_commit(&self.connection);
        self.not_before = Instant::now() + held / LOCK_PAUSE_DIVISOR;
        Ok(imported)
    }

    pub(crate) fn finish(self) {
        self.checkpointer.finish();
    }

    /// Also returns for how long the write lock was held.
    fn commit(&mut self, batch: &[ImportRow], stop: bool) -> rusqlite::Result<(ImportResult, Duration)> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let start = Instant::now();
        let mut owners = BatchOwners::default();
        let mut imported = ImportResult { outcomes: Vec::with_capacity(batch.len()), new_users: 0 };
        for ImportRow { owner, plant } in batch {
            let owner = owners.find(&transaction, owner)?;
            let outcome = store(&transaction, owner, plant)?;
            owner.changed |= outcome == ImportOutcome::Stored;
            imported.outcomes.push(outcome);
            if stop && outcome != ImportOutcome::Stored {
                break;
            }
        }
        imported.new_users = owners.store_versions(&transaction)?;
        transaction.commit()?;
        Ok((imported, start.elapsed()))
    }
}

fn store(transaction: &Transaction<'_>, owner: &BatchOwner, plant: &NewPlant) -> rusqlite::Result<ImportOutcome> {
    const STORE: &str = "
        INSERT INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    const SAME: &str = "SELECT name = ?3 AND tag IS ?4 FROM plants WHERE user_id = ?1 AND plant_id = ?2";
    let (name, tag) = (plant.name.as_str(), plant.tag.as_ref().map(Tag::as_str));
    let stored =
        transaction.prepare_cached(STORE)?.execute(params![owner.id, plant.id.get(), name, tag, owner.next_version])?;
    if stored == 1 {
        return Ok(ImportOutcome::Stored);
    }
    let mut same = transaction.prepare_cached(SAME)?;
    let same = same.query_row(params![owner.id, plant.id.get(), name, tag], |row| row.get(0))?;
    Ok(if same { ImportOutcome::Same } else { ImportOutcome::Different })
}

/// The owners of the plants of a batch.
#[derive(Default)]
struct BatchOwners<'a>(HashMap<&'a UserName, BatchOwner>);

struct BatchOwner {
    id: i64,
    next_version: i64,
    changed: bool,
    new: bool,
}

impl<'a> BatchOwners<'a> {
    /// Returns the owner of this name, who is created if there is none.
    fn find(&mut self, transaction: &Transaction<'_>, name: &'a UserName) -> rusqlite::Result<&mut BatchOwner> {
        Ok(match self.0.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(ensure_owner(transaction, name)?),
        })
    }

    /// Stores the new versions, and returns the number of new users.
    fn store_versions(&self, transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
        for owner in self.0.values().filter(|owner| owner.changed) {
            transaction
                .prepare_cached("UPDATE users SET version = ?2 WHERE user_id = ?1")?
                .execute([owner.id, owner.next_version])?;
        }
        Ok(self.0.values().filter(|owner| owner.new).count() as u64)
    }
}

fn ensure_owner(transaction: &Transaction<'_>, name: &UserName) -> rusqlite::Result<BatchOwner> {
    let created = transaction
        .prepare_cached("INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING")?
        .execute(params![name.as_str(), Timestamp::now().as_second()])?;
    transaction.prepare_cached("SELECT user_id, version FROM users WHERE name = ?1")?.query_row(
        [name.as_str()],
        |row| {
            Ok(BatchOwner {
                id: row.get(0)?,
                next_version: next_version(row.get(1)?),
                changed: false,
                new: created == 1,
            })
        },
    )
}
