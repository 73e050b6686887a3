//! The prepared statements of requests. All of them name their columns, and all statements about plants contain the user id.
//!
//! What a statement has in a comment `/* Citus: … */` is executed on Citus only, which would otherwise execute it on more workers
//! than necessary. [`Shard::statement`](crate::postgres::citus::Shard::statement) is another text, about the tables of a shard.
//!
//! - `user_id = ANY($1)` selects the shards, and with them the workers. On PostgreSQL it would multiply the look-ups in the index.
//! - `INSERT … SELECT` takes the user id from a distributed table, so that each worker inserts the rows of its own shards.
//! - Statements must not need rows of two users, which may be on different workers. The one that does is marked `not_on_citus`.

use std::collections::HashMap;

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error, Row, Statement};

use super::connector::Dialect;
use super::metrics::ConnectionRole;

macro_rules! statements {
    ($set:ident: $($name:ident: $text:literal $(not_on_citus)?,)*) => {
        pub(crate) struct $set {
            $(pub(crate) $name: Statement,)*
        }

        impl $set {
            /// Prepares all statements in one round trip, each with the text that `text` returns for it.
            pub(crate) async fn prepare(client: &Client, text: impl Fn(&str) -> String) -> Result<Self, Error> {
                let texts = [$(text($text)),*];
                let mut prepared = try_join_all(texts.iter().map(|text| client.prepare(text))).await?.into_iter();
                Ok(Self { $($name: prepared.next().expect("one for each"),)* })
            }
        }
    };
}

/// The prepared statements of a connection. A reader has none that write, so that it does not wait for locks of tables that only
/// writes wait for.
pub(crate) enum Statements {
    Read(ReadStatements),
    Write(WriteStatements),
}

impl Statements {
    /// Prepares the statements of a role, each with the text that `text` returns for it. `None` if the role has none.
    pub(crate) async fn prepare(
        client: &Client,
        role: ConnectionRole,
        text: impl Fn(&str) -> String,
    ) -> Result<Option<Self>, Error> {
        Ok(match role {
            ConnectionRole::Read => Some(Self::Read(ReadStatements::prepare(client, text).await?)),
            ConnectionRole::Write => Some(Self::Write(WriteStatements::prepare(client, text).await?)),
            ConnectionRole::KeyLock | ConnectionRole::Admin => None,
        })
    }

    pub(crate) fn of_reader(&self) -> &ReadStatements {
        let Self::Read(statements) = self else { unreachable!("the connection of a reader") };
        statements
    }

    pub(crate) fn of_writer(&self) -> &WriteStatements {
        let Self::Write(statements) = self else { unreachable!("the connection of a writer") };
        statements
    }
}

impl Dialect {
    pub(crate) fn statement(self, text: &str) -> String {
        match self {
            Self::Postgres => text.to_owned(),
            Self::Citus => text.replace("/* Citus: ", "").replace(" */", ""),
        }
    }
}

statements! {
    ReadStatements:
    // Each row has the owner's version from the same snapshot.
    list_first:
        "SELECT (SELECT version FROM plantstore.collections WHERE user_id = $1), plant_id, name, tag
         FROM plantstore.plants WHERE user_id = $1 AND plant_id >= $2 ORDER BY plant_id LIMIT $3",
    list_later:
        "SELECT (SELECT version FROM plantstore.collections WHERE user_id = $1), plant_id, name, tag
         FROM plantstore.plants WHERE user_id = $1 AND plant_id >= $2 AND plant_id <= $4 AND version <= $5
         ORDER BY plant_id LIMIT $3",
    // Lists of several owners. An owner without plants has a row without an id. On Citus `versions` and `list_later` are
    // executed instead.
    list_many:
        "SELECT ranges.ordinal, collections.version, listed.plant_id, listed.name, listed.tag
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
           AS ranges (user_id, first_id, last_id, as_of, fetch_size, ordinal)
         JOIN plantstore.collections ON collections.user_id = ranges.user_id
         LEFT JOIN LATERAL (
           SELECT plant_id, name, tag FROM plantstore.plants
           WHERE plants.user_id = ranges.user_id AND plant_id >= ranges.first_id AND plant_id <= ranges.last_id
             AND plants.version <= ranges.as_of
           ORDER BY plant_id LIMIT ranges.fetch_size) AS listed ON true
         ORDER BY ranges.ordinal, listed.plant_id"
        not_on_citus,
    versions:
        "SELECT user_id, version FROM plantstore.collections WHERE user_id = ANY($1::bigint[])",
    page_end:
        "SELECT plant_id FROM plantstore.plants
         WHERE user_id = $1 AND plant_id BETWEEN $2 AND $3 AND version <= $4 ORDER BY plant_id LIMIT 2 OFFSET $5",
}

