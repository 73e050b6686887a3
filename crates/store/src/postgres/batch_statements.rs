//! Conversion of a batch to statement parameters, and of the responses to outcomes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use crate::plants::{
    ClaimedKey, IdempotencyKey, Job, JobOutcome, KEY_LIFETIME_SECONDS, KeyOutcome, WriteContext, WriteOutcome,
};
use plantstore_model::plant::{PlantId, Tag};
use plantstore_model::user::UserId;

/// Parameters of a statement.
type Values<'a, const N: usize> = [&'a (dyn ToSql + Sync); N];

/// The writes of a batch. Deletes are executed before creates. Most writes are simple: without a key, and to the
/// user's own plants. The others are checked: their statements also check the key and the owner, and follow the simple
/// ones.
#[derive(Default)]
pub(super) struct Writes<'a> {
    /// Names of users to create, in order, and the times of their creation.
    new_names: Vec<&'a str>,
    new_created_at: Vec<i64>,
    /// All writing users and owners, in ascending order.
    users: Vec<i64>,
    key_users: Vec<i64>,
    keys: Vec<&'a [u8]>,
    /// Simple writes, without duplicates: the first of several creates of the same id counts.
    pub(super) deletes: Columns<'a>,
    pub(super) creates: Columns<'a>,
    /// Checked writes, with duplicates: the database decides which of them are executed.
    pub(super) checked_deletes: Columns<'a>,
    pub(super) checked_creates: Columns<'a>,
}

/// Columns of writes. Deletes have no names and tags, and simple writes no writing users and keys.
#[derive(Default)]
pub(super) struct Columns<'a> {
    owners: Vec<i64>,
    ids: Vec<i64>,
    names: Vec<&'a str>,
    tags: Vec<Option<&'a str>>,
    writing_users: Vec<i64>,
    keys: Vec<Option<&'a [u8]>>,
}

fn is_simple(context: WriteContext, key: Option<&ClaimedKey>) -> bool {
    key.is_none() && context.user == context.owner
}

impl<'a> Writes<'a> {
    pub(super) fn of(batch: &'a [Job]) -> Self {
        let mut writes = Self::default();
        let (mut users, mut deleted, mut created) = (BTreeSet::new(), HashSet::new(), HashSet::new());
        let mut new = BTreeMap::new();
        for job in batch {
            if let Some((user, key)) = job.key() {
                users.insert(user.get());
                writes.key_users.push(user.get());
                writes.keys.push(&key.hash);
            }
            match job {
                Job::Create { context, plant, key, .. } => {
                    users.extend([context.user.get(), context.owner.get()]);
                    let columns = if !is_simple(*context, key.as_deref()) {
                        writes.checked_creates.push_checked(*context, key.as_deref());
                        &mut writes.checked_creates
                    } else if created.insert((context.owner, plant.id)) {
                        &mut writes.creates
                    } else {
                        continue;
                    };
                    columns.push(context.owner, plant.id);
                    columns.names.push(plant.name.as_str());
                    columns.tags.push(plant.tag.as_ref().map(Tag::as_str));
                }
                Job::Delete { context, id, key, .. } => {
                    users.extend([context.user.get(), context.owner.get()]);
                    if !is_simple(*context, key.as_deref()) {
                        writes.checked_deletes.push_checked(*context, key.as_deref());
                        writes.checked_deletes.push(context.owner, *id);
                    } else if deleted.insert((context.owner, *id)) {
                        writes.deletes.push(context.owner, *id);
                    }
                }
                Job::CreateUser { name, now, .. } => {
                    new.insert(name.as_str(), now.as_second());
                }
                Job::StoreRejection { .. } | Job::RecordTokenUse { .. } | Job::Stop => {}
            }
        }
        writes.users = users.into_iter().collect();
        (writes.new_names, writes.new_created_at) = new.into_iter().unzip();
        writes
    }

