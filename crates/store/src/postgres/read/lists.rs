//! Lists of the plants of one owner or of several.

use std::ops::ControlFlow;

use futures_util::future::try_join_all;
use futures_util::{TryStreamExt, join, pin_mut};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::readers::get;
use super::versions::{versions_by_id, versions_of};
use crate::error::StoreError;
use crate::plants::{FetchedRows, ListStep, PlantRange, PlantRow, Version, fetch_sizes, merge};
use crate::postgres::citus::Dialect;
use crate::postgres::connect::DatabaseSession;
use crate::postgres::engine::Postgres;
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

/// Maximum number of plants that one statement of a list reads, and the number for a list without a limit.
const LIST_MAX: usize = 4_096;
const LIST_DEFAULT: usize = 512;
/// Bytes after which no more rows of a response are read.
const LIST_BYTES: usize = 128 * 1024;
/// Number of plants that [`Postgres::page_end`] counts in one statement.
const PAGE_END_STEP: u32 = 20_000;

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
        let (found, unread) = self.rows_of(*range, beyond).await?;
        let Some(first) = found.first() else {
            // Without plants the statement does not return the version.
            return self.list_many(ranges, rows, each).await;
        };
        let Some(version) = get::<Option<i64>>(first, 0)? else {
            // These plants belong to a deleted user.
            return Ok(ListStep { more: false, versions: vec![None] });
        };
        let more = emit(range, &found, limit, each)? || unread;
        Ok(ListStep { more, versions: vec![Some(Version::new(version))] })
    }

    /// Returns the first rows of the range, and true if some rows were not read.
    async fn rows_of(&self, range: PlantRange, limit: i64) -> Result<(Vec<Row>, bool), StoreError> {
        self.readers
            .read(|session| async move {
                let values = [range.owner.get(), range.from, limit, range.through, range.as_of];
                let statements = &session.statements;
                let (statement, values) = if range.is_bounded() {
                    (&statements.list_later, &values[..])
                } else {
                    (&statements.list_first, &values[..3])
                };
                let stream = session.client.query_raw(statement, values).await?;
                pin_mut!(stream);
                let (mut found, mut bytes) = (Vec::new(), 0);
                // The next step reads the rest.
                while bytes < LIST_BYTES
                    && let Some(row) = stream.try_next().await?
                {
                    bytes += row.raw_size_bytes();
                    found.push(row);
                }
                let unread = bytes >= LIST_BYTES && stream.try_next().await?.is_some();
                Ok((found, unread))
            })
            .await
    }

    async fn list_many(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        let fetch_sizes = fetch_sizes(ranges, rows);
        let column = |value: fn(&PlantRange) -> i64| ranges.iter().map(value).collect::<Vec<_>>();
        let columns = [
            column(|range| range.owner.get()),
            column(|range| range.from),
            column(|range| range.through),
            column(|range| range.as_of),
            fetch_sizes.iter().map(|fetch_size| i64::try_from(fetch_size + 1).unwrap_or(i64::MAX)).collect(),
        ];
        let (columns, owners) = (&columns, &*ranges);
        let read = self.readers.read(|session| async move {
            match session.dialect {
                Dialect::Postgres => {
                    let values = columns.each_ref().map(|column| column as &(dyn ToSql + Sync));
                    session.client.query(&session.statements.list_many, &values).await.map(FoundLists::Joined)
                }
                Dialect::Citus => read_each(&session, owners, columns).await,
            }
        });
        let (versions, pages) = match read.await? {
            FoundLists::Joined(rows) => pages(&rows, &fetch_sizes)?,
            FoundLists::Separate { versions, lists } => {
                let owners: Vec<UserId> = owners.iter().map(|range| range.owner).collect();
                separate_pages(versions_of(&versions_by_id(&versions)?, &owners), &lists, &fetch_sizes)?
            }
        };
        Ok(ListStep { more: merge(ranges, &pages, rows, each), versions })
    }

    pub(crate) async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        self.version_reader.read(users).await
    }

    pub(crate) async fn page_end(&self, mut range: PlantRange, count: u32) -> Result<Option<PlantId>, StoreError> {
        let mut remaining = count;
        while remaining > 0 {
            let step = remaining.min(PAGE_END_STEP);
            let values = [range.owner.get(), range.from, range.through, range.as_of, i64::from(step - 1)];
            let found = self.readers.rows(|session| &session.statements.page_end, values).await?;
            let [last, _next] = &found[..] else {
                return Ok(None);
            };
            let last = PlantId::new(get(last, 0)?);
            remaining -= step;
            if remaining == 0 {
                return Ok(Some(last));
            }
            range = range.past(last);
        }
        Ok(None)
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

/// Rows of the lists of several owners.
enum FoundLists {
    /// Rows of `list_many`.
    Joined(Vec<Row>),
    /// Rows of `versions`, and rows of `list_later` for each owner.
    Separate { versions: Vec<Row>, lists: Vec<Vec<Row>> },
}

/// Reads the versions first and then each list, because the owners' rows may be on different workers. So a list may be newer than
/// its version, and the lists of two owners may be from different moments.
async fn read_each(
    session: &DatabaseSession,
    ranges: &[PlantRange],
    [owners, from, through, as_of, limits]: &[Vec<i64>; 5],
) -> Result<FoundLists, Error> {
    let (client, statements) = (&session.client, &session.statements);
    let lists = ranges.iter().enumerate().map(async |(index, range)| {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let values: [&(dyn ToSql + Sync); 5] =
            [&owners[index], &from[index], &limits[index], &through[index], &as_of[index]];
        client.query(&statements.list_later, &values).await
    });
    // The statements are polled and thus sent in this order, without waiting for each other.
    let of_all: [&(dyn ToSql + Sync); 1] = [owners];
    let (versions, lists) = join!(client.query(&statements.versions, &of_all), try_join_all(lists));
    Ok(FoundLists::Separate { versions: versions?, lists: lists? })
}

/// Returns the pages of lists that were read separately. Plants of a deleted user are left out.
fn separate_pages(
    versions: Vec<Option<Version>>,
    lists: &[Vec<Row>],
    wanted: &[usize],
) -> Result<(Vec<Option<Version>>, Vec<FetchedRows>), StoreError> {
    let pages = versions.iter().zip(lists).zip(wanted).map(|((version, rows), wanted)| {
        let rows = if version.is_some() { &rows[..] } else { &[] };
        let plants = rows.iter().map(|row| Ok(PlantRow { id: get(row, 1)?, name: get(row, 2)?, tag: get(row, 3)? }));
        Ok(FetchedRows::new(plants.collect::<Result<_, StoreError>>()?, *wanted))
    });
    let pages = pages.collect::<Result<_, StoreError>>()?;
    Ok((versions, pages))
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
