//! Conversion of a batch to statement parameters, and of the responses to outcomes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use crate::plants::{Job, JobOutcome, KEY_LIFETIME_SECONDS, KeyOutcome, PlantWrite, WriteContext, WriteOutcome};
use crate::postgres::connect::versions;
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::UserId;

pub(crate) type Values<'a, const N: usize> = [&'a (dyn ToSql + Sync); N];

/// Parameters of the first statements of a transaction, which lock the rows of users and look up keys.
pub(super) struct Opening<'a> {
    /// Names of users to create, in order, and the times of their creation.
    pub(super) new_names: Vec<&'a str>,
    pub(super) new_created_at: Vec<i64>,
    /// The id of the writer's row, and all writing users and owners, in ascending order.
    pub(super) users: Vec<i64>,
    pub(super) key_users: Vec<i64>,
    pub(super) keys: Vec<&'a [u8]>,
}

impl<'a> Opening<'a> {
    /// Returns the parameters about the users that `is_included` selects.
    pub(super) fn of(batch: &'a [Job], writer: i64, is_included: impl Fn(i64) -> bool) -> Self {
        let mut users = BTreeSet::from([writer]);
        let mut new = BTreeMap::new();
        for job in batch {
            users.extend(job.key().map(|(user, _)| user.get()));
            match job {
                Job::Write { context, .. } => users.extend([context.user.get(), context.owner.get()]),
                Job::CreateUser { name, now, .. } => {
                    new.insert(name.as_str(), now.as_second());
                }
                Job::StoreRejection { .. } | Job::RecordTokenUse { .. } | Job::Stop => {}
            }
        }
        let (new_names, new_created_at) = new.into_iter().unzip();
        users.retain(|user| is_included(*user));
        let keys = batch.iter().filter_map(Job::key).filter(|(user, _)| is_included(user.get()));
        let (key_users, keys) = keys.map(|(user, key)| (user.get(), key.hash.as_slice())).unzip();
        Self { new_names, new_created_at, users: users.into_iter().collect(), key_users, keys }
    }
}

/// Responses to the first statements. No other transaction can change the plants and keys of the users that are found.
#[derive(Default)]
pub(super) struct Opened {
    /// Created users, or existing ones of these names.
    new: HashMap<String, i64>,
    /// New versions of the users and owners who exist, and of the writer's row if it contained the expected commit id.
    pub(super) versions: HashMap<i64, i64>,
    known: HashMap<(i64, Vec<u8>), Row>,
}

impl Opened {
    pub(super) fn read(new: &[Row], locked: &[Row], known: Vec<Row>) -> Result<Self, Error> {
        let known = known.into_iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row)));
        Ok(Self {
            new: new.iter().map(|row| Ok((row.try_get(1)?, row.try_get(0)?))).collect::<Result<_, Error>>()?,
            versions: versions(locked)?,
            known: known.collect::<Result<_, Error>>()?,
        })
    }

    /// Adds the responses about other users.
    pub(super) fn add(&mut self, other: Self) {
        self.new.extend(other.new);
        self.versions.extend(other.versions);
        self.known.extend(other.known);
    }

    fn has(&self, user: i64) -> bool {
        self.versions.contains_key(&user)
    }

    /// Returns the commit id that the row of this writer contains now.
    pub(super) fn commit_id(&self, writer: i64) -> Option<i64> {
        self.versions.get(&writer).copied()
    }

    fn known(&self, job: &Job) -> Result<Option<WriteOutcome>, Error> {
        let Some((user, key)) = job.key().filter(|(user, _)| self.has(user.get())) else { return Ok(None) };
        let Some(row) = self.known.get(&(user.get(), key.hash.to_vec())) else { return Ok(None) };
        Ok(Some(WriteOutcome::of_stored(key, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?)))
    }

    /// Returns the outcome of a job that changes no plant; `None` for a write that is to be executed.
    pub(super) fn outcome(&self, job: &Job) -> Result<Option<JobOutcome>, Error> {
        if let Some(known) = self.known(job)? {
            return Ok(Some(JobOutcome::Write(known)));
        }
        Ok(match job {
            Job::Write { context, .. } if !self.has(context.user.get()) => {
                Some(JobOutcome::Write(WriteOutcome::NoUser))
            }
            Job::Write { context, .. } if !self.has(context.owner.get()) => {
                Some(JobOutcome::Write(WriteOutcome::NoOwner))
            }
            Job::Write { .. } => None,
            Job::StoreRejection { user, .. } => Some(JobOutcome::of_rejection(self.has(user.get()))),
            Job::CreateUser { name, .. } => {
                self.new.get(name.as_str()).map(|user| JobOutcome::User(UserId::new(*user)))
            }
            Job::RecordTokenUse { .. } | Job::Stop => Some(JobOutcome::Nothing),
        })
    }
}

/// Removes the uses of tokens from a batch, and returns tokens and days.
pub(super) fn take_token_uses(batch: &mut Vec<Job>) -> (Vec<i64>, Vec<i64>) {
    let uses = batch.extract_if(.., |job| matches!(job, Job::RecordTokenUse { .. }));
    uses.filter_map(|job| {
        if let Job::RecordTokenUse { token, day } = job { Some((token.get(), day.as_second())) } else { None }
    })
    .unzip()
}

