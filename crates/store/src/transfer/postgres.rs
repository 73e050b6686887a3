//! Snapshot of a database, restore into an empty database, and import.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use jiff::Timestamp;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::line::{ImportOutcome, ImportResult, ImportRow, OnDuplicate};
use super::snapshot::{LastIds, Selection, Snapshot, SnapshotMessage, SnapshotSender, SnapshotStart, closed};
use super::table::{Cell, Chunk, Column, PLANTS, Table, USERS, names};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::options::SchemaChange;
use crate::postgres::{
    AdminConnection, NO_RESPONSE, PlantColumns, Postgres, Started, WriteStatements, changed_plants, describe,
    execute_each, get, start_command, wait_for_response,
};
use crate::url::PostgresUrl;
use plantstore_model::plant::Tag;

/// Timeout for the next row. The database may have to sort the rows first.
const ROWS_TIMEOUT: Duration = Duration::from_secs(600);
/// The version of a user is in another table.
const USERS_WITH_VERSIONS: &str = "users LEFT JOIN collections ON collections.user_id = users.user_id
    WHERE CAST($1 AS text) IS NULL OR users.name = $1";

/// Starts reading the database in one read-only transaction.
pub(super) async fn snapshot(
    url: &PostgresUrl,
    selection: Selection,
    timeout: Duration,
) -> Result<Snapshot, OpenError> {
    let Started { client, url, .. } = start_command(url, SchemaChange::None, timeout).await?;
    let begun =
        tokio::time::timeout(timeout, client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await;
    let begun = begun.map_err(|_| OpenError::Unreachable(url.clone(), NO_RESPONSE.to_owned()))?;
    begun.map_err(|error| OpenError::Unreachable(url, describe(&error)))?;
    Ok(read(Arc::new(client), selection))
}

fn read(client: Arc<Client>, selection: Selection) -> Snapshot {
    let (sender, snapshot) = Snapshot::channel();
    tokio::spawn(async move {
        let reader = SnapshotReader { client, selection, sender };
        let last = reader.read().await.map(|()| SnapshotMessage::End);
        // Fails if the receiver is gone.
        let _ = reader.sender.send(last).await;
    });
    snapshot
}

struct SnapshotReader {
    client: Arc<Client>,
    selection: Selection,
    sender: SnapshotSender,
}

impl SnapshotReader {
    async fn read(&self) -> Result<(), StoreError> {
        let mut start = SnapshotStart {
            users: self.count(&USERS).await?,
            plants: self.count(&PLANTS).await?,
            last_ids: LastIds::default(),
        };
        if self.selection == Selection::Everything {
            start.last_ids = self.last_ids().await?;
        }
        self.send(SnapshotMessage::Start(start)).await?;
        for table in self.selection.tables() {
            self.send_rows(table).await?;
        }
        Ok(())
    }

    async fn count(&self, table: &Table) -> Result<u64, StoreError> {
        let count = format!("SELECT count(*) FROM {}", table.rows);
        let row = wait_for(self.client.query_one(&count, &[&self.selection.user()])).await?;
        get::<i64>(&row, 0).map(i64::unsigned_abs)
    }

    /// Returns the last ids of the sequences, as far as this role may read them, and of the tables.
    async fn last_ids(&self) -> Result<LastIds, StoreError> {
        const LAST: &str = "
            SELECT coalesce(has_sequence_privilege(numbers, 'SELECT, USAGE'), false), greatest(0, (
              SELECT last_value FROM pg_catalog.pg_sequences
              WHERE quote_ident(schemaname) || '.' || quote_ident(sequencename) = numbers))
            FROM pg_get_serial_sequence($1, $2) AS numbers";
        const STORED: &str = "
            SELECT greatest((SELECT max(user_id) FROM plantstore.users), (SELECT max(user_id) FROM plantstore.departed_users), 0),
              greatest((SELECT max(token_id) FROM plantstore.tokens), 0)";
        let users = wait_for(self.client.query_one(LAST, &[&"plantstore.users", &"user_id"])).await?;
        let tokens = wait_for(self.client.query_one(LAST, &[&"plantstore.tokens", &"token_id"])).await?;
        if !(get::<bool>(&users, 0)? && get::<bool>(&tokens, 0)?) {
            tracing::warn!(
                "this role may not read the sequences, so ids of deleted users and tokens may be assigned again: \
                 GRANT SELECT ON ALL SEQUENCES IN SCHEMA plantstore"
            );
        }
        let stored = wait_for(self.client.query_one(STORED, &[])).await?;
        Ok(LastIds {
            user: get::<i64>(&users, 1)?.max(get(&stored, 0)?),
            token: get::<i64>(&tokens, 1)?.max(get(&stored, 1)?),
        })
    }

    async fn send_rows(&self, table: &'static Table) -> Result<(), StoreError> {
        let rows = if table.name == USERS.name { USERS_WITH_VERSIONS } else { table.rows };
        let columns = table.select_list().replace("users.version", "coalesce(collections.version, 0)");
        // Collation "C" sorts by bytes, as SQLite does.
        let order = table.order.join(", ").replace("name", "name COLLATE \"C\"");
        let statement = format!("SELECT {columns} FROM {rows} ORDER BY {order}");
        let found = wait_for(self.client.query_raw(&statement, [self.selection.user()])).await?;
        pin_mut!(found);
        let mut chunk = Chunk::new(table);
        while let Some(row) = wait_for(found.try_next()).await? {
            chunk.read(|index, column| cell(&row, index, column))?;
            if let Some(full) = chunk.take_full() {
                self.send(SnapshotMessage::Rows(full)).await?;
            }
        }
        self.send(SnapshotMessage::Rows(chunk)).await
    }

    async fn send(&self, message: SnapshotMessage) -> Result<(), StoreError> {
        self.sender.send(Ok(message)).await.map_err(|_| closed())
    }
}

async fn wait_for<T>(response: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    wait_for_response(ROWS_TIMEOUT, response).await
}

fn cell(row: &Row, index: usize, column: &Column) -> Result<Cell, Error> {
    let cell = match column.postgres_type {
        Type::INT4 => row.try_get::<_, Option<i32>>(index)?.map(|number| Cell::Integer(number.into())),
        Type::INT8 => row.try_get::<_, Option<i64>>(index)?.map(Cell::Integer),
        Type::BYTEA => row.try_get::<_, Option<&[u8]>>(index)?.map(|bytes| Cell::Bytes(bytes.into())),
        _ => row.try_get::<_, Option<&str>>(index)?.map(|text| Cell::Text(text.into())),
    };
    Ok(cell.unwrap_or(Cell::Null))
}

/// An open transaction, which is rolled back when its connection is closed.
pub struct RestoreTarget {
    connection: AdminConnection,
}

impl RestoreTarget {
    pub(super) async fn begin(
        url: &PostgresUrl,
        schema_change: SchemaChange,
        timeout: Duration,
    ) -> Result<Self, RestoreError> {
        // Blocks other writers; readers see an empty database. The source may take long to count and sort its rows.
        const LOCK: &[&str] = &[
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            "SET LOCAL idle_in_transaction_session_timeout = 0",
            "LOCK TABLE plantstore.users, plantstore.collections, plantstore.plants IN SHARE ROW EXCLUSIVE MODE",
        ];
        const OCCUPIED: &str = "
            SELECT EXISTS (SELECT 1 FROM plantstore.users),
              EXISTS (SELECT 1 FROM plantstore.plants) OR EXISTS (SELECT 1 FROM plantstore.departed_users)";
        let Started { client, dialect, url, .. } = start_command(url, schema_change, timeout).await?;
        let connection = AdminConnection::new(client, dialect, timeout);
        connection.wait_for(execute_each(&connection.client, LOCK)).await?;
        let row = connection.wait_for(connection.client.query_one(OCCUPIED, &[])).await?;
        if get(&row, 0)? {
            return Err(RestoreError::Occupied(url, "users"));
        }
        if get(&row, 1)? {
            return Err(RestoreError::Occupied(url, "plants of deleted users"));
        }
        Ok(Self { connection })
    }

    pub(super) async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        let client = &*self.connection.client;
        let copying = async {
            if chunk.table.name != USERS.name {
                return copy(client, chunk.table.name, chunk, |column| !column.is_joined()).await;
            }
            // The version of a user is in another table.
            copy(client, "users", chunk, |column| column.name != "version").await?;
            copy(client, "collections", chunk, |column| matches!(column.name, "user_id" | "version")).await
        };
        self.connection.wait_for(copying).await
    }

    pub(super) async fn contents(&mut self, last_ids: LastIds) -> Result<Snapshot, StoreError> {
        // The next id is higher than all copied ids and all ids that either store has assigned.
        const IDS: &str = "
            SELECT setval(ids, greatest(nextval(ids), $1::bigint, (SELECT max(user_id) FROM plantstore.users)))
            FROM pg_get_serial_sequence('plantstore.users', 'user_id') AS ids
            UNION ALL
            SELECT setval(ids, greatest(nextval(ids), $2::bigint, (SELECT max(token_id) FROM plantstore.tokens)))
            FROM pg_get_serial_sequence('plantstore.tokens', 'token_id') AS ids";
        let client = &self.connection.client;
        self.connection.wait_for(client.query(IDS, &[&last_ids.user, &last_ids.token])).await?;
        Ok(read(Arc::clone(client), Selection::Everything))
    }

    pub(super) async fn finish(self) -> Result<(), RestoreError> {
        Ok(self.connection.commit().await?)
    }
}

