//! Batches of the rows of a list. SQLite passes each row to a function within one step, which takes a third fewer instructions than a
//! step and the column functions for each row.

use std::cell::RefCell;
use std::ops::ControlFlow;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::Type;
use rusqlite::{Connection, Error};

/// Maximum number of rows in a batch, and size of its texts in bytes from which it is full. A list that ends within a batch has
/// read the rest of it in vain.
const ROWS_MAX: usize = 32;
const BYTES_FULL: usize = 4 * 1024;

thread_local! {
    /// A query runs on one thread.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Rows that a statement has found and that are not passed on yet.
#[derive(Default)]
pub(super) struct Batch {
    rows: Vec<BatchRow>,
    /// The names and tags of all rows, so that they are checked together.
    text: Vec<u8>,
    rows_max: usize,
}

struct BatchRow {
    id: i64,
    name_bytes: usize,
    tag_bytes: Option<usize>,
}

/// Defines the SQL function `add_to_batch(plant_id, name, tag)`, which returns true when the batch of this thread is full.
pub(super) fn define_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("add_to_batch", 3, flags, |row| {
        let id = row.get_raw(0).as_i64()?;
        let name = row.get_raw(1).as_bytes()?;
        let tag = row.get_raw(2).as_bytes_or_null()?;
        Ok(BATCH.with_borrow_mut(|batch| {
            batch.rows.push(BatchRow { id, name_bytes: name.len(), tag_bytes: tag.map(<[u8]>::len) });
            batch.text.extend_from_slice(name);
            batch.text.extend_from_slice(tag.unwrap_or_default());
            batch.rows.len() >= batch.rows_max || batch.text.len() >= BYTES_FULL
        }))
    })
}

impl Batch {
    /// Empties the batch of this thread for at most this many rows.
    pub(super) fn reset(rows: usize) {
        BATCH.with_borrow_mut(|batch| {
            batch.rows.clear();
            batch.text.clear();
            batch.rows_max = rows.min(ROWS_MAX);
        });
    }

    /// Passes its rows to `each`, and returns their number; `None` if `each` breaks.
    pub(super) fn pass_to(
        each: &mut impl FnMut(i64, &str, Option<&str>) -> ControlFlow<()>,
    ) -> rusqlite::Result<Option<usize>> {
        let invalid = || Error::FromSqlConversionFailure(0, Type::Text, "a name or tag is not UTF-8".into());
        BATCH.with_borrow(|batch| {
            let mut rest = str::from_utf8(&batch.text).map_err(|_| invalid())?;
            for row in &batch.rows {
                // Fails if a character begins in one text and ends in the next.
                let (name, after) = rest.split_at_checked(row.name_bytes).ok_or_else(invalid)?;
                let (tag, after) = after.split_at_checked(row.tag_bytes.unwrap_or(0)).ok_or_else(invalid)?;
                rest = after;
                if each(row.id, name, row.tag_bytes.map(|_| tag)).is_break() {
                    return Ok(None);
                }
            }
            Ok(Some(batch.rows.len()))
        })
    }
}