/// Returns true if a write has no key and is to the user's own plants: it can be sent before the outcome of its user's look-up
/// is known, because its statement finds no rows if the user does not exist.
pub(super) fn is_simple(job: &Job) -> bool {
    match job {
        Job::Write { context, key, .. } => key.is_none() && context.user == context.owner,
        Job::StoreRejection { .. } | Job::CreateUser { .. } | Job::RecordTokenUse { .. } | Job::Stop => true,
    }
}

pub(crate) type PlantKey = (i64, i64);

/// The writes to plants of a batch, in the order of their execution: deletes, then creates, then replacements. Of several creates
/// of one plant the first counts, of several replacements the last.
pub(super) struct PlantWrites<'a> {
    pub(super) deletes: PlantColumns<'a>,
    pub(super) creates: PlantColumns<'a>,
    pub(super) replacements: PlantColumns<'a>,
}

impl<'a> PlantWrites<'a> {
    /// Returns the writes to plants of the owners that `is_included` selects.
    pub(super) fn of(jobs: impl IntoIterator<Item = &'a Job>, is_included: impl Fn(i64) -> bool) -> Self {
        let mut deletes = BTreeSet::new();
        let mut creates = BTreeMap::new();
        let mut replacements = BTreeMap::new();
        for job in jobs {
            let Job::Write { context, write, .. } = job else { continue };
            if !is_included(context.owner.get()) {
                continue;
            }
            let key = key_of(*context, write);
            match write {
                PlantWrite::Create(plant) => {
                    creates.entry(key).or_insert(plant);
                }
                PlantWrite::Replace(plant) => {
                    replacements.insert(key, plant);
                }
                PlantWrite::Delete(_) => {
                    deletes.insert(key);
                }
            }
        }
        let (owners, ids) = deletes.into_iter().unzip();
        Self {
            deletes: PlantColumns { owners, ids, ..PlantColumns::default() },
            creates: PlantColumns::of(&creates),
            replacements: PlantColumns::of(&replacements),
        }
    }
}

fn key_of(context: WriteContext, write: &PlantWrite) -> PlantKey {
    (context.owner.get(), write.id().get())
}

/// Columns of writes of one kind. Deletes have no names and tags.
#[derive(Default)]
pub(crate) struct PlantColumns<'a> {
    owners: Vec<i64>,
    ids: Vec<i64>,
    names: Vec<&'a str>,
    tags: Vec<Option<&'a str>>,
}

impl<'a> PlantColumns<'a> {
    pub(crate) fn of(plants: &BTreeMap<PlantKey, &'a NewPlant>) -> Self {
        let mut columns = Self::default();
        for ((owner, id), plant) in plants {
            columns.owners.push(*owner);
            columns.ids.push(*id);
            columns.names.push(plant.name.as_str());
            columns.tags.push(plant.tag.as_ref().map(Tag::as_str));
        }
        columns
    }

    pub(super) fn any(&self) -> bool {
        !self.ids.is_empty()
    }

    pub(super) fn keys(&self) -> Values<'_, 2> {
        [&self.owners, &self.ids]
    }

    pub(crate) fn values(&self) -> Values<'_, 4> {
        [&self.owners, &self.ids, &self.names, &self.tags]
    }
}

/// The plants that the writes of a batch have changed.
#[derive(Default)]
pub(super) struct ChangedPlants {
    pub(super) deleted: HashSet<PlantKey>,
    pub(super) created: HashSet<PlantKey>,
    pub(super) replaced: HashSet<PlantKey>,
}

impl ChangedPlants {
    /// Returns the outcome of each job. Of several deletes or creates of one plant the first took effect; replacements all did,
    /// one after the other.
    pub(super) fn outcomes(mut self, opened: &Opened, batch: &[Job]) -> Result<Vec<JobOutcome>, Error> {
        let outcome = |job: &Job| {
            Ok(match (opened.outcome(job)?, job) {
                (Some(outcome), _) => outcome,
                (None, Job::Write { context, write, .. }) => {
                    let key = key_of(*context, write);
                    let has_changed = match write {
                        PlantWrite::Create(_) => self.created.remove(&key),
                        PlantWrite::Replace(_) => self.replaced.contains(&key),
                        PlantWrite::Delete(_) => self.deleted.remove(&key),
                    };
                    JobOutcome::Write(if has_changed { WriteOutcome::Done } else { WriteOutcome::Rejected })
                }
                (None, _) => JobOutcome::Nothing,
            })
        };
        batch.iter().map(outcome).collect()
    }
}

pub(crate) fn changed_plants(rows: &[Row]) -> Result<HashSet<PlantKey>, Error> {
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
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
    /// Returns the outcomes for the keys of the users that `is_included` selects.
    pub(super) fn of(batch: &'a [Job], outcomes: &[JobOutcome], is_included: impl Fn(i64) -> bool) -> Self {
        let mut columns = Self::default();
        let stored = batch.iter().zip(outcomes).filter_map(|(job, outcome)| job.key_outcome(outcome));
        for KeyOutcome { user, key, outcome, message } in stored.filter(|stored| is_included(stored.user.get())) {
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
