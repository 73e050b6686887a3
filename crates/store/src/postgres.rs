//! The scale-out engine: PostgreSQL, or what speaks its protocol. Any number of nodes work on one database.
//!
//! Reads share a few connections, many of them in flight on each concurrently. Writes go through the same kind of queue as in
//! the embedded engine. Every wait has a deadline, so that a database that is dead, frozen or cut off is an error after a
//! moment and never a request that hangs.

mod accounts;
mod connection;
mod connector;
mod database_error;
mod engine;
mod import;
mod key_locks;
mod lists;
mod metrics;
mod operator;
mod restore;
mod role;
mod rows;
mod schema;
mod shares;
mod snapshot;
mod start;
mod statements;
mod sweep;
mod tls;
mod writer;
mod writes;

pub(crate) use self::engine::Postgres;
pub(crate) use self::import::Importer;
pub(crate) use self::restore::RestoreTarget;
pub(crate) use self::snapshot::snapshot;
