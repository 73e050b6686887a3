//! The PostgreSQL engine, which also works with compatible databases. Any number of nodes share one database.
//!
//! Reads are pipelined on a few connections. Writes go through the same queue as in the embedded engine. Every wait has a
//! deadline, so that a database that is down, frozen or unreachable leads to an error and never to a request that hangs.

mod citus;
mod connect;
mod engine;
mod lane;
mod read;
mod schema;
mod write;

pub use self::citus::{PlacedTable, Placement};
pub(crate) use self::connect::{
    AdminConnection, NO_RESPONSE, WriteStatements, describe, execute_each, wait_for_response,
};
pub(crate) use self::engine::Postgres;
pub(crate) use self::read::get;
pub(crate) use self::schema::{Started, distribute, start_command};
pub(crate) use self::write::{PlantColumns, changed_plants};
