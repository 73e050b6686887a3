//! A database at one moment: one transaction that only reads, its rows taken as they come, in bounded memory.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use tokio::sync::mpsc::Sender;
use tokio_postgres::{Client, Error};

use super::connector::Connector;
use super::database_error::{SILENT, describe};
use super::operator::respond_within;
use super::rows::get;
use super::start;
use crate::error::{OpenError, StoreError};
use crate::options::OpenOptions;
use crate::transfer::{
    Chunk, ChunkBuilder, Counts, KeyRecord, LastIds, Message, PlantRecord, Record, Selection, ShareRecord, Snapshot,
    TokenRecord, UserRecord,
};
use crate::url::{PostgresUrl, StoreUrl};

/// Timeout for the next rows: the database may have to sort them first.
const ROWS_TIMEOUT: Duration = Duration::from_secs(600);

/// The rows of each table that are selected for the user, if there is one. Keys of deleted users are left out, and so are
/// their plants.
const USERS: &str = "plantstore.users LEFT JOIN plantstore.collections ON collections.user_id = users.user_id
    WHERE $1::text IS NULL OR users.name = $1";
const TOKENS: &str = "plantstore.tokens WHERE $1::text IS NULL";
const SHARES: &str = "plantstore.shares WHERE $1::text IS NULL";
const KEYS: &str = "plantstore.idempotency_keys JOIN plantstore.users ON users.user_id = idempotency_keys.user_id
    WHERE $1::text IS NULL";
const PLANTS: &str = "plantstore.users JOIN plantstore.plants ON plants.user_id = users.user_id
    WHERE $1::text IS NULL OR users.name = $1";

/// Begins to read the database.
pub(crate) async fn snapshot(
    url: &PostgresUrl,
    selection: Selection,
    timeout: Duration,
) -> Result<Snapshot, OpenError> {
    let (client, store_url) = connect(url, false, timeout).await?;
    let begun =
        tokio::time::timeout(timeout, client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await;
    let begun = begun.map_err(|_| OpenError::Unreachable(store_url.clone(), SILENT.to_owned()))?;
    begun.map_err(|error| OpenError::Unreachable(store_url, describe(&error)))?;
    Ok(start(Arc::new(client), selection))
}

/// A connection of its own to a database whose schema is up to date, or is made so.
pub(super) async fn connect(url: &PostgresUrl, make: bool, timeout: Duration) -> Result<(Client, StoreUrl), OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let connector =
        Connector::new(url, timeout, &Arc::default()).map_err(|reason| OpenError::Unfit(store_url.clone(), reason))?;
    let options = OpenOptions {
        create: make,
        migrate: make,
        write_queue: 1,
        readers: 1,
        operator_timeout: timeout,
        timeout,
        await_server: false,
    };
    let (client, _) = start::start(&connector, &store_url, &options).await?;
    Ok((client, store_url))
}

/// Reads what the transaction that is open on this connection sees.
pub(super) fn start(client: Arc<Client>, selection: Selection) -> Snapshot {
    let (sender, snapshot) = Snapshot::channel();
    tokio::spawn(async move {
        let source = Source { client, selection, sender };
        let last = match source.read().await {
            Ok(()) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::NotWanted) => return,
        };
        let _ = source.sender.send(last).await;
    });
    snapshot
}

struct Source {
    client: Arc<Client>,
    selection: Selection,
    sender: Sender<Message>,
}

enum Stop {
    Failed(StoreError),
    NotWanted,
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl Source {
    async fn read(&self) -> Result<(), Stop> {
        self.send(Chunk::Total(self.count().await?)).await?;
        // By bytes, whatever language the database was set up for: the same order as in the embedded engine.
        if self.selection == Selection::Everything {
            self.send(Chunk::LastIds(self.last_ids().await?)).await?;
            self.rows::<UserRecord>(USERS, r#"users.name COLLATE "C""#).await?;
            self.rows::<TokenRecord>(TOKENS, "token_id").await?;
            self.rows::<ShareRecord>(SHARES, "grantee_id, owner_id").await?;
            self.rows::<KeyRecord>(KEYS, "idempotency_keys.user_id, key").await?;
        }
        self.rows::<PlantRecord>(PLANTS, r#"users.name COLLATE "C", plant_id"#).await
    }

    async fn count(&self) -> Result<Counts, StoreError> {
        let counts = [USERS, TOKENS, SHARES, KEYS, PLANTS].map(|rows| format!("(SELECT count(*) FROM {rows})"));
        let statement = format!("SELECT {}", counts.join(", "));
        let row = respond(self.client.query_one(&statement, &[&self.selection.user()])).await?;
        let count = |column| get::<i64>(&row, column).map(i64::unsigned_abs);
        Ok(Counts { users: count(0)?, tokens: count(1)?, shares: count(2)?, keys: count(3)?, plants: count(4)? })
    }

    /// The numbers that the sequences have given out, as far as this role may read them.
    async fn last_ids(&self) -> Result<LastIds, StoreError> {
        const LAST: &str = "
            SELECT coalesce(has_sequence_privilege(numbers, 'SELECT, USAGE'), false), greatest(0, (
              SELECT last_value FROM pg_catalog.pg_sequences
              WHERE quote_ident(schemaname) || '.' || quote_ident(sequencename) = numbers))
            FROM pg_get_serial_sequence($1, $2) AS numbers";
        const STORED: &str = "
            SELECT greatest((SELECT max(user_id) FROM plantstore.users), (SELECT max(user_id) FROM plantstore.departed_users), 0),
              greatest((SELECT max(token_id) FROM plantstore.tokens), 0)";
        let users = respond(self.client.query_one(LAST, &[&"plantstore.users", &"user_id"])).await?;
        let tokens = respond(self.client.query_one(LAST, &[&"plantstore.tokens", &"token_id"])).await?;
        if !(get::<bool>(&users, 0)? && get::<bool>(&tokens, 0)?) {
            tracing::warn!(
                "this role may not read the sequences, so numbers of deleted users and tokens may be given out again: \
                 GRANT SELECT ON ALL SEQUENCES IN SCHEMA plantstore"
            );
        }
        let stored = respond(self.client.query_one(STORED, &[])).await?;
        Ok(LastIds {
            user: get::<i64>(&users, 1)?.max(get(&stored, 0)?),
            token: get::<i64>(&tokens, 1)?.max(get(&stored, 1)?),
        })
    }

    async fn rows<T: Record>(&self, rows: &str, order: &str) -> Result<(), Stop> {
        // The version of a user stands in a table of its own.
        let columns = T::TABLE.select_list().replace("users.version", "coalesce(collections.version, 0)");
        let statement = format!("SELECT {columns} FROM {rows} ORDER BY {order}");
        let found = respond(self.client.query_raw(&statement, [self.selection.user()])).await?;
        pin_mut!(found);
        let mut chunk = ChunkBuilder::<T>::new();
        while let Some(row) = respond(found.try_next()).await? {
            chunk.read(&row)?;
            if let Some(full) = chunk.take_full() {
                self.send(full).await?;
            }
        }
        self.send(chunk.finish()).await
    }

    async fn send(&self, chunk: Chunk) -> Result<(), Stop> {
        self.sender.send(Ok(Some(chunk))).await.map_err(|_| Stop::NotWanted)
    }
}

async fn respond<T>(response: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    respond_within(ROWS_TIMEOUT, response).await
}
