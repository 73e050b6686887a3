//! Plants that come in batches, beside nodes that go on writing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;
use tokio_postgres::{Client, Error};

use super::Postgres;
use super::fault::{Fault, certainly_not_committed};
use super::link::{Role, SILENT};
use super::statements::{Prepared, Statements};
use crate::StoreError;
use crate::transfer::{Imported, Met, Planting};
use plantstore_model::plant::Tag;
use plantstore_model::user::UserName;

/// A connection of its own, with the statements that requests use.
pub struct Importer {
    client: Client,
    statements: Statements,
    patience: Duration,
}

impl Postgres {
    pub(crate) async fn importer(&self) -> Result<Importer, StoreError> {
        let connected = self.connector.connect(Role::Operate).await;
        let (client, driver) = connected.map_err(|failure| StoreError::Unavailable(failure.describe()))?;
        tokio::spawn(driver);
        let prepared = timeout(self.patience, Statements::prepare(&client)).await;
        let prepared = prepared.map_err(|_| StoreError::Unavailable(SILENT.to_owned()))?;
        let statements = prepared.map_err(|error| Fault::of(&error).into_error())?;
        Ok(Importer { client, statements, patience: self.patience })
    }
}

impl Importer {
    pub(crate) async fn put(&mut self, batch: &[Planting], stop: bool) -> Result<Imported, StoreError> {
        let (mut batch, mut met) = (batch, None);
        loop {
            let mut imported = self.attempt(batch).await?;
            let taken = imported.met.iter().position(|met| *met != Met::Nothing);
            let Some(taken) = taken.filter(|_| stop) else {
                self.commit().await?;
                imported.met.extend(met);
                return Ok(imported);
            };
            // All were stored at once: they are taken back, and those before it stored again. Somebody else may have taken
            // one of those meanwhile.
            met = Some(imported.met[taken]);
            batch = &batch[..taken];
            self.roll_back().await?;
        }
    }

    pub(crate) async fn has_user(&self, name: &UserName) -> Result<bool, StoreError> {
        let found = timeout(self.patience, self.client.query_opt(&self.statements.find_user, &[&name.as_str()])).await;
        let found = found.map_err(|_| StoreError::Unavailable(SILENT.to_owned()))?;
        found.map(|row| row.is_some()).map_err(|error| Fault::of(&error).into_error())
    }

    /// Does all but the commit.
    async fn attempt(&self, batch: &[Planting]) -> Result<Imported, StoreError> {
        match timeout(self.patience, self.store(batch)).await {
            Ok(Ok(imported)) => Ok(imported),
            Ok(Err(error)) => {
                let _ = self.roll_back().await;
                Err(Fault::of(&error).into_error())
            }
            Err(_) => Err(StoreError::Unavailable(SILENT.to_owned())),
        }
    }

    async fn store(&self, batch: &[Planting]) -> Result<Imported, Error> {
        self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let (owners, new_users) = self.owners(batch).await?;
        let owner_of = |planting: &Planting| owners[planting.owner.as_str()];
        let touched: Vec<i64> = owners.values().copied().collect::<BTreeSet<_>>().into_iter().collect();
        self.client.execute(&self.statements.touch, &[&touched]).await?;
        // What a batch has twice is sent once: the first of them is stored, and the others meet it.
        let mut firsts = HashMap::new();
        for (place, planting) in batch.iter().enumerate() {
            firsts.entry((owner_of(planting), planting.plant.id.get())).or_insert(place);
        }
        let mut sent: Vec<usize> = firsts.values().copied().collect();
        sent.sort_unstable();
        let stored = self.send(batch, &sent, owner_of).await?;
        let known = self.known(batch, &sent, &stored, owner_of).await?;
        let met = batch.iter().enumerate().map(|(place, planting)| {
            let key = (owner_of(planting), planting.plant.id.get());
            let first = firsts.get(&key).map_or(planting, |first| &batch[*first]);
            match known.get(&key) {
                None if firsts.get(&key) == Some(&place) => Met::Nothing,
                None if first.plant == planting.plant => Met::Same,
                Some(text) if *text == text_of(planting) => Met::Same,
                None | Some(_) => Met::Different,
            }
        });
        Ok(Imported { met: met.collect(), new_users })
    }

