//! Connections to the database: how they are opened, configured and kept open, their prepared statements, and their errors.

mod connection;
mod connector;
mod error;
mod metrics;
mod statements;
mod tls;

pub(crate) use self::connection::{
    AdminConnection, DatabaseConnection, DatabaseSession, pause_for_worker, wait_for_response,
};
pub(crate) use self::connector::{
    Connector, Dialect, KEEPALIVES, PLANNER_SETTINGS, SEARCH_PATH, backoff, execute_each, lock_timeout,
};
pub(crate) use self::error::{
    DatabaseError, LOST_DURING_COMMIT, NO_RESPONSE, certainly_not_committed, describe, is_about_tables, is_conflict,
    is_rejection, store_error,
};
pub(crate) use self::metrics::{ConnectionRole, PostgresMetrics};
pub(crate) use self::statements::{ReadStatements, Statements, WriteStatements, versions};
