//! The embedded engine: SQLite in WAL mode, one writer thread, readers that never wait for it.
//!
//! Reads run on the calling thread: a list of a few plants takes less time than handing it to another thread would.
//! They are kept short by their callers (a long list is read in steps) and hold no transaction between two calls, so that
//! the WAL can always be reset. The command line opens the same file beside a running server; SQLite's locks keep them apart.

mod checkpoint;
mod database_file;
mod fault;
mod filling;
mod import;
mod lists;
mod schema;
mod shares;
mod snapshot;
mod watch;
mod writer;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use self::database_file::DatabaseFile;
use self::fault::store_error;
pub(super) use self::filling::Filling;
pub(super) use self::import::Importer;
pub(super) use self::snapshot::snapshot;
use self::watch::Watch;
use self::writer::Writer;
use super::keys::{AtWork, Claimed, Key, Written};
use super::metrics::{SweepMetrics, WalMetrics, WriteMetrics};
use super::{
    Actor, Creation, Deletion, OpenError, OpenOptions, StoreError, StoreUrl, StoredName, StoredToken, StoredUser,
    timestamp,
};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::{Grant, Label, Scopes, TokenHash, TokenId};
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::metrics::Page;
use plantstore_telemetry::spans;

/// How long a statement waits for another process that is writing.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// Plants of deleted users, or keys, removed in one transaction.
const SWEEP_STEP: u32 = 2_000;

/// The embedded engine, open.
pub struct Sqlite {
    path: PathBuf,
    file: Arc<DatabaseFile>,
    readers: Mutex<Readers>,
    patience: Duration,
    writer: Writer,
    watch: Watch,
    at_work: AtWork,
    metrics: Arc<SqliteMetrics>,
}

/// The connections that read, as far as none of them is at it.
struct Readers {
    idle: Vec<Connection>,
    /// How many are kept open.
    kept: usize,
}

/// What the engine counts.
#[derive(Default)]
struct SqliteMetrics {
    writes: WriteMetrics,
    wal: WalMetrics,
    sweeps: SweepMetrics,
}