    /// Returns the simple and checked writes of a batch whose user and owner exist and whose key is not known, without
    /// duplicates. `locked` and `known` are the responses to the first statements of the transaction.
    pub(super) fn executable(batch: &'a [Job], locked: &[Row], known: &[Row]) -> Result<Self, Error> {
        let users: HashSet<i64> = locked.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let known = known_keys(known)?;
        let mut writes = Self::default();
        let mut seen = HashSet::new();
        for job in batch {
            let is_known = job.key().is_some_and(|(user, key)| known.contains_key(&(user.get(), &key.hash[..])));
            let (Job::Create { context, key, .. } | Job::Delete { context, key, .. }) = job else { continue };
            if is_known || ![context.user, context.owner].iter().all(|user| users.contains(&user.get())) {
                continue;
            }
            let simple = is_simple(*context, key.as_deref());
            match job {
                Job::Create { plant, .. } if seen.insert((true, simple, context.owner, plant.id)) => {
                    let columns = if simple { &mut writes.creates } else { &mut writes.checked_creates };
                    columns.push(context.owner, plant.id);
                    columns.names.push(plant.name.as_str());
                    columns.tags.push(plant.tag.as_ref().map(Tag::as_str));
                }
                Job::Delete { id, .. } if seen.insert((false, simple, context.owner, *id)) => {
                    let columns = if simple { &mut writes.deletes } else { &mut writes.checked_deletes };
                    columns.push(context.owner, *id);
                }
                _ => {}
            }
        }
        Ok(writes)
    }

    pub(super) fn has_new_users(&self) -> bool {
        !self.new_names.is_empty()
    }

    pub(super) fn new_users(&self) -> Values<'_, 2> {
        [&self.new_names, &self.new_created_at]
    }

    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    pub(super) fn users(&self) -> Values<'_, 1> {
        [&self.users]
    }

    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(super) fn keys(&self) -> Values<'_, 2> {
        [&self.key_users, &self.keys]
    }
}

impl<'a> Columns<'a> {
    fn push(&mut self, owner: UserId, id: PlantId) {
        self.owners.push(owner.get());
        self.ids.push(id.get());
    }

    fn push_checked(&mut self, context: WriteContext, key: Option<&'a ClaimedKey>) {
        self.writing_users.push(context.user.get());
        self.keys.push(key.map(|claimed| claimed.key.hash.as_slice()));
    }

    pub(super) fn any(&self) -> bool {
        !self.ids.is_empty()
    }

    pub(super) fn of_deletes(&self) -> Values<'_, 2> {
        [&self.owners, &self.ids]
    }

    pub(super) fn of_creates(&self) -> Values<'_, 4> {
        [&self.owners, &self.ids, &self.names, &self.tags]
    }

    pub(super) fn of_checked_deletes(&self) -> Values<'_, 4> {
        [&self.writing_users, &self.keys, &self.owners, &self.ids]
    }

    pub(super) fn of_checked_creates(&self) -> Values<'_, 6> {
        [&self.writing_users, &self.keys, &self.owners, &self.ids, &self.names, &self.tags]
    }
}

/// Responses to the statements of a batch; no rows for a statement that was not sent.
pub(super) struct BatchResponses {
    /// Created users, or existing ones of these names.
    pub(super) new: Vec<Row>,
    /// Users and owners who exist; their rows are locked.
    pub(super) locked: Vec<Row>,
    /// Outcomes stored under the keys.
    pub(super) known: Vec<Row>,
    pub(super) deleted: Vec<Row>,
    pub(super) created: Vec<Row>,
    pub(super) checked_deleted: Vec<Row>,
    pub(super) checked_created: Vec<Row>,
    /// Decides which checked writes are executed.
    pub(super) decided_by: Decision,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The checked statements look up the keys again, and return the number of writes that they have executed.
    Database,
    /// The node sends only the writes that are to be executed.
    Node,
}

impl BatchResponses {
    /// Returns the outcome of each job; `None` if the statements are inconsistent about which writes were executed.
    pub(super) fn outcomes(&self, batch: &[Job]) -> Result<Option<Vec<JobOutcome>>, Error> {
        let mut effects = BatchEffects {
            new: self.new.iter().map(|row| Ok((row.try_get(1)?, row.try_get(0)?))).collect::<Result<_, Error>>()?,
            users: self.locked.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?,
            known: known_keys(&self.known)?,
            deletes: ChangedPlants::of(&self.deleted, &self.checked_deleted, self.decided_by)?,
            creates: ChangedPlants::of(&self.created, &self.checked_created, self.decided_by)?,
        };
        let outcomes = batch.iter().map(|job| effects.outcome(job)).collect::<Result<_, _>>()?;
        let is_consistent = effects.deletes.executed == 0 && effects.creates.executed == 0;
        Ok((is_consistent || self.decided_by == Decision::Node).then_some(outcomes))
    }
}

/// Effects of the batch that are not yet assigned to a job.
struct BatchEffects<'a> {
    new: HashMap<&'a str, i64>,
    users: HashSet<i64>,
    known: HashMap<(i64, &'a [u8]), &'a Row>,
    deletes: ChangedPlants,
    creates: ChangedPlants,
}

