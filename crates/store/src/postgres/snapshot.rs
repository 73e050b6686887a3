//! Snapshot of a database: a task reads it in one read-only transaction.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use tokio::sync::mpsc::Sender;
use tokio_postgres::{Client, Error};

use super::admin::wait_for_response;
use super::connector::Connector;
use super::database_error::{NO_RESPONSE, describe};
use super::dialect::Dialect;
use super::rows::get;
use super::start;
use crate::error::{OpenError, StoreError};
use crate::options::{OpenOptions, SchemaChange};
use crate::transfer::{
    ChunkBuilder, Counts, KeyRecord, LastIds, PlantRecord, Record, Selection, ShareRecord, Snapshot, SnapshotChunk,
    SnapshotError, SnapshotMessage, TokenRecord, UserRecord,
};
use crate::url::{PostgresUrl, StoreUrl};

/// Timeout for the next row. The database may have to sort the rows first.
const ROWS_TIMEOUT: Duration = Duration::from_secs(600);

/// The selected rows of each table. The parameter limits them to one user. Keys and plants of deleted users are left out.
const USERS: &str = "plantstore.users LEFT JOIN plantstore.collections ON collections.user_id = users.user_id
    WHERE $1::text IS NULL OR users.name = $1";
const TOKENS: &str = "plantstore.tokens WHERE $1::text IS NULL";
const SHARES: &str = "plantstore.shares_by_name WHERE $1::text IS NULL";
const KEYS: &str = "plantstore.idempotency_keys JOIN plantstore.users ON users.user_id = idempotency_keys.user_id
    WHERE $1::text IS NULL";
const PLANTS: &str = "plantstore.users JOIN plantstore.plants ON plants.user_id = users.user_id
    WHERE $1::text IS NULL OR users.name = $1";

/// Starts reading the database.
pub(crate) async fn snapshot(
    url: &PostgresUrl,
    selection: Selection,
    timeout: Duration,
) -> Result<Snapshot, OpenError> {
    let (client, _, store_url) = connect(url, SchemaChange::None, timeout).await?;
    let begun =
        tokio::time::timeout(timeout, client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await;
    let begun = begun.map_err(|_| OpenError::Unreachable(store_url.clone(), NO_RESPONSE.to_owned()))?;
    begun.map_err(|error| OpenError::Unreachable(store_url, describe(&error)))?;
    Ok(start(Arc::new(client), selection))
}

/// Opens a connection to a database with the current schema.
pub(super) async fn connect(
    url: &PostgresUrl,
    schema_change: SchemaChange,
    timeout: Duration,
) -> Result<(Client, Dialect, StoreUrl), OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let connector =
        Connector::new(url, timeout, &Arc::default()).map_err(|reason| OpenError::Unfit(store_url.clone(), reason))?;
    let options =
        OpenOptions { schema_change, write_queue: 1, readers: 1, admin_timeout: timeout, timeout, await_server: false };
    let (client, dialect, _) = start::start(&connector, &store_url, &options).await?;
    Ok((client, dialect, store_url))
}

/// Starts a snapshot in the open transaction of this connection.
pub(super) fn start(client: Arc<Client>, selection: Selection) -> Snapshot {
    let (sender, snapshot) = Snapshot::channel();
    tokio::spawn(async move {
        let reader = SnapshotReader { client, selection, sender };
        let last = match reader.read().await {
            Ok(()) => Ok(None),
            Err(SnapshotError::Failed(error)) => Err(error),
            Err(SnapshotError::ReceiverGone) => return,
        };
        let _ = reader.sender.send(last).await;
    });
    snapshot
}

struct SnapshotReader {
    client: Arc<Client>,
    selection: Selection,
    sender: Sender<SnapshotMessage>,
}

impl SnapshotReader {
    async fn read(&self) -> Result<(), SnapshotError> {
        self.send(SnapshotChunk::Total(self.count().await?)).await?;
        // Collation "C" sorts by bytes, as the embedded engine does.
        if self.selection == Selection::Everything {
            self.send(SnapshotChunk::LastIds(self.last_ids().await?)).await?;
            self.rows::<UserRecord>(USERS, r#"users.name COLLATE "C""#).await?;
            self.rows::<TokenRecord>(TOKENS, "token_id").await?;
            self.rows::<ShareRecord>(SHARES, r#"grantee_name COLLATE "C", owner_id"#).await?;
            self.rows::<KeyRecord>(KEYS, "idempotency_keys.user_id, key").await?;
        }
        self.rows::<PlantRecord>(PLANTS, r#"users.name COLLATE "C", plant_id"#).await
    }

    async fn count(&self) -> Result<Counts, StoreError> {
        // Citus rejects the condition of the other tables, which no row meets if one user is selected.
        let is_counted = |rows| self.selection == Selection::Everything || [USERS, PLANTS].contains(&rows);
        let count =
            |rows| if is_counted(rows) { format!("(SELECT count(*) FROM {rows})") } else { "0::bigint".to_owned() };
        let counts = [USERS, TOKENS, SHARES, KEYS, PLANTS].map(count);
        let statement = format!("SELECT {}", counts.join(", "));
        let row = wait_for(self.client.query_one(&statement, &[&self.selection.user()])).await?;
        let count = |column| get::<i64>(&row, column).map(i64::unsigned_abs);
        Ok(Counts { users: count(0)?, tokens: count(1)?, shares: count(2)?, keys: count(3)?, plants: count(4)? })
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

    async fn rows<T: Record>(&self, rows: &str, order: &str) -> Result<(), SnapshotError> {
        // The version of a user is in another table.
        let columns = T::TABLE.select_list().replace("users.version", "coalesce(collections.version, 0)");
        let statement = format!("SELECT {columns} FROM {rows} ORDER BY {order}");
        let found = wait_for(self.client.query_raw(&statement, [self.selection.user()])).await?;
        pin_mut!(found);
        let mut chunk = ChunkBuilder::<T>::new();
        while let Some(row) = wait_for(found.try_next()).await? {
            chunk.read(&row)?;
            if let Some(full) = chunk.take_full() {
                self.send(full).await?;
            }
        }
        self.send(chunk.finish()).await
    }

    async fn send(&self, chunk: SnapshotChunk) -> Result<(), SnapshotError> {
        self.sender.send(Ok(Some(chunk))).await.map_err(|_| SnapshotError::ReceiverGone)
    }
}

async fn wait_for<T>(response: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    wait_for_response(ROWS_TIMEOUT, response).await
}
