//! A database at one moment: one transaction that only reads, its rows taken as they come, in bounded memory.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row};

use super::fault::{Fault, describe};
use super::get;
use super::link::{Connector, SILENT};
use super::url::PostgresUrl;
use crate::transfer::{
    Counts, Handed, KeyRecord, Numbers, PIECE_BYTES, PIECE_ROWS, PIECES_WAITING, Piece, PlantRecord, Selection,
    ShareRecord, Snapshot, TokenRecord, UserRecord,
};
use crate::{OpenError, OpenOptions, StoreError, StoreUrl};

/// How long the next rows may take to come: the database may have to sort them first.
const ROWS_PATIENCE: Duration = Duration::from_secs(600);

/// Begins to read the database.
pub(crate) async fn snapshot(
    url: &PostgresUrl,
    selection: Selection,
    patience: Duration,
) -> Result<Snapshot, OpenError> {
    let (client, store_url) = connect(url, false, patience).await?;
    let begun = timeout(patience, client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")).await;
    let begun = begun.map_err(|_| OpenError::Unreachable(store_url.clone(), SILENT.to_owned()))?;
    begun.map_err(|error| OpenError::Unreachable(store_url, describe(&error)))?;
    Ok(start(Arc::new(client), selection))
}

/// A connection of its own to a database whose schema is up to date, or is made so.
pub(super) async fn connect(
    url: &PostgresUrl,
    make: bool,
    patience: Duration,
) -> Result<(Client, StoreUrl), OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let connector =
        Connector::new(url, patience, &Arc::default()).map_err(|why| OpenError::Unfit(store_url.clone(), why))?;
    let options = OpenOptions {
        create: make,
        migrate: make,
        write_queue: 1,
        readers: 1,
        patience,
        timeout: patience,
        await_server: false,
    };
    let (client, _) = super::start::start(&connector, &store_url, &options).await?;
    Ok((client, store_url))
}

/// Reads what the transaction that is open on this connection sees.
pub(super) fn start(client: Arc<Client>, selection: Selection) -> Snapshot {
    let (sender, pieces) = channel(PIECES_WAITING);
    tokio::spawn(async move {
        let source = Source { client, selection, sender };
        let last = match source.read().await {
            Ok(()) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::NotWanted) => return,
        };
        let _ = source.sender.send(last).await;
    });
    Snapshot::new(pieces)
}