impl BatchEffects<'_> {
    fn outcome(&mut self, job: &Job) -> Result<JobOutcome, Error> {
        let known = match job.key() {
            Some((user, key)) if self.has(user) => self.lookup(user, key)?,
            _ => None,
        };
        if let Some(known) = known {
            return Ok(JobOutcome::Write(known));
        }
        Ok(match job {
            Job::Create { context, .. } | Job::Delete { context, .. } if !self.has(context.user) => {
                JobOutcome::Write(WriteOutcome::NoUser)
            }
            Job::Create { context, .. } | Job::Delete { context, .. } if !self.has(context.owner) => {
                JobOutcome::Write(WriteOutcome::NoOwner)
            }
            Job::Create { context, plant, key, .. } => {
                JobOutcome::of_change(self.creates.take(*context, plant.id, key.as_deref()))
            }
            Job::Delete { context, id, key, .. } => {
                JobOutcome::of_change(self.deletes.take(*context, *id, key.as_deref()))
            }
            Job::StoreRejection { user, .. } => JobOutcome::of_rejection(self.has(*user)),
            Job::CreateUser { name, .. } => {
                self.new.get(name.as_str()).map_or(JobOutcome::Nothing, |user| JobOutcome::User(UserId::new(*user)))
            }
            Job::RecordTokenUse { .. } | Job::Stop => JobOutcome::Nothing,
        })
    }

    fn has(&self, user: UserId) -> bool {
        self.users.contains(&user.get())
    }

    fn lookup(&self, user: UserId, key: &IdempotencyKey) -> Result<Option<WriteOutcome>, Error> {
        let Some(row) = self.known.get(&(user.get(), &key.hash[..])) else {
            return Ok(None);
        };
        Ok(Some(WriteOutcome::of_stored(key, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?)))
    }
}

/// The plants, as user and plant id, that the deletes of a batch removed or its creates inserted.
struct ChangedPlants {
    simple: HashSet<(i64, i64)>,
    checked: HashSet<(i64, i64)>,
    /// Number of writes that the checked statement executed.
    executed: i64,
}

impl ChangedPlants {
    fn of(simple: &[Row], checked: &[Row], decided_by: Decision) -> Result<Self, Error> {
        let counted = checked.first().filter(|_| decided_by == Decision::Database);
        let executed = counted.map_or(Ok(0), |row| row.try_get(2))?;
        Ok(Self { simple: changed_plants(simple)?, checked: changed_plants(checked)?, executed })
    }

    /// Returns true if this write took effect. Of several equal writes, the first does.
    fn take(&mut self, context: WriteContext, id: PlantId, key: Option<&ClaimedKey>) -> bool {
        let plant = (context.owner.get(), id.get());
        if is_simple(context, key) {
            return self.simple.remove(&plant);
        }
        self.executed -= 1;
        self.checked.remove(&plant)
    }
}

fn known_keys(rows: &[Row]) -> Result<HashMap<(i64, &[u8]), &Row>, Error> {
    rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row))).collect()
}

/// Returns the plants that a statement has created or deleted: either one row with two arrays, which are NULL if there are
/// none, or one row for each plant.
pub(crate) fn changed_plants(rows: &[Row]) -> Result<HashSet<(i64, i64)>, Error> {
    let Some(row) = rows.first() else {
        return Ok(HashSet::new());
    };
    if *row.columns()[0].type_() == Type::INT8 {
        return rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect();
    }
    let (users, ids): (Option<Vec<i64>>, Option<Vec<i64>>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(users.into_iter().flatten().zip(ids.into_iter().flatten()).collect())
}

/// Columns of the outcomes to store under the keys of a batch.
#[derive(Default)]
pub(super) struct KeyOutcomes<'a> {
    users: Vec<i64>,
    keys: Vec<&'a [u8]>,
    fingerprints: Vec<&'a [u8]>,
    outcomes: Vec<i32>,
    messages: Vec<Option<&'a str>>,
}

impl<'a> KeyOutcomes<'a> {
    pub(super) fn of(batch: &'a [Job], outcomes: &[JobOutcome]) -> Self {
        let mut columns = Self::default();
        for KeyOutcome { user, key, outcome, message } in
            batch.iter().zip(outcomes).filter_map(|(job, outcome)| job.key_outcome(outcome))
        {
            columns.users.push(user.get());
            columns.keys.push(&key.hash);
            columns.fingerprints.push(&key.fingerprint);
            columns.outcomes.push(outcome);
            columns.messages.push(message);
        }
        columns
    }

    pub(super) fn any(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(super) fn values(&self) -> Values<'_, 6> {
        [&self.users, &self.keys, &self.fingerprints, &self.outcomes, &self.messages, &KEY_LIFETIME_SECONDS]
    }
}
