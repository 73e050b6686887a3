//! Lists of the plants of one owner or of several.

use std::ops::ControlFlow;

use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::engine::Sqlite;
use crate::error::StoreError;
use crate::plants::{FetchedRows, ListStep, PlantRange, PlantRow, Version, fetch_sizes, merge};
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

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
    let mut statement = connection.prepare_cached("SELECT version FROM users WHERE user_id = ?1")?;
    statement.query_row([user.get()], |row| row.get(0).map(Version::new)).optional()
}

/// Passes the ids and rows of the first plants of the range to `each` until it breaks, and returns the owner's version. An owner without plants in
/// the range has one row without an id.
fn query(
    connection: &Connection,
    range: &PlantRange,
    rows: i64,
    mut each: impl FnMut(i64, &Row<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<Option<Version>> {
    const FIRST: &str = "
        SELECT users.version, plant_id, plants.name, tag
        FROM users LEFT JOIN plants ON plants.user_id = users.user_id AND plant_id >= ?2
        WHERE users.user_id = ?1 ORDER BY plant_id LIMIT ?3";
    // Nearly every list is a single step without these bounds, which cost time.
    const LATER: &str = "
        SELECT users.version, plant_id, plants.name, tag
        FROM users LEFT JOIN plants ON plants.user_id = users.user_id
          AND plant_id >= ?2 AND plant_id <= ?4 AND plants.version <= ?5
        WHERE users.user_id = ?1 ORDER BY plant_id LIMIT ?3";
    let bounded = range.is_bounded();
    let mut statement = connection.prepare_cached(if bounded { LATER } else { FIRST })?;
    let values = [range.owner.get(), range.from, rows, range.through, range.as_of];
    let mut found = statement.query(params_from_iter(&values[..if bounded { 5 } else { 3 }]))?;
    let mut version = None;
    while let Some(row) = found.next()? {
        if version.is_none() {
            version = Some(Version::new(row.get(0)?));
        }
        if let Some(id) = row.get_ref(1)?.as_i64_or_null()?
            && each(id, row)?.is_break()
        {
            break;
        }
    }
    Ok(version)
}

fn list_one(
    connection: &Connection,
    range: &mut PlantRange,
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> rusqlite::Result<ListStep> {
    // One row more shows if there are more.
    let beyond = i64::try_from(rows).unwrap_or(i64::MAX).saturating_add(1);
    let mut emitted = 0;
    let mut stopped = false;
    let mut more = false;
    let mut last = None;
    let version = query(connection, range, beyond, |id, row| {
        if stopped || emitted == rows {
            more = true;
            return Ok(ControlFlow::Break(()));
        }
        let id = PlantId::new(id);
        stopped = each(0, id, row.get_ref(2)?.as_str()?, row.get_ref(3)?.as_str_or_null()?).is_break();
        emitted += 1;
        last = Some(id);
        Ok(ControlFlow::Continue(()))
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
        versions.push(query(&transaction, range, i64::try_from(fetch_size + 1).unwrap_or(i64::MAX), |id, row| {
            plants.push(PlantRow { id, name: row.get(2)?, tag: row.get(3)? });
            Ok(ControlFlow::Continue(()))
        })?);
        pages.push(FetchedRows::new(plants, fetch_size));
    }
    Ok(ListStep { more: merge(ranges, &pages, rows, each), versions })
}
