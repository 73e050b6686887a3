//! Every statement that requests use, prepared once a connection. All name their columns, and all that touch plants carry
//! the user.

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error, Statement};

/// The prepared statements of a connection.
pub(super) trait Prepared: Sized + Send + Sync + 'static {
    /// Prepares all of it in one round trip.
    fn prepare(client: &Client) -> impl Future<Output = Result<Self, Error>> + Send;
}

macro_rules! statements {
    ($(#[$about:meta])* $set:ident; $($name:ident: $text:literal,)*) => {
        $(#[$about])*
        pub(super) struct $set {
            $(pub(super) $name: Statement,)*
        }

        impl Prepared for $set {
            async fn prepare(client: &Client) -> Result<Self, Error> {
                let mut prepared = try_join_all([$($text),*].map(|text| client.prepare(text))).await?.into_iter();
                Ok(Self { $($name: prepared.next().expect("one for each"),)* })
            }
        }
    };
}

statements! {
    /// Those of a connection that holds the locks of keys. They touch no table, and so wait for no lock on one.
    LockStatements;
    lock:
        "SELECT pg_try_advisory_lock($1)",
    unlock:
        "SELECT pg_advisory_unlock($1)",
}

statements! {
    /// Those of a connection that reads or writes.
    Statements;
    // The owner's version comes with each of their plants, from the same moment.
    list_first:
        "SELECT (SELECT version FROM plantstore.collections WHERE user_id = $1), plant_id, name, tag
         FROM plantstore.plants WHERE user_id = $1 AND plant_id >= $2 ORDER BY plant_id LIMIT $3",
    list_later:
        "SELECT (SELECT version FROM plantstore.collections WHERE user_id = $1), plant_id, name, tag
         FROM plantstore.plants WHERE user_id = $1 AND plant_id >= $2 AND plant_id <= $4 AND version <= $5
         ORDER BY plant_id LIMIT $3",
    // Of several owners at once; of one without plants there is a row without an id.
    list_many:
        "SELECT spans.place, collections.version, listed.plant_id, listed.name, listed.tag
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
           AS spans (user_id, first_id, last_id, as_of, look, place)
         JOIN plantstore.collections ON collections.user_id = spans.user_id
         LEFT JOIN LATERAL (
           SELECT plant_id, name, tag FROM plantstore.plants
           WHERE plants.user_id = spans.user_id AND plant_id >= spans.first_id AND plant_id <= spans.last_id
             AND plants.version <= spans.as_of
           ORDER BY plant_id LIMIT spans.look) AS listed ON true
         ORDER BY spans.place, listed.plant_id",
    versions:
        "SELECT user_id, version FROM plantstore.collections WHERE user_id = ANY($1::bigint[])",
    boundary:
        "SELECT plant_id FROM plantstore.plants
         WHERE user_id = $1 AND plant_id BETWEEN $2 AND $3 AND version <= $4 ORDER BY plant_id LIMIT 2 OFFSET $5",
    find_token:
        "SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at, last_used_at,
           EXISTS (SELECT 1 FROM plantstore.shares WHERE grantee_id = users.user_id)
         FROM plantstore.tokens JOIN plantstore.users ON users.user_id = tokens.user_id WHERE hash = $1",
    shared_with:
        "SELECT users.name, shares.owner_id, shares.role
         FROM plantstore.shares JOIN plantstore.users ON users.user_id = shares.owner_id
         WHERE shares.grantee_id = $1",
    find_user:
        "SELECT user_id FROM plantstore.users WHERE name = $1",
    // In the order of their names, so that two nodes that make users wait for each other, never in a circle. A user
    // that another node has just made is updated without a change, because only then the id is returned; and not in a column of
    // a key, because that would wait for every transaction that refers to the user. With a deletion of the same user there may be a
    // circle even so: PostgreSQL breaks it up, and the writer tries again.
    create_users:
        "WITH made AS (
           INSERT INTO plantstore.users (name, created_at)
           SELECT name, created_at FROM unnest($1::text[], $2::bigint[]) AS batch (name, created_at) ORDER BY name
           ON CONFLICT (name) DO UPDATE SET created_at = users.created_at
           RETURNING user_id, name),
         opened AS (
           INSERT INTO plantstore.collections (user_id) SELECT user_id FROM made ON CONFLICT (user_id) DO NOTHING)
         SELECT user_id, name FROM made",
    // Leaves out what others have locked: a note is not worth a wait.
    record_token_uses:
        "UPDATE plantstore.tokens SET last_used_at = noted.day
         FROM unnest($1::bigint[], $2::bigint[]) AS noted (token_id, day)
         WHERE tokens.token_id = noted.token_id AND (last_used_at IS NULL OR last_used_at < noted.day)
           AND tokens.token_id IN (
             SELECT token_id FROM plantstore.tokens WHERE token_id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED)",
    ping:
        "SELECT user_id FROM plantstore.users LIMIT 1",
    // Fails to touch a row when this very commit, or any but the expected one, came before it.
    mark:
        "INSERT INTO plantstore.writers (writer_id, commit_id, seen_at)
         VALUES ($1, $2, extract(epoch FROM now())::bigint)
         ON CONFLICT (writer_id) DO UPDATE SET commit_id = excluded.commit_id, seen_at = excluded.seen_at
         WHERE writers.commit_id = $3",
    // A write, so that its commit waits for the standby, too: what only this server has is not to be relied on.
    last_mark:
        "UPDATE plantstore.writers SET seen_at = seen_at WHERE writer_id = $1 RETURNING commit_id",
    // By the index, and so in the order of the users, always: two nodes that change plants of the same users wait for each
    // other, never in a circle. The transaction that moves a user's version locks the user until its commit. Versions follow the
    // clock where it goes forward, so that none is ever used a second time, not even after a database was put back.
    touch:
        "UPDATE plantstore.collections
         SET version = greatest(version + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
         WHERE user_id = ANY($1::bigint[]) RETURNING user_id",
    delete:
        "WITH gone AS (
           DELETE FROM plantstore.plants USING unnest($1::bigint[], $2::bigint[]) AS batch (user_id, plant_id)
           JOIN plantstore.collections ON collections.user_id = batch.user_id
           WHERE plants.user_id = batch.user_id AND plants.plant_id = batch.plant_id
           RETURNING plants.user_id, plants.plant_id)
         SELECT array_agg(user_id), array_agg(plant_id) FROM gone",
    create:
        "WITH made AS (
           INSERT INTO plantstore.plants (user_id, plant_id, name, tag, version)
           SELECT batch.user_id, batch.plant_id, batch.name, batch.tag, collections.version
           FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS batch (user_id, plant_id, name, tag)
           JOIN plantstore.collections ON collections.user_id = batch.user_id
           ON CONFLICT (user_id, plant_id) DO NOTHING
           RETURNING user_id, plant_id)
         SELECT array_agg(user_id), array_agg(plant_id) FROM made",
    // What is stored under the keys of a batch. It is locked, so that no node sweeps it away before the statements below have
    // met it. All of a transaction's statements have the same clock. Each key is looked up by itself and, by the sum, not by
    // its expiry, however few keys there were when this was planned.
    find_keys:
        "SELECT asked.user_id, asked.key, known.fingerprint, known.outcome, known.message
         FROM unnest($1::bigint[], $2::bytea[]) AS asked (user_id, key)
         CROSS JOIN LATERAL (
           SELECT fingerprint, outcome, message FROM plantstore.idempotency_keys AS kept
           WHERE kept.user_id = asked.user_id AND kept.key = asked.key
             AND kept.expires_at + 0 > extract(epoch FROM now())::bigint FOR KEY SHARE) AS known",
    // Of writes that have a key, or are among another user's plants, those are done whose key is new and whose actor and
    // owner both exist. Of several that ask for the same, the first has it.
    delete_general:
        "WITH asked AS (
           SELECT batch.owner_id, batch.plant_id
           FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS batch (user_id, key, owner_id, plant_id)
           JOIN plantstore.collections AS actor ON actor.user_id = batch.user_id
           JOIN plantstore.collections AS owner ON owner.user_id = batch.owner_id
           WHERE NOT EXISTS (
             SELECT 1 FROM plantstore.idempotency_keys AS known
             WHERE known.user_id = batch.user_id AND known.key = batch.key
               AND known.expires_at + 0 > extract(epoch FROM now())::bigint)),
         gone AS (
           DELETE FROM plantstore.plants USING asked
           WHERE plants.user_id = asked.owner_id AND plants.plant_id = asked.plant_id
           RETURNING plants.user_id, plants.plant_id)
         SELECT array_agg(user_id), array_agg(plant_id), (SELECT count(*) FROM asked) FROM gone",
    create_general:
        "WITH asked AS (
           SELECT batch.owner_id, batch.plant_id, batch.name, batch.tag, owner.version, batch.place
           FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
             WITH ORDINALITY AS batch (user_id, key, owner_id, plant_id, name, tag, place)
           JOIN plantstore.collections AS actor ON actor.user_id = batch.user_id
           JOIN plantstore.collections AS owner ON owner.user_id = batch.owner_id
           WHERE NOT EXISTS (
             SELECT 1 FROM plantstore.idempotency_keys AS known
             WHERE known.user_id = batch.user_id AND known.key = batch.key
               AND known.expires_at + 0 > extract(epoch FROM now())::bigint)),
         made AS (
           INSERT INTO plantstore.plants (user_id, plant_id, name, tag, version)
           SELECT DISTINCT ON (owner_id, plant_id) owner_id, plant_id, name, tag, version FROM asked
           ORDER BY owner_id, plant_id, place
           ON CONFLICT (user_id, plant_id) DO NOTHING
           RETURNING user_id, plant_id)
         SELECT array_agg(user_id), array_agg(plant_id), (SELECT count(*) FROM asked) FROM made",
    // In the place of what has expired. What has not is left without an outcome, which the table rejects: then nothing of
    // the transaction happens.
    store_keys:
        "INSERT INTO plantstore.idempotency_keys AS kept (user_id, key, fingerprint, outcome, message, expires_at)
         SELECT user_id, key, fingerprint, outcome, message, extract(epoch FROM now())::bigint + $6::bigint
         FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::integer[], $5::text[])
           AS batch (user_id, key, fingerprint, outcome, message)
         ON CONFLICT (user_id, key) DO UPDATE SET
           fingerprint = excluded.fingerprint, message = excluded.message, expires_at = excluded.expires_at,
           outcome = CASE WHEN kept.expires_at <= extract(epoch FROM now())::bigint THEN excluded.outcome END",
    has_key:
        "SELECT 1 FROM plantstore.idempotency_keys
         WHERE user_id = $1 AND key = $2 AND expires_at + 0 > extract(epoch FROM now())::bigint",
    // Whether deleted users or writers have left something behind; in the order of an index, or several processes would be
    // started to look.
    left_behind:
        "(SELECT 1 FROM plantstore.departed_users
          WHERE departed_at <= (extract(epoch FROM now()) * 1000)::bigint - $1::bigint ORDER BY user_id LIMIT 1)
         UNION ALL
         (SELECT 1 FROM plantstore.writers
          WHERE seen_at < extract(epoch FROM now())::bigint - $2::bigint ORDER BY writer_id LIMIT 1)",
    expired_key:
        "SELECT 1 FROM plantstore.idempotency_keys WHERE expires_at <= extract(epoch FROM now())::bigint LIMIT 1",
}
