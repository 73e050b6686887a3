//! The scale-out engine: PostgreSQL, or what speaks its protocol. Any number of nodes work on one database.
//!
//! Reads share a few connections, many of them under way on each at the same time. Writes go through the same kind of
//! queue as in the embedded engine. Every wait has a deadline, so that a database that is dead, frozen or cut off is an
//! answer after a moment and never a request that hangs.

mod claims;
mod fault;
mod filling;
mod import;
mod link;
mod lists;
mod schema;
mod shares;
mod snapshot;
mod start;
mod statements;
mod sweep;
mod tls;
mod url;
mod writer;
mod writes;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Error, Row, Statement};

use self::claims::Claims;
use self::fault::{Fault, certainly_not_committed, describe};
pub(super) use self::filling::Filling;
pub(super) use self::import::Importer;
pub(super) use self::link::Role;
use self::link::{Connector, Link, SILENT, Session};
pub(super) use self::snapshot::snapshot;
pub use self::url::{PasswordFileFault, PostgresUrl, PostgresUrlFault};
use self::writer::Writer;
use super::keys::{AtWork, Claimed, Key, Written};
use super::metrics::{DatabaseMetrics, SweepMetrics, WriteMetrics};
use super::{
    Actor, Creation, Deletion, OpenError, OpenOptions, StoreError, StoreUrl, StoredName, StoredToken, StoredUser,
    timestamp,
};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::{Grant, Label, Scopes, TokenHash, TokenId};
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::metrics::Page;
use plantstore_telemetry::spans;

/// Connections that read, at the least.
const READERS_MIN: usize = 2;
/// How often a token is tried whose user somebody deletes at the same time.
const TOKEN_TRIES: usize = 3;

/// The scale-out engine, open.
pub struct Postgres {
    connector: Arc<Connector>,
    readers: Vec<Link>,
    next_reader: AtomicUsize,
    writer: Writer,
    at_work: AtWork,
    claims: Claims,
    patience: Duration,
    metrics: Arc<PostgresMetrics>,
}

/// What the engine counts.
#[derive(Default)]
struct PostgresMetrics {
    writes: WriteMetrics,
    database: DatabaseMetrics,
    sweeps: SweepMetrics,
}

impl Postgres {
    pub(super) async fn open(url: &PostgresUrl, options: OpenOptions) -> Result<(Self, bool), OpenError> {
        let store_url = StoreUrl::Postgres(Box::new(url.clone()));
        let metrics = Arc::<PostgresMetrics>::default();
        let connector = Connector::new(url, options.timeout, &metrics);
        let connector = connector.map_err(|why| OpenError::Unfit(store_url.clone(), why))?;
        let (_, created) = start::start(&connector, &store_url, &options).await?;
        let connector = Arc::new(connector);
        let readers = options.readers.max(if options.write_queue > 1 { READERS_MIN } else { 1 });
        let engine = Self {
            readers: (0..readers).map(|_| Link::new(&connector, Role::Read)).collect(),
            next_reader: AtomicUsize::new(0),
            writer: Writer::start(&connector, options.write_queue, &metrics),
            at_work: AtWork::default(),
            claims: Claims::new(&connector),
            patience: options.patience,
            connector,
            metrics,
        };
        Ok((engine, created))
    }

    pub(super) fn has_write_capacity(&self) -> bool {
        self.writer.queue().has_capacity()
    }

    pub(super) async fn create(
        &self,
        actor: Actor,
        plant: NewPlant,
        key: Option<Key>,
    ) -> Result<Written<Creation>, StoreError> {
        let key = self.claim(actor.user, key).await?;
        self.writer.queue().create(actor, plant, key).await
    }

    pub(super) async fn delete(
        &self,
        actor: Actor,
        id: PlantId,
        key: Option<Key>,
    ) -> Result<Written<Deletion>, StoreError> {
        let key = self.claim(actor.user, key).await?;
        self.writer.queue().delete(actor, id, key).await
    }

    pub(super) async fn refuse(&self, user: UserId, key: Key) -> Result<Written<()>, StoreError> {
        let key = self.claim_one(user, key).await?;
        self.writer.queue().refuse(user, key).await
    }