#[expect(clippy::unused_async, reason = "the contract of the store is asynchronous; this engine answers inline")]
impl Sqlite {
    pub(super) async fn open(path: &Path, options: OpenOptions) -> Result<(Self, bool), OpenError> {
        let created = schema::prepare(path, options.create)?;
        let unusable =
            |error: rusqlite::Error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), fault::describe(&error));
        // Before any connection: a file that is replaced from now on is noticed.
        let file = DatabaseFile::new(path)
            .map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
        let file = Arc::new(file);
        let idle = (0..options.readers).map(|_| reader(path)).collect::<Result<_, _>>().map_err(unusable)?;
        let metrics = Arc::<SqliteMetrics>::default();
        let writer = Writer::start(path, &file, &options, &metrics).map_err(unusable)?;
        let engine = Self {
            path: path.to_owned(),
            file,
            readers: Mutex::new(Readers { idle, kept: options.readers }),
            patience: options.patience,
            writer,
            watch: Watch::new(path).map_err(unusable)?,
            at_work: AtWork::default(),
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
        let key = self.claim(actor.user, key)?;
        self.writer.queue().create(actor, plant, key).await
    }

    pub(super) async fn delete(
        &self,
        actor: Actor,
        id: PlantId,
        key: Option<Key>,
    ) -> Result<Written<Deletion>, StoreError> {
        let key = self.claim(actor.user, key)?;
        self.writer.queue().delete(actor, id, key).await
    }

    pub(super) async fn refuse(&self, user: UserId, key: Key) -> Result<Written<()>, StoreError> {
        let key = self.at_work.claim(user, key)?;
        self.writer.queue().refuse(user, key).await
    }

    pub(super) async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        const FIND: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM shares WHERE grantee_id = users.user_id)
            FROM tokens JOIN users USING (user_id) WHERE hash = ?1";
        self.read(|connection| {
            connection.prepare_cached(FIND)?.query_row([hash.as_bytes().as_slice()], stored_token).optional()
        })
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
        self.change(|connection| {
            connection.execute(
                "INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
                params![user.as_str(), grant.created.as_second()],
            )?;
            connection.execute(
                "INSERT INTO tokens (hash, user_id, label, scopes, created_at, expires_at)
                 SELECT ?1, user_id, ?2, ?3, ?4, ?5 FROM users WHERE name = ?6",
                params![
                    hash.as_bytes().as_slice(),
                    grant.label.as_str(),
                    grant.scopes.to_string(),
                    grant.created.as_second(),
                    grant.expires.map(Timestamp::as_second),
                    user.as_str()
                ],
            )?;
            Ok(TokenId::new(connection.last_insert_rowid()))
        })
    }

    pub(super) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        self.read(|connection| find_user(connection, name))
    }

    pub(super) async fn make_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        self.writer.queue().make_user(name, Timestamp::now()).await
    }

    pub(super) async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        const ALL: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM shares WHERE grantee_id = users.user_id)
            FROM tokens JOIN users USING (user_id) WHERE ?1 IS NULL OR users.name = ?1 ORDER BY token_id";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            statement.query_map([user.map(UserName::as_str)], stored_token)?.collect()
        })
    }

    pub(super) async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        self.change(|connection| {
            let revoked = connection.execute(
                "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE token_id = ?1",
                [token.get(), now.as_second()],
            )?;
            Ok(revoked == 1)
        })
    }

    pub(super) async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        const ALL: &str = "
            SELECT name, created_at,
              (SELECT count(*) FROM tokens WHERE tokens.user_id = users.user_id AND revoked_at IS NULL),
              (SELECT count(*) FROM plants WHERE plants.user_id = users.user_id)
            FROM users WHERE ?1 IS NULL OR name = ?1 ORDER BY name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            statement.query_map([name.map(UserName::as_str)], stored_user)?.collect()
        })
    }

    pub(super) async fn is_unused(&self) -> Result<bool, StoreError> {
        // Where SQLite notes the highest number that was given out.
        const UNUSED: &str = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'users')";
        self.read(|connection| connection.query_row(UNUSED, [], |row| row.get(0)))
    }

    pub(super) async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        self.change(|connection| {
            connection.execute(
                "INSERT INTO departed_users (user_id) SELECT user_id FROM users WHERE name = ?1",
                [name.as_str()],
            )?;
            // Tokens and shares go with the user, by their foreign keys.
            let deleted = connection.execute("DELETE FROM users WHERE name = ?1", [name.as_str()])?;
            Ok(deleted == 1)
        })
    }

    pub(super) async fn sweep(&self) -> Result<u64, StoreError> {
        const PLANTS: &str = "
            DELETE FROM plants WHERE user_id = ?1 AND plant_id <= (
              SELECT max(plant_id) FROM (
                SELECT plant_id FROM plants WHERE user_id = ?1 ORDER BY plant_id LIMIT ?2))";
        const KEYS: &str = "
            DELETE FROM idempotency_keys WHERE user_id = ?1 AND key IN (
              SELECT key FROM idempotency_keys WHERE user_id = ?1 LIMIT ?2)";
        const DEPARTED: &str = "SELECT user_id FROM departed_users LIMIT 1";
        let departed =
            |connection: &Connection| connection.query_row(DEPARTED, [], |row| row.get::<_, i64>(0)).optional();
        // Looked up before asking to write: nearly always there is nothing to do.
        if self.read(departed)?.is_none() {
            return Ok(0);
        }
        let removed = self.change(|connection| {
            while let Some(user) = departed(connection)? {
                for step in [PLANTS, KEYS] {
                    let removed = connection.execute(step, [user, i64::from(SWEEP_STEP)])?;
                    if removed > 0 {
                        return Ok(removed as u64);
                    }
                }
                connection.execute("DELETE FROM departed_users WHERE user_id = ?1", [user])?;
            }
            Ok(0)
        });
        removed.inspect(|removed| self.metrics.sweeps.departed.add(*removed))
    }

    pub(super) async fn sweep_keys(&self) -> Result<u64, StoreError> {
        const EXPIRED: &str = "SELECT 1 FROM idempotency_keys WHERE expires_at <= ?1";
        const STEP: &str = "
            DELETE FROM idempotency_keys WHERE (user_id, key) IN (
              SELECT user_id, key FROM idempotency_keys WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
        let now = Timestamp::now().as_second();
        if !self.read(|connection| connection.prepare_cached(EXPIRED)?.exists([now]))? {
            return Ok(0);
        }
        let removed = self.change(|connection| Ok(connection.execute(STEP, [now, i64::from(SWEEP_STEP)])? as u64));
        removed.inspect(|removed| self.metrics.sweeps.expired_keys.add(*removed))
    }

    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        if self.writer.queue().is_closed() {
            return Err(StoreError::Unavailable("the writer has stopped".to_owned()));
        }
        self.file.check()?;
        self.read(|connection| connection.prepare_cached("SELECT version FROM users LIMIT 1")?.exists([]).map(|_| ()))
    }

    pub(super) fn write_metrics(&self, page: &mut Page) {
        self.writer.queue().write_metrics(page);
        self.metrics.writes.write(page);
        self.metrics.wal.write(page);
        self.metrics.sweeps.write(page);
    }

    /// Closes the file, beside which then nothing is left unless somebody still reads. Whoever reads later opens it once more.
    pub(super) async fn close(&self) {
        self.writer.finish().await;
        *self.readers() = Readers { idle: Vec::new(), kept: 0 };
        self.watch.end();
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, user: UserId, key: Option<Key>) -> Result<Option<Box<Claimed>>, StoreError> {
        key.map(|key| self.at_work.claim(user, key)).transpose()
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let begun = spans::begin();
        let idle = self.readers().idle.pop();
        let connection = if let Some(connection) = idle {
            connection
        } else {
            self.file.check()?;
            reader(&self.path).map_err(|error| store_error(&error))?
        };
        // On an error the connection is dropped with whatever state it is in.
        let found = query(&connection).map_err(|error| store_error(&error))?;
        begun.end("read");
        let mut readers = self.readers();
        if readers.idle.len() < readers.kept {
            readers.idle.push(connection);
        }
        Ok(found)
    }

    /// Runs the rare changes of operators, in a transaction of their own on a connection of their own.
    fn change<T>(&self, change: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let run = || {
            let mut connection = connect(&self.path)?;
            connection.busy_timeout(self.patience)?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = change(&transaction)?;
            transaction.commit()?;
            Ok((connection, done))
        };
        self.file.check()?;
        let (connection, done) = run().map_err(|error| fault::after_change(&error))?;
        self.file.confirm(&connection)?;
        checkpoint::relieve(&connection);
        Ok(done)
    }
}

