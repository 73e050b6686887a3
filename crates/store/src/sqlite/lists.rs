//! Lists of the plants of one owner or of several.

use std::ops::ControlFlow;

use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::batch::Batch;
use super::engine::Sqlite;
use crate::error::StoreError;
use crate::plants::{FetchedRows, ListStep, PlantRange, PlantRow, Version, fetch_sizes, merge};
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

const VERSION: &str = "SELECT version FROM users WHERE user_id = ?1";

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) async fn list(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        let header = self.version_cache.header();
        let listed = self.read(|connection| match &mut *ranges {
            [range] => list_one(connection, range, rows, each),
            ranges => list_many(connection, ranges, rows, each),
        })?;
        self.version_cache
            .cache_versions(header, ranges.iter().map(|range| range.owner).zip(listed.versions.iter().copied()));
        Ok(listed)
    }

    pub(crate) async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        let header = self.version_cache.header();
        let versions: Vec<_> = self.read(|connection| {
            // One transaction, so that all versions are from one snapshot.
            let transaction = connection.unchecked_transaction()?;
            users.iter().map(|user| version(&transaction, *user)).collect()
        })?;
        self.version_cache.cache_versions(header, users.iter().copied().zip(versions.iter().copied()));
        Ok(versions)
    }

    pub(crate) fn cached_versions(&self, users: impl Iterator<Item = UserId>) -> Option<Vec<Option<Version>>> {
        let header = self.version_cache.header()?;
        users.map(|user| self.version_cache.cached_version(&header, user).map(Some)).collect()
    }

    /// Returns the last of the first `count` plants of the range; `None` if no plant follows.
    pub(crate) async fn page_end(&self, range: PlantRange, count: u32) -> Result<Option<PlantId>, StoreError> {
        const LAST_AND_NEXT: &str = "
            SELECT plant_id FROM plants
            WHERE user_id = $1 AND plant_id BETWEEN $2 AND $3 AND version <= $4
            ORDER BY plant_id LIMIT 2 OFFSET $5";
        let PlantRange { owner, from, through, as_of, .. } = range;
        let found = self.query(LAST_AND_NEXT, &[&owner.get(), &from, &through, &as_of, &i64::from(count - 1)])?;
        Ok(if let [last, _next] = found[..] { Some(PlantId::new(last)) } else { None })
    }
}

fn version(connection: &Connection, user: UserId) -> rusqlite::Result<Option<Version>> {
    let mut statement = connection.prepare_cached(VERSION)?;
    statement.query_row([user.get()], |row| row.get(0).map(Version::new)).optional()
}

/// Passes the first plants of the range to `each` until it breaks, and returns the owner's version, of the same snapshot.
fn query(
    connection: &Connection,
    range: &PlantRange,
    rows: usize,
    mut each: impl FnMut(i64, &str, Option<&str>) -> ControlFlow<()>,
) -> rusqlite::Result<Option<Version>> {
    const FIRST: &str = "
        SELECT 1 FROM plants
        WHERE user_id = ?1 AND plant_id >= ?2 AND add_to_batch(plant_id, name, tag) ORDER BY plant_id";
    // Nearly every list is a single step without these bounds, which cost time. `CASE` determines the order of evaluation.
    const LATER: &str = "
        SELECT 1 FROM plants
        WHERE user_id = ?1 AND plant_id BETWEEN ?2 AND ?3
          AND CASE WHEN version <= ?4 THEN add_to_batch(plant_id, name, tag) END ORDER BY plant_id";
    // While this statement is on its row, SQLite keeps the snapshot for the next one. A transaction would take two statements more.
    let mut owner = connection.prepare_cached(VERSION)?;
    let mut owner = owner.query([range.owner.get()])?;
    let Some(row) = owner.next()? else { return Ok(None) };
    let version = Version::new(row.get(0)?);
    let bounded = range.is_bounded();
    let mut statement = connection.prepare_cached(if bounded { LATER } else { FIRST })?;
    let values = [range.owner.get(), range.from, range.through, range.as_of];
    let mut full_batches = statement.query(params_from_iter(&values[..if bounded { 4 } else { 2 }]))?;
    let mut left = rows;
    while left > 0 {
        Batch::reset(left);
        let is_last = full_batches.next()?.is_none();
        match Batch::pass_to(&mut each)? {
            Some(passed) if !is_last => left -= passed,
            _ => break,
        }
    }
    Ok(Some(version))
}

fn list_one(
    connection: &Connection,
    range: &mut PlantRange,
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> rusqlite::Result<ListStep> {
    let mut emitted = 0;
    let mut stopped = false;
    let mut more = false;
    let mut last = None;
    // One row more shows if there are more.
    let version = query(connection, range, rows.saturating_add(1), |id, name, tag| {
        if stopped || emitted == rows {
            more = true;
            return ControlFlow::Break(());
        }
        let id = PlantId::new(id);
        stopped = each(0, id, name, tag).is_break();
        emitted += 1;
        last = Some(id);
        ControlFlow::Continue(())
    })?;
    *range = last.map_or(*range, |last| range.past(last));
    Ok(ListStep { more, versions: vec![version] })
}

fn list_many(
    connection: &Connection,
    ranges: &mut [PlantRange],
    rows: usize,
    each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> rusqlite::Result<ListStep> {
    let transaction = connection.unchecked_transaction()?;
    let mut versions = Vec::with_capacity(ranges.len());
    let mut pages = Vec::with_capacity(ranges.len());
    for (range, fetch_size) in ranges.iter().zip(fetch_sizes(ranges, rows)) {
        let mut plants = Vec::new();
        versions.push(query(&transaction, range, fetch_size + 1, |id, name, tag| {
            plants.push(PlantRow { id, name: name.to_owned(), tag: tag.map(str::to_owned) });
            ControlFlow::Continue(())
        })?);
        pages.push(FetchedRows::new(plants, fetch_size));
    }
    Ok(ListStep { more: merge(ranges, &pages, rows, each), versions })
}