statements! {
    WriteStatements:
    // In the order of names, so that two nodes that create users do not deadlock. An existing user is updated without a change,
    // because only then its id is returned; not in a key column, because that would wait for every transaction that refers to
    // the user. A concurrent deletion of the same user can still deadlock: PostgreSQL aborts one of them, and the writer
    // retries.
    create_users:
        "WITH inserted AS (
           INSERT INTO plantstore.users (name, created_at)
           SELECT name, created_at FROM unnest($1::text[], $2::bigint[]) AS batch (name, created_at) ORDER BY name
           ON CONFLICT (name) DO UPDATE SET created_at = users.created_at
           RETURNING user_id, name),
         new_collections AS (
           INSERT INTO plantstore.collections (user_id) SELECT user_id FROM inserted ON CONFLICT (user_id) DO NOTHING)
         SELECT user_id, name FROM inserted",
    // Skips locked tokens, because recording a use is not worth waiting.
    record_token_uses:
        "UPDATE plantstore.tokens SET last_used_at = uses.day
         FROM unnest($1::bigint[], $2::bigint[]) AS uses (token_id, day)
         WHERE tokens.token_id = uses.token_id AND (last_used_at IS NULL OR last_used_at < uses.day)
           AND tokens.token_id IN (
             SELECT token_id FROM plantstore.tokens WHERE token_id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED)",
    create_writer:
        "INSERT INTO plantstore.collections (user_id, version) VALUES ($1, 0) ON CONFLICT (user_id) DO NOTHING",
    // Uses the index and thus the order of users, so that two nodes that change the same users do not deadlock. The row of a user
    // is locked until the commit. The versions are those of `sqlite::writer::Changes`. The version of the writer's row `$2` is the
    // commit id. The row is not returned if it does not contain `$3`, the commit before.
    advance_versions:
        "UPDATE plantstore.collections
         SET version = greatest(version + 1, (extract(epoch FROM now()) * 1000000)::bigint)
         WHERE user_id = ANY($1::bigint[]) AND (user_id <> $2 OR version = $3) RETURNING user_id, version",
    // Waits until no transaction has locked these rows. A write, so that its commit waits for the standby: a commit id that only
    // this server has may be lost in a failover.
    lock_users:
        "UPDATE plantstore.collections SET version = version WHERE user_id = ANY($1::bigint[]) RETURNING user_id, version",
    delete:
        "DELETE FROM plantstore.plants USING unnest($1::bigint[], $2::bigint[]) AS batch (user_id, plant_id)
         WHERE plants.user_id = batch.user_id AND plants.plant_id = batch.plant_id
           /* Citus: AND plants.user_id = ANY($1::bigint[]) */
         RETURNING plants.user_id, plants.plant_id",
    create:
        "INSERT INTO plantstore.plants (user_id, plant_id, name, tag, version)
         SELECT collections.user_id, batch.plant_id, batch.name, batch.tag, collections.version
         FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS batch (user_id, plant_id, name, tag)
         JOIN plantstore.collections ON collections.user_id = batch.user_id
         /* Citus: WHERE collections.user_id = ANY($1::bigint[]) */
         ON CONFLICT (user_id, plant_id) DO NOTHING
         RETURNING user_id, plant_id",
    // The version stays that of the creation, by which lists that are being read find the plant.
    replace:
        "UPDATE plantstore.plants SET name = batch.name, tag = batch.tag
         FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS batch (user_id, plant_id, name, tag)
         WHERE plants.user_id = batch.user_id AND plants.plant_id = batch.plant_id
           /* Citus: AND plants.user_id = ANY($1::bigint[]) */
         RETURNING plants.user_id, plants.plant_id",
    // The outcomes stored under the keys of a batch. now() is the same in all statements of a transaction. `expires_at + 0`
    // prevents the use of the index on expires_at, whatever the statistics were when the statement was planned.
    find_keys:
        "SELECT stored.user_id, stored.key, stored.fingerprint, stored.outcome, stored.message
         FROM unnest($1::bigint[], $2::bytea[]) AS requested (user_id, key)
         JOIN plantstore.idempotency_keys AS stored ON stored.user_id = requested.user_id AND stored.key = requested.key
         WHERE /* Citus: stored.user_id = ANY($1::bigint[]) AND */ stored.expires_at + 0 > extract(epoch FROM now())::bigint",
    // Replaces expired keys. For a key that has not expired the outcome becomes NULL, which violates a constraint and aborts the
    // transaction. The time is that of the new row, because Citus allows no functions here.
    store_keys:
        "INSERT INTO plantstore.idempotency_keys AS stored (user_id, key, fingerprint, outcome, message, expires_at)
         SELECT /* Citus: collections. */user_id, key, fingerprint, outcome, message,
           extract(epoch FROM now())::bigint + $6::bigint
         FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::integer[], $5::text[])
           AS batch (user_id, key, fingerprint, outcome, message)
         /* Citus: JOIN plantstore.collections ON collections.user_id = batch.user_id
         WHERE collections.user_id = ANY($1::bigint[]) */
         ON CONFLICT (user_id, key) DO UPDATE SET
           fingerprint = excluded.fingerprint, message = excluded.message, expires_at = excluded.expires_at,
           outcome = CASE WHEN stored.expires_at <= excluded.expires_at - $6::bigint THEN excluded.outcome END",
}

/// Returns the versions in rows of `collections`, by id.
pub(crate) fn versions<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Result<HashMap<i64, i64>, Error> {
    rows.into_iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
