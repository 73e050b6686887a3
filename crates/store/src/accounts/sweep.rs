//! Background removal of rows, in small transactions that do not block writes for long. Nodes may sweep concurrently.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::StoreError;
use crate::sql::Origin;
use crate::store::{Database, Store};

/// Delay between the deletion of a user and the removal of their plants. It is longer than a server caches a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Maximum number of rows removed in one transaction.
const STEP: i64 = 2_000;
/// Microseconds after which the row of an inactive writer of PostgreSQL is removed.
const WRITER_LIFETIME: i64 = 86_400_000_000;

impl Store {
    /// Removes some rows of deleted users (plants and keys; on PostgreSQL also rows of writers that ended) and returns their
    /// number; 0 if none are left. Never locks the store for long. A user's rows stay for [`SWEEP_DELAY`] after the deletion: until
    /// then a server may still accept a cached token of the user, and would return an incomplete list.
    pub async fn sweep_deleted_users(&self) -> Result<u64, StoreError> {
        const DEPARTED: &str = "SELECT user_id FROM departed_users WHERE departed_at <= $1 ORDER BY user_id LIMIT 1";
        const PLANTS: &str = "
            DELETE FROM plants WHERE user_id = $1 AND plant_id <= (
              SELECT max(plant_id) FROM (
                SELECT plant_id FROM plants WHERE user_id = $1 ORDER BY plant_id LIMIT $2) AS first_ones)";
        const KEYS: &str = "
            DELETE FROM idempotency_keys WHERE user_id = $1 AND key IN (
              SELECT key FROM idempotency_keys WHERE user_id = $1 ORDER BY key LIMIT $2)";
        // Another node may be removing the same rows, and its transaction may fail.
        const HAS_ROWS: &str = "
            SELECT EXISTS (SELECT 1 FROM plants WHERE user_id = $1)
              OR EXISTS (SELECT 1 FROM idempotency_keys WHERE user_id = $1)";
        // The rows of writers have negative ids, and the time of their last commit in microseconds.
        const WRITERS: &str = "DELETE FROM collections WHERE user_id < 0 AND version < $1";
        const FINISH: &str = "DELETE FROM departed_users WHERE user_id = $1";
        if !self.is_sweepable().await? {
            return Ok(0);
        }
        let removing = self.transaction(Origin::Operator, move |transaction| async move {
            let now = transaction.now().await?;
            if transaction.has_collections() {
                transaction.execute(WRITERS, &[&(now * 1_000 - WRITER_LIFETIME)]).await?;
            }
            let departed = now - i64::try_from(SWEEP_DELAY.as_millis()).unwrap_or(i64::MAX);
            while let Some(user) = transaction.find::<i64>(DEPARTED, &[&departed]).await? {
                for step in [PLANTS, KEYS] {
                    let removed = transaction.execute(step, &[&user, &STEP]).await?;
                    if removed > 0 {
                        return Ok(removed);
                    }
                }
                if transaction.find(HAS_ROWS, &[&user]).await? == Some(true) {
                    break;
                }
                transaction.execute(FINISH, &[&user]).await?;
            }
            Ok(0)
        });
        let removed = removing.await?;
        self.sweep_metrics.deleted_users.add(removed);
        Ok(removed)
    }

    /// Checks with a read, because there is usually nothing to sweep.
    async fn is_sweepable(&self) -> Result<bool, StoreError> {
        // ORDER BY an index prevents a parallel scan.
        const DEPARTED: &str = "SELECT user_id FROM departed_users ORDER BY user_id LIMIT 1";
        const WRITERS: &str = "
            SELECT user_id FROM collections
            WHERE user_id < 0 AND version < CAST(extract(epoch FROM now()) * 1000000 AS bigint) - CAST($1 AS bigint)
            ORDER BY user_id LIMIT 1";
        if !self.read::<i64>(DEPARTED, &[]).await?.is_empty() {
            return Ok(true);
        }
        match self.database {
            Database::Sqlite(_) => Ok(false),
            Database::Postgres(_) => Ok(!self.read::<i64>(WRITERS, &[&WRITER_LIFETIME]).await?.is_empty()),
        }
    }

    /// Removes some expired keys and returns their number; 0 if none are left. Never locks the store for long.
    pub async fn sweep_expired_keys(&self) -> Result<u64, StoreError> {
        const OLDEST: &str = "SELECT expires_at FROM idempotency_keys ORDER BY expires_at LIMIT 1";
        // The clock of this node only decides when to look.
        let now = Timestamp::now().as_second();
        if self.read::<i64>(OLDEST, &[]).await?.first().is_none_or(|oldest| *oldest > now) {
            return Ok(0);
        }
        let removing = self.transaction(Origin::Operator, move |transaction| async move {
            // Skips rows that another node is removing or a writer is replacing. A row that was replaced meanwhile has not expired.
            let remove = format!(
                "DELETE FROM idempotency_keys WHERE expires_at <= $1 AND (user_id, key) IN (
                   SELECT user_id, key FROM idempotency_keys WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 {})",
                transaction.skip_locked()
            );
            transaction.execute(&remove, &[&(transaction.now().await? / 1_000), &STEP]).await
        });
        let removed = removing.await?;
        self.sweep_metrics.expired_keys.add(removed);
        Ok(removed)
    }
}
