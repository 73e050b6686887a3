//! Lists of the plants of one owner or of several.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::time::timeout;
use tokio_postgres::Row;

use super::readers::{FoundRows, get};
use crate::error::StoreError;
use crate::plants::{FetchedRows, ListStep, PlantRange, PlantRow, Version, fetch_sizes, merge};
use crate::postgres::Postgres;
use crate::postgres::lane::Lane;
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

/// Maximum number of plants that one statement of a list reads, and the number for a list without a limit.
const LIST_MAX: usize = 4_096;
const LIST_DEFAULT: usize = 512;
/// Bytes after which no more rows of a response are read.
const LIST_BYTES: usize = 128 * 1024;

impl Postgres {
    pub(crate) async fn list(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        let [range] = ranges else {
            return self.list_many(ranges, rows, each).await;
        };
        let limit = if rows == usize::MAX { LIST_DEFAULT } else { rows.min(LIST_MAX) };
        // One row more shows if there are more.
        let beyond = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let found = self.rows_of(*range, beyond).await?;
        let Some(first) = found.rows.first() else {
            // Without plants the statement does not return the version.
            return self.list_many(ranges, rows, each).await;
        };
        let Some(version) = get::<Option<i64>>(first, 0)? else {
            // These plants belong to a deleted user.
            return Ok(ListStep { more: false, versions: vec![None] });
        };
        let more = emit(range, &found.rows, limit, each)? || found.has_more;
        Ok(ListStep { more, versions: vec![Some(Version::new(version))] })
    }

    async fn list_many(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        let fetch_sizes = fetch_sizes(ranges, rows);
        let limits = fetch_sizes.iter().map(|fetch_size| i64::try_from(fetch_size + 1).unwrap_or(i64::MAX)).collect();
        let (versions, pages) = if self.lanes.are_several() {
            self.read_each(ranges, limits, &fetch_sizes).await?
        } else {
            pages(&self.read_together(ranges, limits).await?, &fetch_sizes)?
        };
        Ok(ListStep { more: merge(ranges, &pages, rows, each), versions })
    }

    async fn read_together(&self, ranges: &[PlantRange], limits: Vec<i64>) -> Result<Vec<Row>, StoreError> {
        let column = |value: fn(&PlantRange) -> i64| ranges.iter().map(value).collect::<Vec<_>>();
        let columns = [
            column(|range| range.owner.get()),
            column(|range| range.from),
            column(|range| range.through),
            column(|range| range.as_of),
            limits,
        ];
        let [owners, first, last, as_of, limits] = &columns;
        let read = self.lanes.main.readers.read(|session| async move {
            let statement = &session.statements().of_reader().list_many;
            session.client.query(statement, &[owners, first, last, as_of, limits]).await
        });
        read.await
    }

    /// Reads the versions first and then each list, because the owners' rows may be on different servers. So a list may be newer than
    /// its version, and the lists of two owners may be from different moments. Plants of a deleted user are left out.
    async fn read_each(
        &self,
        ranges: &[PlantRange],
        limits: Vec<i64>,
        wanted: &[usize],
    ) -> Result<(Vec<Option<Version>>, Vec<FetchedRows>), StoreError> {
        let owners: Vec<UserId> = ranges.iter().map(|range| range.owner).collect();
        let versions = self.versions(&owners).await?;
        let lists = versions.iter().zip(ranges).zip(limits).map(async |((version, range), limit)| {
            if range.is_empty() || version.is_none() {
                return Ok(Vec::new());
            }
            let values = [range.owner.get(), range.from, limit, range.through, range.as_of];
            let readers = &self.lanes.of(range.owner).readers;
            let found = readers.rows_of(range.owner, |statements| &statements.list_later, &values, usize::MAX).await?;
            Ok::<_, StoreError>(found.rows)
        });
        let lists = try_join_all(lists).await?;
        let pages = lists.iter().zip(wanted).map(|(rows, wanted)| {
            let plants =
                rows.iter().map(|row| Ok(PlantRow { id: get(row, 1)?, name: get(row, 2)?, tag: get(row, 3)? }));
            Ok(FetchedRows::new(plants.collect::<Result<_, StoreError>>()?, *wanted))
        });
        let pages = pages.collect::<Result<_, StoreError>>()?;
        Ok((versions, pages))
    }

