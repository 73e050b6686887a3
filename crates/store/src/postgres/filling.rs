//! A database that holds nothing, filled with what another store holds, in one transaction.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::fault::{Fault, certainly_not_committed};
use super::link::SILENT;
use super::snapshot::{connect, start};
use super::url::PostgresUrl;
use crate::StoreError;
use crate::transfer::{FillError, Numbers, Piece, Selection, Snapshot};

/// A transaction on a connection of its own: it is rolled back when that ends.
pub struct Filling {
    client: Arc<Client>,
    patience: Duration,
    numbers: Numbers,
}

impl Filling {
    pub(crate) async fn begin(url: &PostgresUrl, patience: Duration) -> Result<Self, FillError> {
        // Nobody else writes until it is done. Whoever wants to read sees an empty database. It may be idle for long: where
        // the rows come from, they may have to be counted and sorted first.
        const HOLD: &str = "
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SET LOCAL idle_in_transaction_session_timeout = 0;
            LOCK TABLE plantstore.users, plantstore.collections, plantstore.plants IN SHARE ROW EXCLUSIVE MODE";
        const OCCUPIED: &str = "
            SELECT EXISTS (SELECT 1 FROM plantstore.users),
              EXISTS (SELECT 1 FROM plantstore.plants) OR EXISTS (SELECT 1 FROM plantstore.departed_users)";
        let (client, store_url) = connect(url, true, patience).await?;
        let filling = Self { client: Arc::new(client), patience, numbers: Numbers::default() };
        filling.answered(filling.client.batch_execute(HOLD)).await?;
        let row = filling.answered(filling.client.query_one(OCCUPIED, &[])).await?;
        if super::get(&row, 0)? {
            return Err(FillError::Occupied(store_url, "users"));
        }
        if super::get(&row, 1)? {
            return Err(FillError::Occupied(store_url, "plants of deleted users"));
        }
        Ok(filling)
    }

    pub(crate) async fn put(&mut self, piece: &Piece) -> Result<(), StoreError> {
        if let Piece::Numbers(numbers) = piece {
            self.numbers = *numbers;
        }
        let copying = async {
            match piece {
                Piece::Total(_) | Piece::Numbers(_) => Ok(()),
                Piece::Users(rows) => {
                    const USERS: &str = "COPY plantstore.users (user_id, name, created_at) FROM STDIN BINARY";
                    const COLLECTIONS: &str = "COPY plantstore.collections (user_id, version) FROM STDIN BINARY";
                    let (users, collections) = (&[Type::INT8, Type::TEXT, Type::INT8], &[Type::INT8, Type::INT8]);
                    self.copy(USERS, users, rows, |row| [&row.id, &row.name, &row.created_at]).await?;
                    self.copy(COLLECTIONS, collections, rows, |row| [&row.id, &row.version]).await
                }
                Piece::Tokens(rows) => {
                    const TOKENS: &str = "
                        COPY plantstore.tokens
                          (token_id, hash, user_id, label, scopes, created_at, expires_at, revoked_at, last_used_at)
                        FROM STDIN BINARY";
                    let [whole, text] = [Type::INT8, Type::TEXT];
                    let types = [&whole, &Type::BYTEA, &whole, &text, &text, &whole, &whole, &whole, &whole];
                    self.copy(TOKENS, &types.map(Clone::clone), rows, |row| {
                        let (created, expires) = (&row.created_at, &row.expires_at);
                        let (revoked, used) = (&row.revoked_at, &row.last_used_at);
                        [&row.id, &row.hash, &row.user_id, &row.label, &row.scopes, created, expires, revoked, used]
                    })
                    .await
                }
                Piece::Shares(rows) => {
                    const SHARES: &str =
                        "COPY plantstore.shares (grantee_id, owner_id, role, created_at) FROM STDIN BINARY";
                    let types = [Type::INT8, Type::INT8, Type::TEXT, Type::INT8];
                    self.copy(SHARES, &types, rows, |row| [&row.grantee_id, &row.owner_id, &row.role, &row.created_at])
                        .await
                }
                Piece::Keys(rows) => {
                    const KEYS: &str = "
                        COPY plantstore.idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
                        FROM STDIN BINARY";
                    let types = [Type::INT8, Type::BYTEA, Type::BYTEA, Type::INT4, Type::TEXT, Type::INT8];
                    self.copy(KEYS, &types, rows, |row| {
                        let (outcome, message) = (&row.outcome, &row.message);
                        [&row.user_id, &row.key, &row.fingerprint, outcome, message, &row.expires_at]
                    })
                    .await
                }
                Piece::Plants(rows) => {
                    const PLANTS: &str =
                        "COPY plantstore.plants (user_id, plant_id, name, tag, version) FROM STDIN BINARY";
                    let types = [Type::INT8, Type::INT8, Type::TEXT, Type::TEXT, Type::INT8];
                    self.copy(PLANTS, &types, rows, |row| [&row.user_id, &row.id, &row.name, &row.tag, &row.version])
                        .await
                }
            }
        };
        self.answered(copying).await
    }

    pub(crate) async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        // The next number is beyond all that were copied, all that the other store has given out, and all that were given out here.
        const NUMBERS: &str = "
            SELECT setval(numbers, greatest(nextval(numbers), $1::bigint, (SELECT max(user_id) FROM plantstore.users)))
            FROM pg_get_serial_sequence('plantstore.users', 'user_id') AS numbers
            UNION ALL
            SELECT setval(numbers, greatest(nextval(numbers), $2::bigint, (SELECT max(token_id) FROM plantstore.tokens)))
            FROM pg_get_serial_sequence('plantstore.tokens', 'token_id') AS numbers";
        self.answered(self.client.query(NUMBERS, &[&self.numbers.user, &self.numbers.token])).await?;
        Ok(start(Arc::clone(&self.client), Selection::Everything))
    }

    pub(crate) async fn finish(self) -> Result<(), FillError> {
        match timeout(self.patience, self.client.batch_execute("COMMIT")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if certainly_not_committed(&error) => Err(Fault::of(&error).into_error().into()),
            Ok(Err(_)) | Err(_) => {
                Err(StoreError::OutcomeUnknown("the connection to the database was lost during the commit").into())
            }
        }
    }

    async fn copy<T, const N: usize>(
        &self,
        statement: &str,
        types: &[Type; N],
        rows: &[T],
        columns: impl for<'a> Fn(&'a T) -> [&'a (dyn ToSql + Sync); N],
    ) -> Result<(), Error> {
        let sink = self.client.copy_in(statement).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, types));
        for row in rows {
            writer.as_mut().write(&columns(row)).await?;
        }
        writer.finish().await.map(|_| ())
    }

    async fn answered<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        match timeout(self.patience, answer).await {
            Ok(answered) => answered.map_err(|error| Fault::of(&error).into_error()),
            Err(_) => Err(StoreError::Unavailable(SILENT.to_owned())),
        }
    }
}
