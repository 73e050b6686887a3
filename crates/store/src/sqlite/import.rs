//! Plants that come in batches, beside a server that goes on writing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::time::{Instant, sleep_until};

use super::checkpoint::Checkpointer;
use super::connection::connect_writer;
use super::database_error::{after_change, store_error};
use super::database_file::DatabaseFile;
use super::engine::Sqlite;
use super::rows::find_user;
use crate::error::StoreError;
use crate::transfer::{ImportOutcome, ImportRow, ImportedBatch};
use crate::version::next_version;
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::UserName;

/// Of the time that a batch has held the lock, it is then left to others for this part at the least: a process that waits for it looks
/// again and again, and must find it free before long.
const LEFT_TO_OTHERS: u32 = 4;

/// A connection of its own, with a thread that keeps the WAL bounded.
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
            connection.busy_timeout(self.operator_timeout)?;
            let checkpointer = Checkpointer::start(&self.path, &self.file, &connection, &self.metrics)?;
            Ok(Importer { connection, file: Arc::clone(&self.file), checkpointer, not_before: Instant::now() })
        };
        start().map_err(|error| after_change(&error))
    }
}

#[expect(clippy::unused_async, reason = "the contract of the store is asynchronous; this engine answers inline")]
impl Importer {
    pub(crate) async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportedBatch, StoreError> {
        sleep_until(self.not_before).await;
        let (imported, held) = self.commit(batch, stop).map_err(|error| after_change(&error))?;
        self.file.confirm(&self.connection)?;
        self.checkpointer.after_commit(&self.connection);
        self.not_before = Instant::now() + held / LEFT_TO_OTHERS;
        Ok(imported)
    }

    pub(crate) async fn has_user(&self, name: &UserName) -> Result<bool, StoreError> {
        find_user(&self.connection, name).map(|user| user.is_some()).map_err(|error| store_error(&error))
    }

    pub(crate) fn finish(self) {
        self.checkpointer.finish();
    }

    /// Also returns the time for which it has blocked other writers.
    fn commit(&mut self, batch: &[ImportRow], stop: bool) -> rusqlite::Result<(ImportedBatch, Duration)> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let start = Instant::now();
        let mut owners = Owners::default();
        let mut imported = ImportedBatch { outcomes: Vec::with_capacity(batch.len()), new_users: 0 };
        for ImportRow { owner, plant } in batch {
            let owner = owners.find(&transaction, owner)?;
            let outcome = store(&transaction, owner, plant)?;
            owner.changed |= outcome == ImportOutcome::Stored;
            imported.outcomes.push(outcome);
            if stop && outcome != ImportOutcome::Stored {
                break;
            }
        }
        imported.new_users = owners.move_versions(&transaction)?;
        transaction.commit()?;
        Ok((imported, start.elapsed()))
    }
}

fn store(transaction: &Transaction<'_>, owner: &Owner, plant: &NewPlant) -> rusqlite::Result<ImportOutcome> {
    const STORE: &str = "
        INSERT INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    const SAME: &str = "SELECT name = ?3 AND tag IS ?4 FROM plants WHERE user_id = ?1 AND plant_id = ?2";
    let (name, tag) = (plant.name.as_str(), plant.tag.as_ref().map(Tag::as_str));
    let stored =
        transaction.prepare_cached(STORE)?.execute(params![owner.id, plant.id.get(), name, tag, owner.version])?;
    if stored == 1 {
        return Ok(ImportOutcome::Stored);
    }
    let mut same = transaction.prepare_cached(SAME)?;
    let same = same.query_row(params![owner.id, plant.id.get(), name, tag], |row| row.get(0))?;
    Ok(if same { ImportOutcome::Same } else { ImportOutcome::Different })
}

/// Those whose plants are in a batch.
#[derive(Default)]
struct Owners<'a>(HashMap<&'a UserName, Owner>);

struct Owner {
    id: i64,
    /// The next version.
    version: i64,
    changed: bool,
    new: bool,
}

impl<'a> Owners<'a> {
    /// The owner of this name, who is made if there is none.
    fn find(&mut self, transaction: &Transaction<'_>, name: &'a UserName) -> rusqlite::Result<&mut Owner> {
        Ok(match self.0.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(ensure(transaction, name)?),
        })
    }

    /// Also says how many are new.
    fn move_versions(&self, transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
        for owner in self.0.values().filter(|owner| owner.changed) {
            transaction
                .prepare_cached("UPDATE users SET version = ?2 WHERE user_id = ?1")?
                .execute([owner.id, owner.version])?;
        }
        Ok(self.0.values().filter(|owner| owner.new).count() as u64)
    }
}

fn ensure(transaction: &Transaction<'_>, name: &UserName) -> rusqlite::Result<Owner> {
    let made = transaction
        .prepare_cached("INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING")?
        .execute(params![name.as_str(), Timestamp::now().as_second()])?;
    transaction
        .prepare_cached("SELECT user_id, version FROM users WHERE name = ?1")?
        .query_row([name.as_str()], |row| {
            Ok(Owner { id: row.get(0)?, version: next_version(row.get(1)?), changed: false, new: made == 1 })
        })
}
