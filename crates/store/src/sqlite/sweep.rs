//! Background removal of rows, in small transactions that do not block writes for long.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::engine::Sqlite;
use crate::error::StoreError;

/// Maximum number of rows removed in one transaction.
const SWEEP_STEP: u32 = 2_000;

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) async fn sweep_deleted_users(&self) -> Result<u64, StoreError> {
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
        // Checked with a read first, because there is usually nothing to do.
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
        removed.inspect(|removed| self.metrics.sweeps.deleted_users.add(*removed))
    }

    pub(crate) async fn sweep_expired_keys(&self) -> Result<u64, StoreError> {
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
}