struct Source {
    client: Arc<Client>,
    selection: Selection,
    sender: Sender<Handed>,
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
        const USERS: &str = r#"
            SELECT users.user_id, name, coalesce(version, 0), created_at
            FROM plantstore.users LEFT JOIN plantstore.collections ON collections.user_id = users.user_id
            ORDER BY name COLLATE "C""#;
        const TOKENS: &str = "
            SELECT token_id, hash, user_id, label, scopes, created_at, expires_at, revoked_at, last_used_at
            FROM plantstore.tokens ORDER BY token_id";
        const SHARES: &str = "
            SELECT grantee_id, owner_id, role, created_at FROM plantstore.shares ORDER BY grantee_id, owner_id";
        const KEYS: &str = "
            SELECT kept.user_id, key, fingerprint, outcome, message, expires_at
            FROM plantstore.idempotency_keys AS kept JOIN plantstore.users ON users.user_id = kept.user_id
            ORDER BY kept.user_id, key";
        self.hand(Piece::Total(self.count().await?)).await?;
        if self.selection == Selection::Everything {
            self.hand(Piece::Numbers(self.numbers().await?)).await?;
            self.rows(USERS, user, Piece::Users).await?;
            self.rows(TOKENS, token, Piece::Tokens).await?;
            self.rows(SHARES, share, Piece::Shares).await?;
            self.rows(KEYS, key, Piece::Keys).await?;
        }
        self.plants().await
    }

    async fn count(&self) -> Result<Counts, StoreError> {
        const COUNT: &str = "
            SELECT (SELECT count(*) FROM plantstore.users WHERE $1::text IS NULL OR name = $1),
              (SELECT count(*) FROM plantstore.tokens WHERE $1::text IS NULL),
              (SELECT count(*) FROM plantstore.shares WHERE $1::text IS NULL),
              (SELECT count(*) FROM plantstore.idempotency_keys AS kept
               JOIN plantstore.users ON users.user_id = kept.user_id WHERE $1::text IS NULL),
              (SELECT count(*) FROM plantstore.users JOIN plantstore.plants ON plants.user_id = users.user_id
               WHERE $1::text IS NULL OR users.name = $1)";
        let row = answered(self.client.query_one(COUNT, &[&self.selection.user()])).await?;
        let count = |column| get::<i64>(&row, column).map(i64::unsigned_abs);
        Ok(Counts { users: count(0)?, tokens: count(1)?, shares: count(2)?, keys: count(3)?, plants: count(4)? })
    }

    /// The numbers that the sequences have given out, as far as this role may read them.
    async fn numbers(&self) -> Result<Numbers, StoreError> {
        const LAST: &str = "
            SELECT coalesce(has_sequence_privilege(numbers, 'SELECT, USAGE'), false), greatest(0, (
              SELECT last_value FROM pg_catalog.pg_sequences
              WHERE quote_ident(schemaname) || '.' || quote_ident(sequencename) = numbers))
            FROM pg_get_serial_sequence($1, $2) AS numbers";
        const STORED: &str = "
            SELECT greatest((SELECT max(user_id) FROM plantstore.users), (SELECT max(user_id) FROM plantstore.departed_users), 0),
              greatest((SELECT max(token_id) FROM plantstore.tokens), 0)";
        let users = answered(self.client.query_one(LAST, &[&"plantstore.users", &"user_id"])).await?;
        let tokens = answered(self.client.query_one(LAST, &[&"plantstore.tokens", &"token_id"])).await?;
        if !(get::<bool>(&users, 0)? && get::<bool>(&tokens, 0)?) {
            tracing::warn!(
                "this role may not read the sequences, so numbers of deleted users and tokens may be given out again: \
                 GRANT SELECT ON ALL SEQUENCES IN SCHEMA plantstore"
            );
        }
        let stored = answered(self.client.query_one(STORED, &[])).await?;
        Ok(Numbers {
            user: get::<i64>(&users, 1)?.max(get(&stored, 0)?),
            token: get::<i64>(&tokens, 1)?.max(get(&stored, 1)?),
        })
    }

    async fn rows<T>(
        &self,
        statement: &str,
        record: fn(&Row) -> Result<T, StoreError>,
        piece: fn(Vec<T>) -> Piece,
    ) -> Result<(), Stop> {
        let found = answered(self.client.query_raw(statement, &[0_i64; 0])).await?;
        pin_mut!(found);
        let mut rows = Vec::new();
        while let Some(row) = answered(found.try_next()).await? {
            rows.push(record(&row)?);
            if rows.len() == PIECE_ROWS {
                self.hand(piece(std::mem::take(&mut rows))).await?;
            }
        }
        self.hand(piece(rows)).await
    }

    async fn plants(&self) -> Result<(), Stop> {
        // By bytes, whatever language the database was set up for: the same order as in the embedded engine.
        const PLANTS: &str = r#"
            SELECT users.user_id, users.name, plant_id, plants.name, tag, plants.version
            FROM plantstore.users JOIN plantstore.plants ON plants.user_id = users.user_id
            WHERE $1::text IS NULL OR users.name = $1 ORDER BY users.name COLLATE "C", plant_id"#;
        let user = self.selection.user();
        let values: [&(dyn ToSql + Sync); 1] = [&user];
        let found = answered(self.client.query_raw(PLANTS, values)).await?;
        pin_mut!(found);
        let (mut rows, mut bytes) = (Vec::with_capacity(PIECE_ROWS), 0);
        let mut last: Option<(i64, Arc<str>)> = None;
        while let Some(row) = answered(found.try_next()).await? {
            let user_id = get(&row, 0)?;
            let owner = match &last {
                Some((known, owner)) if *known == user_id => Arc::clone(owner),
                _ => Arc::clone(&last.insert((user_id, get::<&str>(&row, 1)?.into())).1),
            };
            let (id, name, tag, version) = (get(&row, 2)?, get(&row, 3)?, get(&row, 4)?, get(&row, 5)?);
            let plant = PlantRecord { user_id, owner, id, name, tag, version };
            bytes += plant.bytes();
            rows.push(plant);
            if rows.len() == PIECE_ROWS || bytes >= PIECE_BYTES {
                bytes = 0;
                self.hand(Piece::Plants(std::mem::replace(&mut rows, Vec::with_capacity(PIECE_ROWS)))).await?;
            }
        }
        self.hand(Piece::Plants(rows)).await
    }

    async fn hand(&self, piece: Piece) -> Result<(), Stop> {
        self.sender.send(Ok(Some(piece))).await.map_err(|_| Stop::NotWanted)
    }
}

async fn answered<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    match timeout(ROWS_PATIENCE, answer).await {
        Ok(answered) => answered.map_err(|error| Fault::of(&error).into_error()),
        Err(_) => Err(StoreError::Unavailable(SILENT.to_owned())),
    }
}

fn user(row: &Row) -> Result<UserRecord, StoreError> {
    Ok(UserRecord { id: get(row, 0)?, name: get(row, 1)?, version: get(row, 2)?, created_at: get(row, 3)? })
}

fn token(row: &Row) -> Result<TokenRecord, StoreError> {
    Ok(TokenRecord {
        id: get(row, 0)?,
        hash: get(row, 1)?,
        user_id: get(row, 2)?,
        label: get(row, 3)?,
        scopes: get(row, 4)?,
        created_at: get(row, 5)?,
        expires_at: get(row, 6)?,
        revoked_at: get(row, 7)?,
        last_used_at: get(row, 8)?,
    })
}

fn share(row: &Row) -> Result<ShareRecord, StoreError> {
    Ok(ShareRecord { grantee_id: get(row, 0)?, owner_id: get(row, 1)?, role: get(row, 2)?, created_at: get(row, 3)? })
}

fn key(row: &Row) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        user_id: get(row, 0)?,
        key: get(row, 1)?,
        fingerprint: get(row, 2)?,
        outcome: get(row, 3)?,
        message: get(row, 4)?,
        expires_at: get(row, 5)?,
    })
}
