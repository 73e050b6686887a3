//! The tables that a transaction uses: those of shards of the server, or the distributed ones.

use std::sync::Arc;

use tokio_postgres::{Error, Statement};

use super::batch::Opening;
use crate::plants::Job;
use crate::postgres::citus::{COUNT, LOCK, Shard, ShardList};
use crate::postgres::connect::DatabaseSession;
use crate::postgres::statements::Statements;

/// The tables that a transaction uses.
pub(super) struct Scope {
    pub(super) parts: Vec<Part>,
    pub(super) guard: Option<ShardGuard>,
}

impl Scope {
    /// Returns the parts of a transaction: one for each shard if all its users are in shards of this server, otherwise one.
    pub(super) async fn of(
        session: &DatabaseSession,
        shards: &Arc<ShardList>,
        batch: &[Job],
        writer: i64,
    ) -> Result<Self, Error> {
        let whole = || {
            let statements = Arc::clone(&session.statements);
            Self { parts: vec![Part { statements, shard: None }], guard: None }
        };
        if shards.shards.is_empty() {
            return Ok(whole());
        }
        let opening = Opening::of(batch, writer, |_| true);
        let mut parts = Vec::new();
        let mut ids = Vec::new();
        let mut users = 0;
        for shard in &shards.shards {
            let of_shard = opening.users().iter().filter(|user| shard.contains(**user)).count();
            if of_shard > 0 {
                let Some(statements) = session.of_shard(shards, shard).await? else { return Ok(whole()) };
                parts.push(Part { statements, shard: Some(shard.clone()) });
                ids.push(shard.id());
                users += of_shard;
            }
        }
        if users < opening.users().len() || opening.has_new_users() {
            return Ok(whole());
        }
        let guard = ShardGuard { lock: session.prepared(LOCK).await?, count: session.prepared(COUNT).await?, ids };
        Ok(Self { parts, guard: Some(guard) })
    }
}

/// The statements about the users of one shard, or about all users.
pub(super) struct Part {
    pub(super) statements: Arc<Statements>,
    shard: Option<Shard>,
}

impl Part {
    pub(super) fn has(&self, user: i64) -> bool {
        self.shard.as_ref().is_none_or(|shard| shard.contains(user))
    }
}

/// Keeps shards on this server until the end of the transaction.
pub(super) struct ShardGuard {
    pub(super) lock: Statement,
    pub(super) count: Statement,
    pub(super) ids: Vec<i64>,
}