    pub(super) async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        let hash = hash.as_bytes().to_vec();
        let found = self.rows(|session| &session.statements.find_token, [hash]).await?;
        found.first().map(stored_token).transpose()
    }

    pub(super) fn note_use(&self, token: TokenId, day: Timestamp) {
        self.writer.queue().note_use(token, day);
    }

    pub(super) async fn create_token(
        &self,
        user: &UserName,
        hash: &TokenHash,
        grant: &Grant,
    ) -> Result<TokenId, StoreError> {
        const MAKE_USER: &str = "
            INSERT INTO plantstore.users (name, created_at) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        const MAKE_COLLECTION: &str = "
            INSERT INTO plantstore.collections (user_id)
            SELECT user_id FROM plantstore.users WHERE name = $1 ON CONFLICT (user_id) DO NOTHING";
        const MAKE_TOKEN: &str = "
            INSERT INTO plantstore.tokens (hash, user_id, label, scopes, created_at, expires_at)
            SELECT $1, user_id, $2, $3, $4, $5 FROM plantstore.users WHERE name = $6 RETURNING token_id";
        let (created, expires) = (grant.created.as_second(), grant.expires.map(Timestamp::as_second));
        let (hash, label, scopes) = (hash.as_bytes().as_slice(), grant.label.as_str(), grant.scopes.to_string());
        for _ in 0..TOKEN_TRIES {
            let made = self.operate(async |client| {
                client.execute(MAKE_USER, &[&user.as_str(), &created]).await?;
                client.execute(MAKE_COLLECTION, &[&user.as_str()]).await?;
                let values: [&(dyn ToSql + Sync); 6] = [&hash, &label, &scopes, &created, &expires, &user.as_str()];
                client.query_opt(MAKE_TOKEN, &values).await?.map(|row| row.try_get(0)).transpose()
            });
            // None when the user was deleted in between.
            if let Some(id) = made.await? {
                return Ok(TokenId::new(id));
            }
        }
        Err(StoreError::Unavailable("the user is being deleted again and again".to_owned()))
    }

    pub(super) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        let found = self.rows(|session| &session.statements.find_user, [name.as_str()]).await?;
        found.first().map(|row| get(row, 0).map(UserId::new)).transpose()
    }

    pub(super) async fn make_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        self.writer.queue().make_user(name, Timestamp::now()).await
    }

    pub(super) async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        const ALL: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM plantstore.shares WHERE grantee_id = users.user_id)
            FROM plantstore.tokens JOIN plantstore.users ON users.user_id = tokens.user_id
            WHERE $1::text IS NULL OR users.name = $1 ORDER BY token_id";
        let user = user.map(UserName::as_str);
        self.operate(async |client| client.query(ALL, &[&user]).await).await?.iter().map(stored_token).collect()
    }

    pub(super) async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        const REVOKE: &str = "UPDATE plantstore.tokens SET revoked_at = coalesce(revoked_at, $2) WHERE token_id = $1";
        let revoked =
            self.operate(async |client| client.execute(REVOKE, &[&token.get(), &now.as_second()]).await).await?;
        Ok(revoked == 1)
    }

    pub(super) async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        const ALL: &str = "
            SELECT name, created_at,
              (SELECT count(*) FROM plantstore.tokens WHERE tokens.user_id = users.user_id AND revoked_at IS NULL),
              (SELECT count(*) FROM plantstore.plants WHERE plants.user_id = users.user_id)
            FROM plantstore.users WHERE $1::text IS NULL OR name = $1";
        let name = name.map(UserName::as_str);
        let found = self.operate(async |client| client.query(ALL, &[&name]).await).await?;
        let mut users = found.iter().map(stored_user).collect::<Result<Vec<_>, _>>()?;
        // Here, and not by the database, whose order depends on the language it was set up for.
        users.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
        Ok(users)
    }

    pub(super) async fn is_unused(&self) -> Result<bool, StoreError> {
        const UNUSED: &str = "
            SELECT NOT EXISTS (SELECT 1 FROM plantstore.users) AND NOT EXISTS (SELECT 1 FROM plantstore.departed_users)";
        get(&self.operate(async |client| client.query_one(UNUSED, &[]).await).await?, 0)
    }

    pub(super) async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        const DEPART: &str = "
            INSERT INTO plantstore.departed_users (user_id) SELECT user_id FROM plantstore.users WHERE name = $1
            ON CONFLICT (user_id) DO NOTHING";
        const CLOSE: &str = "
            DELETE FROM plantstore.collections
            WHERE user_id = (SELECT user_id FROM plantstore.users WHERE name = $1)";
        // Tokens and shares go with the user, by their foreign keys.
        const DELETE: &str = "DELETE FROM plantstore.users WHERE name = $1";
        self.operate(async |client| {
            client.execute(DEPART, &[&name.as_str()]).await?;
            client.execute(CLOSE, &[&name.as_str()]).await?;
            Ok(client.execute(DELETE, &[&name.as_str()]).await? == 1)
        })
        .await
    }

    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.connector.patience;
        self.writer.ping(deadline).await?;
        self.claims.ping(deadline).await?;
        self.rows(|session| &session.statements.ping, [0_i64; 0]).await.map(|_| ())
    }

    pub(super) fn write_metrics(&self, page: &mut Page) {
        self.writer.queue().write_metrics(page);
        self.metrics.writes.write(page);
        self.metrics.database.write(page);
        self.metrics.sweeps.write(page);
    }

    pub(super) async fn close(&self) {
        self.writer.finish().await;
    }

    async fn claim(&self, user: UserId, key: Option<Key>) -> Result<Option<Box<Claimed>>, StoreError> {
        match key {
            Some(key) => self.claim_one(user, key).await.map(Some),
            None => Ok(None),
        }
    }

    /// Claims a key, here and then among all nodes.
    async fn claim_one(&self, user: UserId, key: Key) -> Result<Box<Claimed>, StoreError> {
        let mut claimed = self.at_work.claim(user, key)?;
        match self.claims.lock(user, &claimed.key).await? {
            Some(lock) => claimed.elsewhere = Some(Box::new(lock)),
            // Whoever has been answered is not told to wait, even if the lock of who answered them is still on its way out.
            None if self.is_kept(user, &claimed.key).await? => {}
            None => return Err(StoreError::InFlight),
        }
        Ok(claimed)
    }

    async fn is_kept(&self, user: UserId, key: &Key) -> Result<bool, StoreError> {
        let (user, hash) = (user.get(), key.hash);
        let found = self.read(|session| async move {
            session.client.query_opt(&session.statements.is_kept, &[&user, &hash.as_slice()]).await
        });
        found.await.map(|row| row.is_some())
    }

    /// The rows of a prepared statement.
    async fn rows<P: ToSql + Sync + Send + Clone, const N: usize>(
        &self,
        statement: impl Fn(&Session) -> &Statement,
        values: [P; N],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = &statement;
        self.read(|session| {
            let values = values.clone();
            async move {
                let stream = session.client.query_raw(statement(&session), &values).await?;
                stream.try_collect().await
            }
        })
        .await
    }

    /// Runs a query that changes nothing, again if its connection breaks, and until the deadline at the most.
    async fn read<T, F: Future<Output = Result<T, Error>>>(
        &self,
        query: impl Fn(Arc<Session>) -> F,
    ) -> Result<T, StoreError> {
        let begun = spans::begin();
        let deadline = Instant::now() + self.connector.patience;
        loop {
            let session = self.reader(deadline).await?;
            let sent = Instant::now();
            if let Some(found) = session.answer(query(Arc::clone(&session)), deadline).await? {
                self.metrics.database.queries.time(sent.elapsed());
                begun.end("read");
                return Ok(found);
            }
        }
    }

    /// The next connection that is there, or else the next that comes.
    async fn reader(&self, deadline: Instant) -> Result<Arc<Session>, StoreError> {
        let first = self.next_reader.fetch_add(1, Ordering::Relaxed);
        let link = |offset: usize| &self.readers[first.wrapping_add(offset) % self.readers.len()];
        // Its turn has come, even if another one that is ready takes it this time.
        link(0).start();
        match (0..self.readers.len()).find_map(|offset| link(offset).ready()) {
            Some(session) => Ok(session),
            None => link(0).session(deadline).await,
        }
    }

    /// Runs what operators ask for, in a transaction of its own on a connection of its own.
    async fn operate<T>(&self, work: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Result<T, StoreError> {
        let unavailable = |why: &str| StoreError::Unavailable(why.to_owned());
        let connected = self.connector.connect(Role::Operate).await;
        let (client, driver) = connected.map_err(|failure| StoreError::Unavailable(failure.describe()))?;
        tokio::spawn(driver);
        let working = async {
            client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
            work(&client).await
        };
        let done = timeout(self.patience, working).await.map_err(|_| unavailable(SILENT))?;
        let done = done.map_err(|error| Fault::of(&error).into_error())?;
        match timeout(self.patience, client.batch_execute("COMMIT")).await {
            Ok(Ok(())) => Ok(done),
            Ok(Err(error)) if certainly_not_committed(&error) => Err(Fault::of(&error).into_error()),
            Ok(Err(_)) | Err(_) => Err(StoreError::OutcomeUnknown("the connection was lost during the commit")),
        }
    }
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| StoreError::Internal(describe(&error)))
}

