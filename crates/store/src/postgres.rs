//! The PostgreSQL engine, which also works with compatible databases. Any number of nodes share one database.
//!
//! Reads are pipelined on a few connections. Writes go through the same queue as in the embedded engine. Every wait has a
//! deadline, so that a database that is down, frozen or unreachable leads to an error and never to a request that hangs.

mod batch;
mod citus;
mod connection;
mod connector;
mod engine;
mod error;
mod key_locks;
mod lane;
mod lists;
mod metrics;
mod readers;
mod schema;
mod statements;
mod tls;
mod transaction;
mod writer;

pub(crate) use self::batch::{PlantColumns, changed_plants};
pub use self::citus::{PlacedTable, Placement};
pub(crate) use self::connection::{AdminConnection, wait_for_response};
pub(crate) use self::connector::execute_each;
pub(crate) use self::engine::Postgres;
pub(crate) use self::error::{NO_RESPONSE, describe};
pub(crate) use self::readers::get;
pub(crate) use self::schema::{Started, distribute, start_command};
pub(crate) use self::statements::WriteStatements;
