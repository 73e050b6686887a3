//! The PostgreSQL engine, which also works with compatible databases. Any number of nodes share one database.
//!
//! Reads are pipelined on a few connections. Writes go through the same queue as in the embedded engine. Every wait has a
//! deadline, so that a database that is down, frozen or unreachable leads to an error and never to a request that hangs.

mod citus;
mod connect;
mod connection_role;
mod dialect;
mod distribution;
mod engine;
mod lane;
mod metrics;
mod read;
mod schema;
mod statements;
mod write;

pub use self::citus::{PlacedTable, Placement};
pub(crate) use self::connect::{AdminConnection, Connector, NO_RESPONSE, describe, wait_for_response};
pub(crate) use self::dialect::{Dialect, execute_each};
pub(crate) use self::distribution::distribute;
pub(crate) use self::engine::{Postgres, Transaction};
pub(crate) use self::read::get;
pub(crate) use self::schema::start;
pub(crate) use self::statements::{Prepared, Statements};
pub(crate) use self::write::changed_plants;
