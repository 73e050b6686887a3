//! Import of plants, concurrently with the writes of nodes.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use tokio_postgres::Error;

use super::admin::AdminConnection;
use super::batch_statements::changed_plants;
use super::engine::Postgres;
use super::statements::{Prepared, Statements};
use crate::error::StoreError;
use crate::transfer::{ImportOutcome, ImportResult, ImportRow};
use plantstore_model::plant::Tag;

/// Importer with its own connection.
pub struct Importer {
    connection: AdminConnection,
    statements: Statements,
}

impl Postgres {
    pub(crate) async fn importer(&self) -> Result<Importer, StoreError> {
        let connection = self.admin_connection().await?;
        let statements = connection.wait_for(Statements::prepare(&connection.client, connection.dialect)).await?;
        Ok(Importer { connection, statements })
    }
}

impl Importer {
    pub(crate) async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportResult, StoreError> {
        let (mut batch, mut last) = (batch, None);
        loop {
            let mut imported = self.attempt(batch).await?;
            let taken = imported.outcomes.iter().position(|outcome| *outcome != ImportOutcome::Stored);
            let Some(taken) = taken.filter(|_| stop) else {
                self.connection.commit("the connection to the database was lost during the commit").await?;
                imported.outcomes.extend(last);
                return Ok(imported);
            };
            // All rows were stored with one statement. They are rolled back, and those before the duplicate are stored again,
            // of which another writer may have taken an id meanwhile.
            last = Some(imported.outcomes[taken]);
            batch = &batch[..taken];
            self.connection.wait_for(self.connection.client.batch_execute("ROLLBACK")).await?;
        }
    }

    /// Executes the transaction except for its commit.
    async fn attempt(&self, batch: &[ImportRow]) -> Result<ImportResult, StoreError> {
        let storing = async {
            let stored = self.store(batch).await;
            if stored.is_err() {
                let _ = self.connection.client.batch_execute("ROLLBACK").await;
            }
            stored
        };
        self.connection.wait_for(storing).await
    }

    async fn store(&self, batch: &[ImportRow]) -> Result<ImportResult, Error> {
        self.connection.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let (owners, new_users) = self.owners(batch).await?;
        let owner_of = |row: &ImportRow| owners[row.owner.as_str()];
        let touched: Vec<i64> = owners.values().copied().collect::<BTreeSet<_>>().into_iter().collect();
        self.connection.client.execute(&self.statements.advance_versions, &[&touched]).await?;
        // Only the first of several rows with the same key is sent.
        let mut firsts = HashMap::new();
        for (index, row) in batch.iter().enumerate() {
            firsts.entry((owner_of(row), row.plant.id.get())).or_insert(index);
        }
        let mut sent: Vec<usize> = firsts.values().copied().collect();
        sent.sort_unstable();
        let stored = self.send(batch, &sent, owner_of).await?;
        let known = self.known(batch, &sent, &stored, owner_of).await?;
        let outcomes = batch.iter().enumerate().map(|(index, row)| {
            let key = (owner_of(row), row.plant.id.get());
            let first = firsts.get(&key).map_or(row, |first| &batch[*first]);
            match known.get(&key) {
                None if firsts.get(&key) == Some(&index) => ImportOutcome::Stored,
                None if first.plant == row.plant => ImportOutcome::Same,
                Some(text) if *text == text_of(row) => ImportOutcome::Same,
                None | Some(_) => ImportOutcome::Different,
            }
        });
        Ok(ImportResult { outcomes: outcomes.collect(), new_users })
    }

    /// Returns the ids of the owners, and the number of new users.
    async fn owners(&self, batch: &[ImportRow]) -> Result<(HashMap<String, i64>, u64), Error> {
        const KNOWN: &str = "SELECT name, user_id FROM plantstore.users WHERE name = ANY($1::text[])";
        let names: Vec<&str> =
            batch.iter().map(|row| row.owner.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
        let known = self.connection.client.query(KNOWN, &[&names]).await?.len();
        let now = vec![Timestamp::now().as_second(); names.len()];
        let found = self.connection.client.query(&self.statements.create_users, &[&names, &now]).await?;
        let owners = found.iter().map(|row| Ok((row.try_get(1)?, row.try_get(0)?))).collect::<Result<_, Error>>()?;
        Ok((owners, (names.len() - known) as u64))
    }

    /// Stores the rows with these indexes, and returns those that were inserted, as user and plant id.
    async fn send(
        &self,
        batch: &[ImportRow],
        sent: &[usize],
        owner_of: impl Fn(&ImportRow) -> i64,
    ) -> Result<HashSet<(i64, i64)>, Error> {
        let column =
            |value: &dyn Fn(&ImportRow) -> i64| sent.iter().map(|index| value(&batch[*index])).collect::<Vec<_>>();
        let (users, ids) = (column(&owner_of), column(&|row| row.plant.id.get()));
        let names: Vec<&str> = sent.iter().map(|index| batch[*index].plant.name.as_str()).collect();
        let tags: Vec<Option<&str>> =
            sent.iter().map(|index| batch[*index].plant.tag.as_ref().map(Tag::as_str)).collect();
        let stored = self.connection.client.query(&self.statements.create, &[&users, &ids, &names, &tags]).await?;
        changed_plants(&stored)
    }

    /// Returns the existing plants among the rows with these indexes. Other writers cannot change them, because the owners'
    /// versions are locked.
    async fn known(
        &self,
        batch: &[ImportRow],
        sent: &[usize],
        stored: &HashSet<(i64, i64)>,
        owner_of: impl Fn(&ImportRow) -> i64,
    ) -> Result<HashMap<(i64, i64), (String, Option<String>)>, Error> {
        const KNOWN: &str = "
            SELECT plants.user_id, plants.plant_id, name, tag
            FROM unnest($1::bigint[], $2::bigint[]) AS requested (user_id, plant_id)
            JOIN plantstore.plants ON plants.user_id = requested.user_id AND plants.plant_id = requested.plant_id";
        let keys = sent.iter().map(|index| (owner_of(&batch[*index]), batch[*index].plant.id.get()));
        let (users, ids): (Vec<i64>, Vec<i64>) = keys.filter(|key| !stored.contains(key)).unzip();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.connection.client.query(KNOWN, &[&users, &ids]).await?;
        let known =
            found.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), (row.try_get(2)?, row.try_get(3)?))));
        known.collect()
    }
}

fn text_of(row: &ImportRow) -> (String, Option<String>) {
    (row.plant.name.as_str().to_owned(), row.plant.tag.as_ref().map(|tag| tag.as_str().to_owned()))
}
