//! The PostgreSQL engine, which also works with compatible databases. Any number of nodes share one database.
//!
//! Reads are pipelined on a few connections. Writes go through the same queue as in the embedded engine. Every wait has a
//! deadline, so that a database that is down, frozen or unreachable leads to an error and never to a request that hangs.

mod admin;
mod batch_collector;
mod batch_statements;
mod connection;
mod connection_role;
mod connector;
mod database_error;
mod dialect;
mod distribution;
mod engine;
mod key_locks;
mod lists;
mod metrics;
mod placement;
mod readers;
mod rows;
mod schema;
mod start;
mod statements;
mod tls;
mod version_reader;
mod writer;

pub(crate) use self::admin::{AdminConnection, wait_for_response};
pub(crate) use self::batch_statements::changed_plants;
pub(crate) use self::connector::Connector;
pub(crate) use self::database_error::{NO_RESPONSE, describe};
pub(crate) use self::dialect::{Dialect, execute_each};
pub(crate) use self::distribution::distribute;
pub(crate) use self::engine::{Postgres, Transaction};
pub use self::placement::{PlacedTable, Placement};
pub(crate) use self::rows::get;
pub(crate) use self::start::start;
pub(crate) use self::statements::{Prepared, Statements};