    /// The numbers of the owners, and how many of them were made.
    async fn owners(&self, batch: &[Planting]) -> Result<(HashMap<String, i64>, u64), Error> {
        const KNOWN: &str = "SELECT name, user_id FROM plantstore.users WHERE name = ANY($1::text[])";
        let names: Vec<&str> =
            batch.iter().map(|planting| planting.owner.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
        let known = self.client.query(KNOWN, &[&names]).await?.len();
        let now = vec![Timestamp::now().as_second(); names.len()];
        let found = self.client.query(&self.statements.make_users, &[&names, &now]).await?;
        let owners = found.iter().map(|row| Ok((row.try_get(1)?, row.try_get(0)?))).collect::<Result<_, Error>>()?;
        Ok((owners, (names.len() - known) as u64))
    }

    /// Sends the plantings at these places; says which were stored, as user and id.
    async fn send(
        &self,
        batch: &[Planting],
        sent: &[usize],
        owner_of: impl Fn(&Planting) -> i64,
    ) -> Result<HashSet<(i64, i64)>, Error> {
        let column =
            |value: &dyn Fn(&Planting) -> i64| sent.iter().map(|place| value(&batch[*place])).collect::<Vec<_>>();
        let (users, ids) = (column(&owner_of), column(&|planting| planting.plant.id.get()));
        let names: Vec<&str> = sent.iter().map(|place| batch[*place].plant.name.as_str()).collect();
        let tags: Vec<Option<&str>> =
            sent.iter().map(|place| batch[*place].plant.tag.as_ref().map(Tag::as_str)).collect();
        let row = self.client.query_one(&self.statements.create, &[&users, &ids, &names, &tags]).await?;
        let (users, ids): (Option<Vec<i64>>, Option<Vec<i64>>) = (row.try_get(0)?, row.try_get(1)?);
        Ok(users.into_iter().flatten().zip(ids.into_iter().flatten()).collect())
    }

    /// What there was already of the plantings at these places. Nobody else changes it: their owners' versions are held.
    async fn known(
        &self,
        batch: &[Planting],
        sent: &[usize],
        stored: &HashSet<(i64, i64)>,
        owner_of: impl Fn(&Planting) -> i64,
    ) -> Result<HashMap<(i64, i64), (String, Option<String>)>, Error> {
        const KNOWN: &str = "
            SELECT plants.user_id, plants.plant_id, name, tag
            FROM unnest($1::bigint[], $2::bigint[]) AS asked (user_id, plant_id)
            JOIN plantstore.plants ON plants.user_id = asked.user_id AND plants.plant_id = asked.plant_id";
        let keys = sent.iter().map(|place| (owner_of(&batch[*place]), batch[*place].plant.id.get()));
        let (users, ids): (Vec<i64>, Vec<i64>) = keys.filter(|key| !stored.contains(key)).unzip();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.client.query(KNOWN, &[&users, &ids]).await?;
        let known =
            found.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), (row.try_get(2)?, row.try_get(3)?))));
        known.collect()
    }

    async fn roll_back(&self) -> Result<(), StoreError> {
        match timeout(self.patience, self.client.batch_execute("ROLLBACK")).await {
            Ok(done) => done.map_err(|error| Fault::of(&error).into_error()),
            Err(_) => Err(StoreError::Unavailable(SILENT.to_owned())),
        }
    }

    async fn commit(&self) -> Result<(), StoreError> {
        match timeout(self.patience, self.client.batch_execute("COMMIT")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if certainly_not_committed(&error) => Err(Fault::of(&error).into_error()),
            Ok(Err(_)) | Err(_) => {
                Err(StoreError::OutcomeUnknown("the connection to the database was lost during the commit"))
            }
        }
    }
}

fn text_of(planting: &Planting) -> (String, Option<String>) {
    (planting.plant.name.as_str().to_owned(), planting.plant.tag.as_ref().map(|tag| tag.as_str().to_owned()))
}