    /// Returns the first rows of the range. The next step reads those that are left.
    async fn rows_of(&self, range: PlantRange, limit: i64) -> Result<FoundRows, StoreError> {
        let lane = self.lanes.of(range.owner);
        let values = [range.owner.get(), range.from, limit, range.through, range.as_of];
        if range.is_bounded() {
            lane.readers.rows_of(range.owner, |statements| &statements.list_later, &values, LIST_BYTES).await
        } else {
            lane.readers.rows_of(range.owner, |statements| &statements.list_first, &values[..3], LIST_BYTES).await
        }
    }

    /// Asks the lanes of the users concurrently.
    pub(crate) async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        if let [user] = users {
            return self.lanes.of(*user).version_reader.read(users).await;
        }
        let read = self.by_lane(users).into_iter().map(async |(lane, users)| {
            let versions = lane.version_reader.read(&users).await?;
            Ok::<_, StoreError>(users.into_iter().zip(versions).collect::<Vec<_>>())
        });
        let found: HashMap<UserId, Option<Version>> = try_join_all(read).await?.into_iter().flatten().collect();
        Ok(users.iter().map(|user| found.get(user).copied().flatten()).collect())
    }

    /// Returns the versions of the users whose lanes respond within the timeout.
    pub(crate) async fn versions_of_lanes(&self, users: &[UserId], limit: Duration) -> Vec<(UserId, Option<Version>)> {
        let read = self.by_lane(users).into_iter().map(async |(lane, users)| {
            let versions = timeout(limit, lane.version_reader.read(&users)).await.ok()?.ok()?;
            Some(users.into_iter().zip(versions))
        });
        join_all(read).await.into_iter().flatten().flatten().collect()
    }

    fn by_lane(&self, users: &[UserId]) -> Vec<(Arc<Lane>, Vec<UserId>)> {
        let mut by_lane: Vec<(Arc<Lane>, Vec<UserId>)> = Vec::new();
        for user in users {
            let lane = self.lanes.of(*user);
            match by_lane.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &lane)) {
                Some((_, users)) => users.push(*user),
                None => by_lane.push((lane, vec![*user])),
            }
        }
        by_lane
    }

    /// Returns the last of the first `count` plants of the range; `None` if no plant follows.
    pub(crate) async fn page_end(&self, range: PlantRange, count: u32) -> Result<Option<PlantId>, StoreError> {
        let values = [range.owner.get(), range.from, range.through, range.as_of, i64::from(count - 1)];
        let readers = &self.lanes.of(range.owner).readers;
        let found = readers.rows_of(range.owner, |statements| &statements.page_end, &values, usize::MAX).await?;
        let [last, _next] = &found.rows[..] else { return Ok(None) };
        Ok(Some(PlantId::new(get(last, 0)?)))
    }
}

/// Passes plants to `each` and shrinks the range. Returns true if some of the rows are left.
fn emit(
    range: &mut PlantRange,
    found: &[Row],
    limit: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> Result<bool, StoreError> {
    for (emitted, row) in found.iter().enumerate() {
        if emitted == limit {
            return Ok(true);
        }
        let id = PlantId::new(get(row, 1)?);
        *range = range.past(id);
        if each(0, id, get(row, 2)?, get(row, 3)?).is_break() {
            return Ok(emitted + 1 < found.len());
        }
    }
    Ok(false)
}

/// Groups the rows of several lists by list.
fn pages(found: &[Row], wanted: &[usize]) -> Result<(Vec<Option<Version>>, Vec<FetchedRows>), StoreError> {
    let mut versions = vec![None; wanted.len()];
    let mut plants: Vec<Vec<PlantRow>> = std::iter::repeat_with(Vec::new).take(wanted.len()).collect();
    for row in found {
        let index = usize::try_from(get::<i64>(row, 0)? - 1).ok().filter(|index| *index < wanted.len());
        let index = index.ok_or_else(|| StoreError::Internal("a row without a list".to_owned()))?;
        versions[index] = Some(Version::new(get(row, 1)?));
        if let Some(id) = get(row, 2)? {
            plants[index].push(PlantRow { id, name: get(row, 3)?, tag: get(row, 4)? });
        }
    }
    Ok((versions, plants.into_iter().zip(wanted).map(|(plants, wanted)| FetchedRows::new(plants, *wanted)).collect()))
}
