//! Background removal of rows, in small transactions that do not block writes for long. Nodes may sweep concurrently.

use super::dialect::Dialect;
use super::engine::Postgres;
use crate::error::StoreError;
use crate::limits::SWEEP_DELAY;

/// Maximum number of rows removed in one transaction.
const STEP: i64 = 2_000;
/// Seconds after which the row of an inactive writer is removed.
const WRITER_LIFETIME: i64 = 86_400;

impl Postgres {
    pub(crate) async fn sweep_deleted_users(&self) -> Result<u64, StoreError> {
        // Uses the database's clock, because other nodes may have deleted the users.
        const DEPARTED: &str = "
            SELECT user_id FROM plantstore.departed_users
            WHERE departed_at <= (extract(epoch FROM now()) * 1000)::bigint - $1 LIMIT 1";
        const PLANTS: &str = "
            DELETE FROM plantstore.plants WHERE user_id = $1 AND plant_id <= (
              SELECT max(plant_id) FROM (
                SELECT plant_id FROM plantstore.plants WHERE user_id = $1 ORDER BY plant_id LIMIT $2) AS first_ones)";
        const KEYS: &str = "
            DELETE FROM plantstore.idempotency_keys WHERE user_id = $1 AND key IN (
              SELECT key FROM plantstore.idempotency_keys WHERE user_id = $1 ORDER BY key LIMIT $2)";
        // Another node may be removing the same rows, and its transaction may fail.
        const HAS_ROWS: &str = "
            SELECT EXISTS (SELECT 1 FROM plantstore.plants WHERE user_id = $1)
              OR EXISTS (SELECT 1 FROM plantstore.idempotency_keys WHERE user_id = $1)";
        const FINISH_USER: &str = "DELETE FROM plantstore.departed_users WHERE user_id = $1";
        const DELETE_WRITERS: &str =
            "DELETE FROM plantstore.writers WHERE seen_at < extract(epoch FROM now())::bigint - $1";
        let delay = i64::try_from(SWEEP_DELAY.as_millis()).unwrap_or(i64::MAX);
        // Checked before a connection is opened, because there is usually nothing to do.
        if self.readers.rows(|session| &session.statements.sweepable, [delay, WRITER_LIFETIME]).await?.is_empty() {
            return Ok(0);
        }
        let removing = self.run_admin_transaction(async |client| {
            client.execute(DELETE_WRITERS, &[&WRITER_LIFETIME]).await?;
            while let Some(row) = client.query_opt(DEPARTED, &[&delay]).await? {
                let user: i64 = row.try_get(0)?;
                for step in [PLANTS, KEYS] {
                    let removed = client.execute(step, &[&user, &STEP]).await?;
                    if removed > 0 {
                        return Ok(removed);
                    }
                }
                if client.query_one(HAS_ROWS, &[&user]).await?.try_get(0)? {
                    break;
                }
                client.execute(FINISH_USER, &[&user]).await?;
            }
            Ok(0)
        });
        removing.await.inspect(|removed| self.metrics.sweeps.deleted_users.add(*removed))
    }

    pub(crate) async fn sweep_expired_keys(&self) -> Result<u64, StoreError> {
        // Skips rows that another node is removing or a writer is replacing.
        const EXPIRED: &str = "
            DELETE FROM plantstore.idempotency_keys WHERE (user_id, key) IN (
              SELECT user_id, key FROM plantstore.idempotency_keys
              WHERE expires_at <= extract(epoch FROM now())::bigint ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)";
        // Citus cannot lock rows of several workers in a subquery. A row that was replaced meanwhile has not expired.
        const EXPIRED_ON_CITUS: &str = "
            DELETE FROM plantstore.idempotency_keys
            WHERE expires_at <= extract(epoch FROM now())::bigint AND (user_id, key) IN (
              SELECT user_id, key FROM plantstore.idempotency_keys
              WHERE expires_at <= extract(epoch FROM now())::bigint ORDER BY expires_at LIMIT $1)";
        if self.readers.rows(|session| &session.statements.expired_key, [0_i64; 0]).await?.is_empty() {
            return Ok(0);
        }
        let removing = self.run_admin_transaction(async |client| {
            let statement = match Dialect::detect(client).await? {
                Dialect::Postgres => EXPIRED,
                Dialect::Citus => EXPIRED_ON_CITUS,
            };
            client.execute(statement, &[&STEP]).await
        });
        removing.await.inspect(|removed| self.metrics.sweeps.expired_keys.add(*removed))
    }
}