/// Opens the file with the settings every connection has. The path is taken literally, never as a URI.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_PATIENCE)?;
    // Without it, some builds of SQLite plan a prepared statement anew whenever a bound value changes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Checkpoints are run where a failed sync shows; SQLite's own hide it.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Views, triggers and indices of a file from elsewhere call no functions with side effects.
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn find_user(connection: &Connection, name: &UserName) -> rusqlite::Result<Option<UserId>> {
    let mut statement = connection.prepare_cached("SELECT user_id FROM users WHERE name = ?1")?;
    statement.query_row([name.as_str()], |row| row.get(0).map(UserId::new)).optional()
}

fn stored_token(row: &Row<'_>) -> rusqlite::Result<StoredToken> {
    let scopes: String = row.get(4)?;
    Ok(StoredToken {
        id: TokenId::new(row.get(0)?),
        user_id: UserId::new(row.get(1)?),
        user: stored_name(row, 2)?,
        grant: Grant {
            label: Label::from_stored(&text(row, 3)?),
            scopes: Scopes::from_names(&scopes),
            created: timestamp(row.get(5)?),
            expires: row.get::<_, Option<i64>>(6)?.map(timestamp),
        },
        revoked: row.get::<_, Option<i64>>(7)?.map(timestamp),
        last_used: row.get::<_, Option<i64>>(8)?.map(timestamp),
        shared_with: row.get(9)?,
    })
}

fn stored_user(row: &Row<'_>) -> rusqlite::Result<StoredUser> {
    Ok(StoredUser {
        name: stored_name(row, 0)?,
        created: timestamp(row.get(1)?),
        tokens: row.get::<_, i64>(2)?.unsigned_abs(),
        plants: row.get::<_, i64>(3)?.unsigned_abs(),
    })
}

fn stored_name(row: &Row<'_>, column: usize) -> rusqlite::Result<StoredName> {
    text(row, column).map(|text| StoredName::from_stored(&text))
}

/// A text that may not be UTF-8, which SQLite does not check.
fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Cow<'a, str>> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?))
}

fn user_name(row: &Row<'_>, column: usize) -> rusqlite::Result<UserName> {
    UserName::parse(row.get_ref(column)?.as_str()?).map_err(|fault| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(fault))
    })
}