async fn copy(client: &Client, table: &str, chunk: &Chunk, is_copied: fn(&Column) -> bool) -> Result<(), Error> {
    let columns: Vec<&Column> = chunk.table.columns.iter().filter(|column| is_copied(column)).collect();
    let types: Vec<Type> = columns.iter().map(|column| column.postgres_type.clone()).collect();
    let statement = format!("COPY {table} ({}) FROM STDIN BINARY", names(columns));
    let sink = client.copy_in(&statement).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    for row in chunk.rows() {
        let cells = row.iter().zip(chunk.table.columns).filter(|(_, column)| is_copied(column));
        let cells: Vec<_> = cells.map(|(cell, _)| cell as &(dyn ToSql + Sync)).collect();
        writer.as_mut().write(&cells).await?;
    }
    writer.finish().await.map(|_| ())
}

pub(super) struct Importer {
    connection: AdminConnection,
    statements: WriteStatements,
}

impl Importer {
    pub(super) async fn start(engine: &Postgres) -> Result<Self, StoreError> {
        let connection = engine.admin_connection().await?;
        let statements = connection
            .wait_for(WriteStatements::prepare(&connection.client, |text| connection.dialect.statement(text)))
            .await?;
        Ok(Self { connection, statements })
    }

    pub(super) async fn put(
        &mut self,
        mut batch: &[ImportRow],
        on_duplicate: OnDuplicate,
    ) -> Result<ImportResult, StoreError> {
        loop {
            let imported = self.attempt(batch).await?;
            let taken = imported.outcomes.iter().position(|outcome| *outcome != ImportOutcome::Stored);
            let Some(taken) = taken.filter(|_| on_duplicate == OnDuplicate::Stop) else {
                self.connection.commit().await?;
                return Ok(imported);
            };
            // All rows were stored with one statement. They are rolled back, and those before the duplicate are stored again,
            // of which another writer may have taken an id meanwhile.
            batch = &batch[..taken];
            self.connection.wait_for(self.connection.client.batch_execute("ROLLBACK")).await?;
        }
    }

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
        let client = &self.connection.client;
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let BatchOwners { ids, new_users } = self.owners(batch).await?;
        let key_of = |row: &ImportRow| (ids[row.owner.as_str()], row.plant.id.get());
        let owners: BTreeSet<i64> = ids.values().copied().collect();
        client.execute(&self.statements.advance_versions, &[&Vec::from_iter(owners), &0_i64, &0_i64]).await?;
        // Only the first of several rows with the same key is sent.
        let mut plants = BTreeMap::new();
        for row in batch {
            plants.entry(key_of(row)).or_insert(&row.plant);
        }
        let stored = client.query(&self.statements.create, &PlantColumns::of(&plants).values()).await?;
        let mut stored = changed_plants(&stored)?;
        let existing = self.existing(plants.keys().filter(|key| !stored.contains(key))).await?;
        let outcomes = batch.iter().map(|row| {
            let key = key_of(row);
            if stored.remove(&key) {
                return ImportOutcome::Stored;
            }
            let is_same = match existing.get(&key) {
                Some((name, tag)) => {
                    name == row.plant.name.as_str() && tag.as_deref() == row.plant.tag.as_ref().map(Tag::as_str)
                }
                None => *plants[&key] == row.plant,
            };
            if is_same { ImportOutcome::Same } else { ImportOutcome::Different }
        });
        Ok(ImportResult { outcomes: outcomes.collect(), new_users, stop: None })
    }

    /// Returns the owners of a batch, who are created if there are none.
    async fn owners(&self, batch: &[ImportRow]) -> Result<BatchOwners, Error> {
        const KNOWN: &str = "SELECT name, user_id FROM plantstore.users WHERE name = ANY($1::text[])";
        let names: BTreeSet<&str> = batch.iter().map(|row| row.owner.as_str()).collect();
        let names = Vec::from_iter(names);
        let known = self.connection.client.query(KNOWN, &[&names]).await?.len();
        let now = vec![Timestamp::now().as_second(); names.len()];
        let found = self.connection.client.query(&self.statements.create_users, &[&names, &now]).await?;
        let ids = found.iter().map(|row| Ok((row.try_get(1)?, row.try_get(0)?))).collect::<Result<_, Error>>()?;
        Ok(BatchOwners { ids, new_users: (names.len() - known) as u64 })
    }

    /// Returns the names and tags of existing plants. Other writers cannot change them, because the owners' versions are locked.
    async fn existing(
        &self,
        keys: impl Iterator<Item = &(i64, i64)>,
    ) -> Result<HashMap<(i64, i64), (String, Option<String>)>, Error> {
        const KNOWN: &str = "
            SELECT plants.user_id, plants.plant_id, name, tag
            FROM unnest($1::bigint[], $2::bigint[]) AS requested (user_id, plant_id)
            JOIN plantstore.plants ON plants.user_id = requested.user_id AND plants.plant_id = requested.plant_id";
        let (users, plants): (Vec<i64>, Vec<i64>) = keys.copied().unzip();
        if plants.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.connection.client.query(KNOWN, &[&users, &plants]).await?;
        let plant = |row: &Row| Ok(((row.try_get(0)?, row.try_get(1)?), (row.try_get(2)?, row.try_get(3)?)));
        found.iter().map(plant).collect()
    }
}

struct BatchOwners {
    /// By name.
    ids: HashMap<String, i64>,
    new_users: u64,
}