fn stored_token(row: &Row) -> Result<StoredToken, StoreError> {
    Ok(StoredToken {
        id: TokenId::new(get(row, 0)?),
        user_id: UserId::new(get(row, 1)?),
        user: stored_name(row, 2)?,
        grant: Grant {
            label: Label::from_stored(get(row, 3)?),
            scopes: Scopes::from_names(get(row, 4)?),
            created: timestamp(get(row, 5)?),
            expires: get::<Option<i64>>(row, 6)?.map(timestamp),
        },
        revoked: get::<Option<i64>>(row, 7)?.map(timestamp),
        last_used: get::<Option<i64>>(row, 8)?.map(timestamp),
        shared_with: get(row, 9)?,
    })
}

fn stored_user(row: &Row) -> Result<StoredUser, StoreError> {
    Ok(StoredUser {
        name: stored_name(row, 0)?,
        created: timestamp(get(row, 1)?),
        tokens: get::<i64>(row, 2)?.unsigned_abs(),
        plants: get::<i64>(row, 3)?.unsigned_abs(),
    })
}

fn stored_name(row: &Row, column: usize) -> Result<StoredName, StoreError> {
    get(row, column).map(StoredName::from_stored)
}

fn user_name(row: &Row, column: usize) -> Result<UserName, StoreError> {
    UserName::parse(get(row, column)?).map_err(|fault| StoreError::Internal(fault.to_string()))
}
